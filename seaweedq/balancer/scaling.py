"""Decides which segments to split and to merge: pure, over the open segments of all topics, without I/O, clock or
randomness.

The rules are Pravega's (its auto-scaling by the rates of a segment), but a split halves the load instead of the range.
Splits and merges do not alternate, since a split requires at least twice the load that a merge leaves, and by plain
rates, which start anew at every successor.

Segments that are locked, of unknown load, or at a broker that drains or is dead are left alone. The caller carries the
decisions out. Segments are columns of numbers, so that a hundred thousand are judged at once.

A cut makes parts of equal load. Load counts as even within a bin of the histogram, except for the hottest hash, which
is a step: if it has more than a part's share, the range is cut on both sides, as near as whole hashes allow.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from seaweedq.balancer.load import MESSAGE_BYTES, WINDOWS_S, Averages, SegmentLoad
from seaweedq.balancer.placement import Host, SegmentId, TopicId, spread
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.segments.keyrange import KeyRange

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_UNKNOWN = SegmentLoad()
_NO_POLICY = ScalingPolicy(enabled=False)
SPLIT_OVER = np.array([5.0, 2.0, 1.0, np.inf])
"""Multiples of the target, by window: a flood splits at once, a slight excess only if it lasts."""
MERGE_BELOW = 0.5
"""A multiple of the target, for two segments together; and for their peaks, of the load that would split again."""
HOT = 0.5
"""The share of a segment's load that makes a hash hot: a split halves the load of a segment without a hot hash."""
UNEVEN = 2.0
"""How many times its share of the load, at the fewest segments, a merged segment may have."""
IDLE = 0.05
"""A multiple of the target: a segment below it is idle, and its share does not matter."""
MAX_PARTS = 32
YOUNG_S = 10.0
"""A segment younger than this, or than the cool-down, is not split: too little is known of its rates."""
Measure = Literal["messages_per_s", "bytes_per_s"]


@dataclass(frozen=True, slots=True)
class Segment:
    """An open segment, `age_s` seconds after its creation. Its load is None if its owner, if any, did not report it.

    A locked segment is left alone. It `becomes` this number of segments: a fraction for each segment of a merge.
    """

    id: SegmentId
    range: KeyRange
    owner: str
    age_s: float
    load: SegmentLoad | None
    locked: bool = False
    becomes: float = 1.0


class Columns:
    """One row per segment, ordered by topic and range; and one per topic, to which `topic` of a segment's row points.

    `free` segments may be changed: known, not locked, of a topic that scales, at a broker that accepts segments.
    `plain` and `rate` are by window, as multiples of the target, `rate` corrected. `amounts`, also corrected, are per
    second: messages and bytes, by window.
    """

    def __init__(
        self, segments: Sequence[Segment], policies: Mapping[TopicId, ScalingPolicy], hosts: Sequence[Host]
    ) -> None:
        topics, topic = _numbered(segment.id[:2] for segment in segments)
        low = _ints(segment.range.low for segment in segments)
        order = np.lexsort((low, topic))
        self.segments = [segments[at] for at in order.tolist()]
        self.topic = topic[order]
        self.low = low[order]
        self.high = _ints(segment.range.high for segment in self.segments)
        self.age_s = _floats(segment.age_s for segment in self.segments)
        # The least and the most segments that the topics can have once the current changes have ended.
        becomes = _floats(segment.becomes for segment in self.segments)
        self.least = np.bincount(self.topic, np.minimum(becomes, 1.0), len(topics))
        self.most = np.bincount(self.topic, np.maximum(becomes, 1.0), len(topics))

        of_topics = [policies.get(each, _NO_POLICY) for each in topics]
        self.min_segments = _ints(policy.min_segments for policy in of_topics)
        self.max_segments = _ints(policy.max_segments for policy in of_topics)
        self.cool_down_s = _floats(policy.cool_down_s for policy in of_topics)
        self._targets: Floats = np.array([(p.target_messages_per_s, p.target_bytes_per_s) for p in of_topics], float)

        self.loads = [segment.load or _UNKNOWN for segment in self.segments]
        self.observed_s = _floats(load.observed_s for load in self.loads)
        self.hot_share = _floats(0.0 if load.hottest is None else load.hot_share for load in self.loads)
        amounts = _by_window((load.messages_per_s, load.bytes_per_s) for load in self.loads)
        known_s = np.maximum(self.observed_s, 1.0)  # amounts of less time say nothing
        self.amounts: Floats = amounts / -np.expm1(-known_s[:, None, None] / np.array(WINDOWS_S))
        self.plain = self.relative(amounts, self.topic)
        self.rate = self.relative(self.amounts, self.topic)

        takers = {host.broker for host in hosts if not host.draining}
        free = (s.load is not None and not s.locked and s.owner in takers for s in self.segments)
        enabled: Flags = np.array([policy.enabled for policy in of_topics], bool)
        self.free: Flags = np.fromiter(free, bool, len(segments)) & enabled[self.topic]

    def peaks(self, rows: Ints) -> Floats:
        """Returns plain peaks per second: messages and bytes, by window."""
        loads = [self.loads[row] for row in rows.tolist()]
        return _by_window((load.messages_peaks, load.bytes_peaks) for load in loads)

    def relative(self, amounts: Floats, topic: Ints) -> Floats:
        """Returns, by window, the multiple of the topics' targets: of messages or bytes, whichever is more."""
        multiples: Floats = (amounts / self._targets[topic][:, :, None]).max(axis=1)
        return multiples


def _numbered(keys: Iterable[TopicId]) -> tuple[list[TopicId], Ints]:
    """Returns the distinct keys in order, and the index of each key among them."""
    given = list(keys)
    distinct = sorted(set(given))
    places = {key: at for at, key in enumerate(distinct)}
    return distinct, _ints(map(places.__getitem__, given))


def _by_window(pairs: Iterable[tuple[Averages, Averages]]) -> Floats:
    flat = chain.from_iterable(chain.from_iterable(pairs))
    return _floats(flat).reshape(-1, 2, len(WINDOWS_S))


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut points of a range, strictly rising within it, and each part's share of the load; the shares add up to
    1."""

    points: tuple[int, ...]
    shares: tuple[float, ...]


def cut(key_range: KeyRange, parts: int, bins: tuple[float, ...], hottest: int | None, hot_share: float) -> Cut:
    """Cuts a range of two or more hashes into `parts`, or fewer if hashes are too few or too hot, but at least two.

    `bins` are the weights of equal parts of the range; without any weight the load counts as even. The hash `hottest`,
    if there is one, has `hot_share` of the load.
    """
    edges, load = _load_up_to(key_range, bins, hottest, hot_share)
    wanted = np.arange(1, parts) / parts
    exact = np.interp(wanted, load, edges)
    below, above = np.floor(exact), np.ceil(exact)
    nearer_above = np.interp(above, edges, load) - wanted < wanted - np.interp(below, edges, load)
    points = np.unique(np.clip(np.where(nearer_above, above, below), key_range.low + 1, key_range.high - 1))
    shares = np.diff(np.interp(points, edges, load), prepend=0.0, append=1.0)
    return Cut(tuple(points.astype(int).tolist()), tuple(shares.tolist()))


def _load_up_to(
    key_range: KeyRange, bins: tuple[float, ...], hottest: int | None, hot_share: float
) -> tuple[Floats, Floats]:
    """Returns rising positions in the range, and the share of the load below each: straight lines in between."""
    weights = np.array(bins if any(bins) else (1.0,))
    weights /= weights.sum()
    firsts = -(-np.arange(len(weights) + 1) * len(key_range) // len(weights))  # hashes of the bins
    edges = (key_range.low + firsts).astype(np.float64)
    if hottest is None or hottest not in key_range:
        return edges, _summed(weights)
    at = (hottest - key_range.low) * len(weights) // len(key_range)
    weights[at] = max(weights[at] - hot_share, 0.0)
    rest = _summed(weights) * (1 - hot_share) if weights.any() else np.zeros(len(edges))
    places = np.union1d(edges, (hottest, hottest + 1))
    load = np.interp(places, edges, rest)
    load[places > hottest] += hot_share if weights.any() else 1.0
    return places, load


def _summed(weights: Floats) -> Floats:
    load: Floats = np.concatenate([[0.0], np.cumsum(weights)])
    load /= load[-1]
    return load


@dataclass(frozen=True, slots=True)
class Split:
    """Seals a segment; its successors begin at its own low end and at the points. `owners` has a broker for each."""

    segment: SegmentId
    points: tuple[int, ...]
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Seals two neighbours that one broker owns; their successor has the range of both."""

    left: SegmentId
    right: SegmentId


@dataclass(frozen=True, slots=True)
class Gather:
    """Hands a segment over to the owner of the neighbour with which it is to be merged later."""

    segment: SegmentId
    neighbour: SegmentId
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class HotKey:
    """A segment has too much load, and a split would not help, since one hash has so large a share."""

    segment: SegmentId
    hash: int
    share: float


Plan = Split | Merge | Gather | HotKey


class NearestSplit(msgspec.Struct, array_like=True, frozen=True):
    """The plain average of a load that is nearest to its bound, over which the segment is split."""

    measure: Measure
    window_s: float
    splits_at: float
    now: float


def nearest_split(load: SegmentLoad, policy: ScalingPolicy) -> NearestSplit:
    """Returns the average by which `decide` splits first; of an idle segment the longest one."""
    measures: tuple[tuple[Measure, int, Averages], ...] = (
        ("messages_per_s", policy.target_messages_per_s, load.messages_per_s),
        ("bytes_per_s", policy.target_bytes_per_s, load.bytes_per_s),
    )
    windows = [one for one in zip(range(len(WINDOWS_S)), SPLIT_OVER.tolist(), strict=True) if one[1] < np.inf]
    found = (
        NearestSplit(measure, WINDOWS_S[at], over * target, rates[at])
        for measure, target, rates in measures
        for at, over in reversed(windows)
    )
    return max(found, key=lambda one: one.now / one.splits_at)


def decide(
    segments: Sequence[Segment],
    policies: Mapping[TopicId, ScalingPolicy],
    costs: Mapping[SegmentId, float],
    hosts: Sequence[Host],
    limit: int,
) -> list[Plan]:
    """Returns the next changes: at most `limit` splits, merges and gatherings, splits first, the most urgent of each
    first, at most one per segment. And all hot keys, at the end. The order of the arguments does not matter.

    Topics without a policy are left alone. Segments of one topic do not overlap. `costs` are those of `load.costs`.
    """
    if not segments or limit <= 0:
        return []
    columns = Columns(segments, policies, hosts)
    wanting, divisible = _wanting(columns)
    cuts = _cuts(columns, wanting & divisible, limit)
    joined = _joined(columns, wanting, limit - len(cuts))
    return [*_splits(columns, cuts, costs, hosts), *joined, *_hot_keys(columns, wanting & ~divisible)]


def hot_keys(
    segments: Sequence[Segment], policies: Mapping[TopicId, ScalingPolicy], hosts: Sequence[Host]
) -> list[HotKey]:
    """Returns the hot keys of `decide` alone."""
    if not segments:
        return []
    columns = Columns(segments, policies, hosts)
    wanting, divisible = _wanting(columns)
    return list(_hot_keys(columns, wanting & ~divisible))


def _wanting(columns: Columns) -> tuple[Flags, Flags]:
    """Returns the segments with too much load, and those that a split would help."""
    rest = _too_hot(columns, columns.plain * (1 - columns.hot_share[:, None]))
    divisible: Flags = (columns.high - columns.low > 1) & (rest | (columns.hot_share < HOT))
    return _too_hot(columns, columns.plain), divisible


def _too_hot(columns: Columns, rates: Floats) -> Flags:
    """Returns the free segments whose rates require a split, and that are old enough."""
    old = columns.age_s >= np.minimum(columns.cool_down_s, YOUNG_S)[columns.topic]
    hot: Flags = columns.free & old & (rates > SPLIT_OVER).any(axis=1)
    return hot


def _cuts(columns: Columns, wanted: Flags, limit: int) -> dict[int, Cut]:
    """Cuts the most urgent rows, as long as their topics have room."""
    room = (columns.max_segments - columns.most).tolist()
    over = columns.plain / SPLIT_OVER
    parts = np.ceil(np.where(over > 1, columns.rate, 0.0).max(axis=1)).tolist()
    rows = np.flatnonzero(wanted)
    cuts: dict[int, Cut] = {}
    for row in rows[np.argsort(-over[rows].max(axis=1), kind="stable")].tolist():
        key_range, load, topic = columns.segments[row].range, columns.loads[row], columns.topic[row]
        most = int(min(room[topic] + 1, MAX_PARTS, len(key_range)))
        if most < 2:
            continue
        made = cut(key_range, min(max(2, int(parts[row])), most), load.bins, load.hottest, load.hot_share)
        cuts[row] = made
        room[topic] -= len(made.points)
        if len(cuts) == limit:
            break
    return cuts


def _splits(
    columns: Columns, cuts: Mapping[int, Cut], costs: Mapping[SegmentId, float], hosts: Sequence[Host]
) -> Iterator[Split]:
    """Yields the splits, with owners for the successors, as if their segments no longer existed."""
    if not cuts:
        return
    totals: defaultdict[str, float] = defaultdict(float)
    siblings, topics = {}, {columns.segments[row].id[:2] for row in cuts}
    for row, segment in enumerate(columns.segments):
        if row not in cuts:
            totals[segment.owner] += costs.get(segment.id, 0.0)
            if segment.id[:2] in topics:
                siblings[segment.id] = segment.owner
    new: dict[SegmentId, float] = {}
    for row, made in cuts.items():
        cost = (columns.amounts[row, 0] * MESSAGE_BYTES + columns.amounts[row, 1]).max()
        new |= {_part(columns, row, at): cost * share for at, share in enumerate(made.shares)}
    owners = spread(new, siblings, totals, hosts)
    for row, made in cuts.items():
        parts = [owners[_part(columns, row, at)] for at in range(len(made.shares))]
        yield Split(columns.segments[row].id, made.points, tuple(parts))


def _part(columns: Columns, row: int, at: int) -> SegmentId:
    """Returns a placeholder for a successor: an id that no segment has."""
    topic, incarnation, number = columns.segments[row].id
    return topic, incarnation, ~(number * MAX_PARTS + at)


def _joined(columns: Columns, wanting: Flags, limit: int) -> Iterator[Merge | Gather]:
    """Yields merges of cool neighbours, the coolest first; equally cool ones from left to right, which pairs them."""
    level = _pair_levels(columns, wanting)
    spare = (columns.least - columns.min_segments + 1e-9).tolist()
    rows = np.flatnonzero((level < np.inf) & (np.array(spare) >= 1)[columns.topic[:-1]])
    taken: set[int] = set()
    for row in rows[np.argsort(np.floor(level[rows] / IDLE), kind="stable")].tolist():
        if len(taken) >= 2 * limit:
            return
        topic = columns.topic[row]
        if spare[topic] >= 1 and row not in taken and row + 1 not in taken:
            taken |= {row, row + 1}
            spare[topic] -= 1
            yield _merge(columns, row)


def _pair_levels(columns: Columns, wanting: Flags) -> Floats:
    """Returns the load of each row together with the next one, as a multiple of the target: the highest over the merge
    window, the shortest of at least two cool-downs, and all shorter ones. Infinite if the two cannot be merged."""
    cool_down_s, topic = columns.cool_down_s[columns.topic], columns.topic[:-1]
    ripe = columns.free & ~wanting & (np.minimum(columns.age_s, columns.observed_s) >= cool_down_s)
    pairs = ripe[:-1] & ripe[1:] & (topic == columns.topic[1:]) & (columns.high[:-1] == columns.low[1:])
    too_short = np.array([0.0, *WINDOWS_S[:-1]]) < 2 * cool_down_s[:, None]  # the window before each
    rates = columns.relative(columns.amounts[:-1] + columns.amounts[1:], topic)
    level = np.where(too_short[:-1], rates, 0.0).max(axis=1)
    own = np.where(too_short, columns.rate, 0.0).max(axis=1)
    share = np.bincount(columns.topic, own, len(columns.least)) / columns.min_segments
    pairs &= (level < MERGE_BELOW) & (level <= np.maximum(UNEVEN * share, IDLE)[topic])
    rows = np.flatnonzero(pairs)
    peaks = columns.relative(columns.peaks(rows) + columns.peaks(rows + 1), topic[rows])
    pairs[rows] = (peaks < MERGE_BELOW * SPLIT_OVER).all(axis=1)
    levels: Floats = np.where(pairs, level, np.inf)
    return levels


def _merge(columns: Columns, row: int) -> Merge | Gather:
    """Merges two segments of one broker; otherwise moves the cooler one first, of equal ones the smaller, then the
    right."""
    left, right = columns.segments[row : row + 2]
    if left.owner == right.owner:
        return Merge(left.id, right.id)
    rates = columns.rate[row : row + 2].max(axis=1).tolist()
    if (rates[0], len(left.range)) < (rates[1], len(right.range)):
        return Gather(left.id, right.id, left.owner, right.owner)
    return Gather(right.id, left.id, right.owner, left.owner)


def _hot_keys(columns: Columns, rows: Flags) -> Iterator[HotKey]:
    for row in np.flatnonzero(rows).tolist():
        segment, load = columns.segments[row], columns.loads[row]
        if len(segment.range) == 1 or load.hottest is None:
            yield HotKey(segment.id, segment.range.low, 1.0)
        else:
            yield HotKey(segment.id, load.hottest, load.hot_share)
