"""The open segments of all topics as columns, so that a hundred thousand are judged at once. Decides nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from seaweedq.balancer.load import SegmentLoad
from seaweedq.balancer.placement import Host, SegmentId
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.rates import WINDOWS_S, Averages
from seaweedq.segments.keyrange import KeyRange

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
TopicId = tuple[str, int]
"""Topic, incarnation."""

_UNKNOWN = SegmentLoad()
_NO_POLICY = ScalingPolicy(enabled=False)


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
        self._count(len(topics))
        self._set_policies([policies.get(each, _NO_POLICY) for each in topics])
        self.loads = [segment.load or _UNKNOWN for segment in self.segments]
        self._set_rates()
        takers = {host.broker for host in hosts if not host.draining}
        free = (s.load is not None and not s.locked and s.owner in takers for s in self.segments)
        self.free: Flags = np.fromiter(free, bool, len(segments)) & self.enabled[self.topic]

    def _count(self, topics: int) -> None:
        """Counts the least and the most segments that the topics can have once the current changes have ended."""
        becomes = _floats(segment.becomes for segment in self.segments)
        self.least = np.bincount(self.topic, np.minimum(becomes, 1.0), topics)
        self.most = np.bincount(self.topic, np.maximum(becomes, 1.0), topics)

    def _set_policies(self, policies: Sequence[ScalingPolicy]) -> None:
        self.enabled: Flags = np.array([policy.enabled for policy in policies], bool)
        self.min_segments = _ints(policy.min_segments for policy in policies)
        self.max_segments = _ints(policy.max_segments for policy in policies)
        self.cool_down_s = _floats(policy.cool_down_s for policy in policies)
        self._targets: Floats = np.array([(p.target_messages_per_s, p.target_bytes_per_s) for p in policies], float)

    def _set_rates(self) -> None:
        self.observed_s = _floats(load.observed_s for load in self.loads)
        self.hot_share = _floats(0.0 if load.hottest is None else load.hot_share for load in self.loads)
        amounts = _by_window((load.messages_per_s, load.bytes_per_s) for load in self.loads)
        known_s = np.maximum(self.observed_s, 1.0)  # what came in less says nothing
        self.amounts: Floats = amounts / -np.expm1(-known_s[:, None, None] / np.array(WINDOWS_S))
        self.plain = self.relative(amounts, self.topic)
        self.rate = self.relative(self.amounts, self.topic)

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
