"""Producer tables over a seal: they are those of the seal, whichever broker put it, and a successor that stays at its
owner is opened from what that one knows, only if nobody can have written to it.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape.sealer import Sealer
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Holder, SegmentLocks
from seaweedq.clock import Clock, SystemIds
from seaweedq.coordination.records import Intent, Successor, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotOwner
from seaweedq.journal.memory_journal import MemoryJournal
from seaweedq.levels import HIGHEST
from seaweedq.segments.entry import Seal
from seaweedq.segments.keyrange import KEY_SPACE
from seaweedq.segments.producers import FORWARD, Duplicate, ProducerTables
from tests.support.brokers import inside
from tests.support.brokers.commit_parts import StillClock, segment
from tests.support.levels import newest
from tests.support.reshape.scene import scene

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


# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


async def test_publishes_after_a_split_ask_the_store_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as here:
        owner = await here.owner(0)
        asked: list[str] = []
        await here.go()
        here.cluster.store.faults = lambda moment, name: asked.append(f"{moment} {name}")
        here.plan([0], [2**30])
        await here.until_sealed(0)
        await here.more(20)
        topic = inside.topic(owner, "t")
        successors = inside.catalog(owner).segment(topic, 0).record.successors
        assert [topic.opened[number].chain.last for number in successors] == [None, None]
        folders = tuple(f"topics/t/segment={number}/" for number in successors)
        assert [one for one in asked if one.startswith(("before list", "before open")) and one.endswith(folders)] == []


async def test_what_somebody_may_have_written_to_is_opened_at_the_store(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as here:
        owner = await here.owner(0)
        topic = inside.topic(owner, "t")
        opened = await inside.ownership(owner).opened(topic, 0)
        del topic.opened[0]
        revision = inside.catalog(owner).segment(topic, 0).revision
        tables = [ProducerTables.empty(0, opened.source.key_range)]
        inside.ownership(owner).begin(topic, 0, revision - 1, tables)
        assert 0 not in topic.opened, "its record has changed since"
        moving = Holder("it moves")
        inside.ownership(owner).locks.take(topic, [0], moving)
        inside.ownership(owner).begin(topic, 0, revision, tables)
        assert 0 not in topic.opened, "it is on its way to another broker"
        inside.ownership(owner).locks.release(topic, [0], moving)
        inside.ownership(owner).begin(topic, 0, revision, tables)
        assert topic.opened.pop(0).end == 0
        topic.opened[0] = opened
