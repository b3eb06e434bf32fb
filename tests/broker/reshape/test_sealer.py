"""The producer tables of a segment that is sealed are those of its seal, whichever broker put it."""

from types import SimpleNamespace
from typing import Any, cast

from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape.sealer import Sealer
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import SegmentLocks
from seaweedq.clock import Clock, SystemIds
from seaweedq.coordination.records.topics import Intent, Successor, TopicConfig, TopicRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.errors import NotOwner
from seaweedq.journal.memory_journal import MemoryJournal
from seaweedq.levels import HIGHEST
from seaweedq.segments.entry import Seal
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.producers import FORWARD, Duplicate
from tests.support.brokers.commit_parts import StillClock, segment
from tests.support.levels import newest

CLOCK = StillClock()
SEAL = Seal((1,), ((0, KEY_SPACE),))
INTENT = Intent(1, "committed", (0,), (Successor(1, 0, KEY_SPACE),))


def flusher(clock: Clock = CLOCK) -> Flusher:
    return Flusher(
        EntryWriter("cluster", "broker.1", clock, SystemIds(), newest), lambda _: None, lambda *about: None, clock
    )


async def seal(one: OpenSegment, clock: Clock = CLOCK) -> None:
    ownership = cast(Any, SimpleNamespace(locks=SegmentLocks()))
    commit = GroupCommit(MemoryJournal(), clock, lambda: True)
    topic = Topic.of("t", Versioned(TopicRecord(0, "active", TopicConfig(), 0), 1))
    await Sealer(cast(Any, None), ownership, commit, flusher(clock), clock).seal(topic, INTENT, [one])


def forwarded() -> OpenSegment:
    """A segment that knows a forward which is not tried any more."""
    one = segment()
    one.producers.record(0, f"{FORWARD}b.0.0", 0, 6, 0, 7, 0)
    one.producers.expire(CLOCK.monotonic_s() - 601)
    return one


async def test_what_is_not_tried_any_more_is_not_in_the_seal() -> None:
    one = forwarded()
    await seal(one)
    assert one.chain.last is not None
    assert (one.chain.last.seal, one.chain.last.producers) == (SEAL, one.producers.encode(HIGHEST))
    assert not any(one.producers.parts)


async def test_a_seal_that_is_there_has_the_last_word_on_the_tables() -> None:
    """Its broker died before the successors were written: the next owner writes them, some time later."""
    one = segment()
    one.producers.record(0, f"{FORWARD}b.0.0", 0, 6, 0, 7, 0)
    one.pause(NotOwner("it is being replaced"))
    await flusher().seal(one, SEAL)
    await seal(one, StillClock(CLOCK.monotonic_s() + 601))
    assert one.chain.last is not None
    assert one.producers.encode(HIGHEST) == one.chain.last.producers
    assert one.producers.judge(0, f"{FORWARD}b.0.0", 0, 6, 7) == Duplicate(0, 0)
