"""The requests that brokers send one another below /internal. Their fields keep their order: they travel as arrays."""

import msgspec

from seaweedq.broker.rpc.fields import Count, Id, Seconds, Time, TopicName


class TopicCall(msgspec.Struct, array_like=True):
    """Names a topic to another broker. `sizes` asks for the bytes of its segments, `flush` for a flush before."""

    topic: TopicName
    incarnation: Id
    sizes: bool = False
    flush: bool = False


class EndsCall(msgspec.Struct, array_like=True):
    """Asks for the ends of a broker's segments of a topic, as soon as they differ from `known` or `wait_s` has
    passed."""

    topic: TopicName
    incarnation: Id
    known: dict[int, int]
    wait_s: Seconds


class SegmentCall(msgspec.Struct, array_like=True):
    """Asks about one segment: rows or bytes from `offset` on, or the first offset whose time is `timestamp_us`."""

    topic: TopicName
    incarnation: Id
    segment: Id
    offset: Count = 0
    limit: Count = 0
    max_bytes: Count = 0
    timestamp_us: Time = 0


class GiveCall(msgspec.Struct, array_like=True):
    """Asks the owner of a segment to give it to the broker `target`."""

    topic: TopicName
    incarnation: Id
    segment: Id
    target: str


class RecoverCall(msgspec.Struct, array_like=True):
    """Asks a broker to recover the journal of `broker`, which is gone."""

    broker: str


class BrokerStatus(msgspec.Struct, array_like=True):
    """The bytes that a broker holds in memory and in its journal."""

    tail_bytes: int
    unreleased_journal_bytes: int
