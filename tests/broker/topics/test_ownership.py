"""Locks of segments, the opening of a segment, and the segments and journals that brokers which are gone have left."""

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import NAMED, OPENINGS, Holder, SegmentLocks, find_orphaned_topics
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import BrokerRecord, JournalRecord, TopicConfig, TopicRecord, UnknownJournal
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import StoreUnavailable
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.held_lookups import HeldStore
from tests.support.brokers.in_process import Gate, make_topic
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.http.with_tokens import Http

MOVE, INTENT = Holder("it moves"), Holder("an intent replaces it")


def topic(incarnation: int = 0) -> Topic:
    return Topic.from_record("t", Versioned(TopicRecord(incarnation, "active", TopicConfig(), 0), 1))


def test_a_locked_segment_is_refused_to_all_others() -> None:
    locks, one = SegmentLocks(), topic()
    assert locks.acquire(one, [1], MOVE)
    assert locks.holder(one, 1) is MOVE
    assert not locks.acquire(one, [1], INTENT)
    assert not locks.acquire(one, [1], Holder("it moves")), "another move is another holder"
    assert locks.acquire(one, [2], INTENT)


def test_all_are_locked_or_none() -> None:
    locks, one = SegmentLocks(), topic()
    locks.acquire(one, [2], MOVE)
    assert not locks.acquire(one, [1, 2, 3], INTENT)
    assert locks.locked() == [(one, 2)]
    locks.release(one, [2], MOVE)
    assert locks.acquire(one, [1, 2, 3], INTENT)
    assert locks.locked(INTENT) == [(one, 1), (one, 2), (one, 3)]


def test_who_has_a_lock_gets_it_again_and_releases_it_once() -> None:
    locks, one = SegmentLocks(), topic()
    assert locks.acquire(one, [1], INTENT)
    assert locks.acquire(one, [1, 2], INTENT)
    locks.release(one, [1, 2], INTENT)
    locks.release(one, [1, 2], INTENT)
    assert locks.locked() == []
    assert locks.holder(one, 1) is None


def test_nobody_releases_what_another_one_holds() -> None:
    locks, one = SegmentLocks(), topic()
    locks.acquire(one, [1], MOVE)
    locks.release(one, [1, 2], INTENT)
    assert locks.holder(one, 1) is MOVE
    assert locks.locked(INTENT) == []


def test_topics_of_one_name_have_locks_of_their_own_which_go_with_them() -> None:
    locks, old, new = SegmentLocks(), topic(0), topic(7)
    locks.acquire(old, [1], MOVE)
    assert locks.holder(new, 1) is None
    assert locks.acquire(new, [1], INTENT)
    del old
    gc.collect()
    assert locks.locked() == [(new, 1)]


@pytest.mark.brokers
async def test_an_opening_that_fails_when_nobody_waits_is_told_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        assert await Http(together, "").status("PUT", "/v1/topics/t", None) == 201
        ownership, topic = inside.ownership(broker), await inside.catalog(broker).require("t")
        topic.opened.clear()
        begun, fails = asyncio.Event(), asyncio.Event()

        async def failing(*_: object) -> None:
            """Fails once it may."""
            begun.set()
            await fails.wait()
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(ownership, "_open", failing)
        asking = [asyncio.create_task(ownership.open(topic, 0)) for _ in range(2)]
        await begun.wait()
        (opening,) = privates.openings(ownership).values()
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        fails.set()
        await asyncio.wait([opening])
        assert not privates.openings(ownership)
        asking.clear()
        del opening, one  # nothing else holds the error
        gc.collect()
        assert not heard
        monkeypatch.undo()
        assert await ownership.open(topic, 0) is not None


@pytest.mark.brokers
async def test_a_segment_that_has_left_while_others_were_opened_is_not_opened(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, store=HeldStore()) as together:
        (one,) = together.brokers
        topic = await make_topic(one, segments=OPENINGS + 1)
        topic.opened.clear()
        assert isinstance(together.store, HeldStore)
        together.store.gate = gate = Gate()
        ownership, last = inside.ownership(one), OPENINGS
        opening = [asyncio.create_task(ownership.open(topic, number)) for number in range(OPENINGS + 1)]
        await gate.reached.wait()
        key, held = keys.SEGMENTS.key("t", topic.record.incarnation, last), inside.catalog(one).segment(topic, last)
        given = held.with_record(replace(held.record, owner="other", term=(1, 2)))
        await inside.catalog(one).commit([], [Put(key, keys.SEGMENTS.encode(given))])
        together.store.gate = None
        gate.open.set()
        opened = await asyncio.gather(*opening)
        assert [segment.id for segment in opened if segment] == list(range(OPENINGS))
        assert last not in topic.opened


LIVING = BrokerRecord("http://b", "b", 0)


class Cluster:
    """A catalog and a roster in one."""

    def __init__(self, owned: dict[str | None, list[Any]], journals: dict[str, Any], living: BrokerRecord = LIVING):
        self.owned = owned
        self.journals = {one: journal for one, journal in journals.items() if not isinstance(journal, Unreadable)}
        self.unreadable_journals = {one: each for one, each in journals.items() if isinstance(each, Unreadable)}
        self.brokers = {"living": SimpleNamespace(record=living)}

    def owners(self) -> list[str | None]:
        return list(self.owned)

    def owned_by(self, owner: str | None) -> list[Any]:
        return self.owned.get(owner, [])

    def alive(self, broker: str | None) -> bool:
        return broker in self.brokers

    def journal(self, broker: str) -> Any:
        return self.journals.get(broker) or self.unreadable_journals.get(broker)


def held(**more: Any) -> Any:
    return Versioned.new(JournalRecord("file", "f1", **more))


def told(owned: dict[str | None, list[Any]], journals: dict[str, Any], **more: Any) -> list[Any]:
    cluster: Any = Cluster(owned, journals, **more)
    return find_orphaned_topics(cluster, cluster)


def test_nothing_is_left_where_all_live() -> None:
    assert told({"living": [("t", 0, 0)]}, {"living": held()}) == []
    assert told({}, {"dead": held(recovered=True)}) == [], "only its content is still to be removed"


@pytest.mark.parametrize(
    ("journal", "state", "says"),
    [
        (held(), "recovering", "(kind file)"),
        (held(path="/data"), "recovering", "in the folder /data"),
        (held(needs_newer=True, lowest=2, highest=9), "needs-newer-broker", "levels 2 to 9)"),
        (held(left=("u",)), "partly-recovered", "cannot be read: u"),
        (held(unknown=UnknownJournal(7, "its mirrors are gone")), "unknown", "(kind file): its mirrors are gone"),
        (held(recovered=True), "unassigned", "about to give them"),
        (Unreadable("journals/dead", "of level 9", 3), "needs-newer-broker", "of level 9"),
        (None, "unassigned", "about to give them"),
    ],
)
def test_why_the_segments_of_a_dead_broker_wait(journal: Any, state: str, says: str) -> None:
    (found,) = told({"dead": [("t", 0, 1), ("t", 0, 2), ("u", 0, 0)]}, {"dead": journal} if journal else {})
    assert (found.broker, found.state, found.segments, found.topics) == ("dead", state, 3, ("t", "u"))
    assert says in found.why
    assert found.since_us == (7 if state == "unknown" else None)


def test_segments_without_owner_journals_without_segments_and_no_taker() -> None:
    many = [(f"t{n:02d}", 0, 0) for n in range(30)]
    found = told({None: many}, {"dead": held()})
    assert [(one.broker, one.segments, len(one.topics)) for one in found] == [(None, 30, NAMED), ("dead", 0, 0)]
    draining = BrokerRecord("http://b", "b", 0, draining=True)
    (one,) = told({None: many}, {}, living=draining)
    assert one.why == "no broker accepts segments now"
