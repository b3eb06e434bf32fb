"""What to split and what to merge: pure decisions over the open segments of all topics, no I/O, clock or randomness.

The rules are Pravega's (its auto-scaling by the rates of a segment), with splits where the load is halved instead of
the range. They do not go to and fro, since a split asks for at least twice what a merge leaves, and by plain rates,
which begin anew at every successor.

It refuses: to touch what is locked, unknown, or at a broker that drains or is gone; and to carry anything out.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from seaweedq.balancer.columns import Columns, Flags, Floats, Segment, TopicId
from seaweedq.balancer.cutting import Cut, cut
from seaweedq.balancer.load import MESSAGE_BYTES
from seaweedq.balancer.placement import Host, SegmentId, spread
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.rates import WINDOWS_S

SPLIT_OVER = np.array([5.0, 2.0, 1.0, np.inf])
"""Of the target, by window: a flood is answered at once, what is a little too much only if it lasts."""
MERGE_BELOW = 0.5
"""Of the target, for two segments together; and as a share of what would be split again, for their peaks."""
HOT = 0.5
"""Which share of its load makes a hash hot: a split halves the load of any segment without such a one."""
UNEVEN = 2.0
"""How much more than its share of the fewest segments a merged one may have."""
IDLE = 0.05
"""Of the target: what is below it is idle, and its share does not matter."""
MAX_PARTS = 32
YOUNG_S = 10.0
"""A segment younger than that, or than the cool-down, is not split: of its rates too little is known."""


@dataclass(frozen=True, slots=True)
class Split:
    """Seal a segment; its successors begin at its own low end and at the points. `owners` has a broker for each."""

    segment: SegmentId
    points: tuple[int, ...]
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Seal two neighbours that one broker owns; their successor has the range of both."""

    left: SegmentId
    right: SegmentId


@dataclass(frozen=True, slots=True)
class Gather:
    """Hand a segment over to the owner of the neighbour with which it is to be merged later."""

    segment: SegmentId
    neighbour: SegmentId
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class HotKey:
    """A segment has too much, and a split would not help: one hash has so large a share of it."""

    segment: SegmentId
    hash: int
    share: float


Plan = Split | Merge | Gather | HotKey


def decide(
    segments: Sequence[Segment],
    policies: Mapping[TopicId, ScalingPolicy],
    costs: Mapping[SegmentId, float],
    hosts: Sequence[Host],
    limit: int,
) -> list[Plan]:
    """What to do now: at most `limit` splits, merges and gatherings, splits first, and the most urgent of each first;
    at most one of a segment. And all hot keys, at the end. The order of the arguments does not matter.

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
    """The hot keys of `decide` alone."""
    if not segments:
        return []
    columns = Columns(segments, policies, hosts)
    wanting, divisible = _wanting(columns)
    return list(_hot_keys(columns, wanting & ~divisible))


def _wanting(columns: Columns) -> tuple[Flags, Flags]:
    """The segments that get too much, and those that a split would help."""
    rest = _too_hot(columns, columns.plain * (1 - columns.hot_share[:, None]))
    divisible: Flags = (columns.high - columns.low > 1) & (rest | (columns.hot_share < HOT))
    return _too_hot(columns, columns.plain), divisible


def _too_hot(columns: Columns, rates: Floats) -> Flags:
    """The free segments whose rates ask for a split, and that are old enough."""
    old = columns.age_s >= np.minimum(columns.cool_down_s, YOUNG_S)[columns.topic]
    hot: Flags = columns.free & old & (rates > SPLIT_OVER).any(axis=1)
    return hot


def _cuts(columns: Columns, wanted: Flags, limit: int) -> dict[int, Cut]:
    """How to cut the most urgent rows, as long as their topics have room."""
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
    """The splits, with owners for the successors, as if their segments were not there any more."""
    if not cuts:
        return
    totals: defaultdict[str, float] = defaultdict(float)
    kin, topics = {}, {columns.segments[row].id[:2] for row in cuts}
    for row, segment in enumerate(columns.segments):
        if row not in cuts:
            totals[segment.owner] += costs.get(segment.id, 0.0)
            if segment.id[:2] in topics:
                kin[segment.id] = segment.owner
    new: dict[SegmentId, float] = {}
    for row, made in cuts.items():
        cost = (columns.amounts[row, 0] * MESSAGE_BYTES + columns.amounts[row, 1]).max()
        new |= {_part(columns, row, at): cost * share for at, share in enumerate(made.shares)}
    owners = spread(new, kin, totals, hosts)
    for row, made in cuts.items():
        parts = [owners[_part(columns, row, at)] for at in range(len(made.shares))]
        yield Split(columns.segments[row].id, made.points, tuple(parts))


def _part(columns: Columns, row: int, at: int) -> SegmentId:
    """What stands for a successor: an id that no segment has."""
    topic, incarnation, number = columns.segments[row].id
    return topic, incarnation, ~(number * MAX_PARTS + at)


def _joined(columns: Columns, wanting: Flags, limit: int) -> Iterator[Merge | Gather]:
    """Merges of cool neighbours, the coolest first; those that are as cool from left to right, which pairs them."""
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
    """What each row and the next one take together, as a multiple of the target: the highest over the merge window,
    the shortest of at least two cool-downs, and all shorter ones. Infinite where they cannot be merged."""
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
    """Merge where one broker has both; else the cooler one goes first, of equal ones the smaller, then the right."""
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
