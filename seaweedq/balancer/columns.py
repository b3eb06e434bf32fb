"""The open segments of all topics as columns, so that a hundred thousand are judged at once. Decides nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from seaweedq.balancer.load import COST_WINDOW, MESSAGE_BYTES, SegmentLoad
from seaweedq.balancer.placement import Host, SegmentId
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.rates import WINDOWS_S
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
    """An open segment, `age_s` seconds after it was made. Its load is None where its owner, if any, did not say.

    What is locked is left alone; it `becomes` so many segments: a fraction for each that a merge takes.
    """

    id: SegmentId
    range: KeyRange
    owner: str
    age_s: float
    load: SegmentLoad | None
    locked: bool = False
    becomes: float = 1.0


class Columns:
    """One row a segment, by topic and then by range; one of each topic's policy, which `topic` of a row points into.

    `free` are those that may be changed: known, not locked, of a topic that scales, at a broker that takes segments.
    `rate` and `plain` are multiples of the target, corrected and not, of messages or bytes, whichever is more. `cost`
    is as in SegmentLoad.
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
        self._set_rates(self.loads)
        takers = {host.broker for host in hosts if not host.draining}
        free = (s.load is not None and not s.locked and s.owner in takers for s in self.segments)
        self.free: Flags = np.fromiter(free, bool, len(segments)) & self.enabled[self.topic]

    def _count(self, topics: int) -> None:
        """How many segments the topics have at the least and at the most once what is under way has ended."""
        becomes = _floats(segment.becomes for segment in self.segments)
        self.least = np.bincount(self.topic, np.minimum(becomes, 1.0), topics)
        self.most = np.bincount(self.topic, np.maximum(becomes, 1.0), topics)

    def _set_policies(self, policies: Sequence[ScalingPolicy]) -> None:
        self.enabled: Flags = np.array([policy.enabled for policy in policies], bool)
        self.min_segments = _ints(policy.min_segments for policy in policies)
        self.max_segments = _ints(policy.max_segments for policy in policies)
        self.cool_down_s = _floats(policy.cool_down_s for policy in policies)
        self.target_messages = _floats(policy.target_messages_per_s for policy in policies)
        self.target_bytes = _floats(policy.target_bytes_per_s for policy in policies)

    def _set_rates(self, loads: Sequence[SegmentLoad]) -> None:
        shape = (len(loads), len(WINDOWS_S))
        messages = _floats(chain.from_iterable(load.messages_per_s for load in loads)).reshape(shape)
        size = _floats(chain.from_iterable(load.bytes_per_s for load in loads)).reshape(shape)
        self.observed_s = _floats(load.observed_s for load in loads)
        self.hot_share = _floats(load.hot_share for load in loads)
        self.plain = self.relative(messages, size, self.topic)
        observed = -np.expm1(-self.observed_s[:, None] / np.array(WINDOWS_S))
        observed[self.observed_s <= 0] = 1.0
        self.messages_per_s = messages / observed
        self.bytes_per_s = size / observed
        self.rate = self.relative(self.messages_per_s, self.bytes_per_s, self.topic)
        self.cost = self.bytes_per_s[:, COST_WINDOW] + MESSAGE_BYTES * self.messages_per_s[:, COST_WINDOW]

    def relative(self, messages: Floats, size: Floats, topic: Ints) -> Floats:
        """Rates by window as multiples of the topics' targets."""
        of_messages = messages / self.target_messages[topic][:, None]
        of_bytes = size / self.target_bytes[topic][:, None]
        worse: Floats = np.maximum(of_messages, of_bytes)
        return worse


def _numbered(keys: Iterable[TopicId]) -> tuple[list[TopicId], Ints]:
    """The distinct keys in order, and the place of each key among them."""
    given = list(keys)
    distinct = sorted(set(given))
    places = {key: at for at, key in enumerate(distinct)}
    return distinct, _ints(map(places.__getitem__, given))


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, np.float64)
