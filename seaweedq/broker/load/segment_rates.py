"""Rates of segments that their owner reports to observers, and keys too hot to be split. Decides nothing.

It reports what the owner itself has seen: of a segment that was moved, the rows since then.
"""

from collections.abc import Mapping

import msgspec

from seaweedq.balancer.load import IDLE, Averages, SegmentLoad
from seaweedq.balancer.placement import Host
from seaweedq.balancer.scaling import NearestSplit, hot_keys, nearest_split
from seaweedq.broker.load.meters import policy_of, segment_of
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.segment_index import Records


class Observed(msgspec.Struct, array_like=True, frozen=True):
    """The rates of an open segment a second, by window, corrected. `hot_key` is the hash, with its share (0 to 1), of
    the one key because of which an overloaded segment is not split. `nearest` is None where the topic does not split by
    itself; `is_full` tells that it has as many segments as it may have."""

    messages_per_s: Averages = IDLE
    bytes_per_s: Averages = IDLE
    hot_key: tuple[int, float] | None = None
    nearest: NearestSplit | None = None
    is_full: bool = False


def observed(topic: Topic, records: Records, loads: Mapping[int, SegmentLoad], now_us: int) -> dict[int, Observed]:
    """Returns the rates of the segments of a topic that have these loads, by number."""
    hot, policy = _hot(topic, records, loads, now_us), policy_of(topic)
    is_full = sum(known.record.state == "open" for known in records.values()) >= policy.max_segments
    return {
        number: Observed(
            load.corrected_messages_per_s,
            load.corrected_bytes_per_s,
            hot.get(number),
            nearest_split(load, policy) if policy.enabled else None,
            is_full,
        )
        for number, load in loads.items()
    }


def _hot(topic: Topic, records: Records, loads: Mapping[int, SegmentLoad], now_us: int) -> dict[int, tuple[int, float]]:
    name = (topic.name, topic.record.incarnation)
    busy = {number: load for number, load in loads.items() if any(load.messages_peaks) and number in records}
    segments = [segment_of((*name, number), records[number].record, load, now_us) for number, load in busy.items()]
    hosts = [Host(owner) for owner in dict.fromkeys(segment.owner for segment in segments)]
    found = hot_keys(segments, {name: policy_of(topic)}, hosts)
    return {plan.segment[2]: (plan.hash, plan.share) for plan in found}
