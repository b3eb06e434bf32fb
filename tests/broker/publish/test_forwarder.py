"""Forwards: their identities go with the segments that they were named after, and come back under no name twice; none
waits longer than a publish may take, and nobody is forgotten.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.publish import forwarder
from seaweedq.broker.publish.forwarder import FLIGHTS, IDENTITIES, KEPT, Forwarder, Identities
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import SystemClock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import JournalRecord, TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Unavailable
from seaweedq.journal.home_folder import FolderLock
from seaweedq.segments.rows import rows_of_singles
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, make_topic, publish, running, single
from tests.support.brokers.in_process_cluster import InLoop, in_loop

TOPIC: Any = object()


class Segments:
    """Segments of a topic, of which some are sealed."""

    def __init__(self) -> None:
        self.sealed: set[int] = set()
        self.identities = Identities("b", lambda topic, segment: segment not in self.sealed)

    async def lent(self, stack: AsyncExitStack, segment: int) -> str:
        """The name of an identity, lent until the stack ends."""
        identity = await stack.enter_async_context(self.identities.lend(TOPIC, segment, Deadline(SystemClock(), 10)))
        return identity.sequences(1).producer

    async def used(self, segment: int) -> str:
        async with AsyncExitStack() as stack:
            return await self.lent(stack, segment)


async def test_those_of_sealed_segments_are_forgotten() -> None:
    """A topic whose one range is split 10,000 times."""
    segments = Segments()
    for segment in range(1_000):
        await segments.used(segment)
        segments.sealed.add(segment - 1)
        assert len(segments.identities) <= KEPT + 1


async def test_those_of_open_segments_stay_and_keep_their_sequences() -> None:
    segments = Segments()
    names = [await segments.used(segment) for segment in range(4 * KEPT)]
    assert [await segments.used(segment) for segment in range(4 * KEPT)] == names


async def test_what_is_in_flight_keeps_its_identity_and_no_name_comes_back() -> None:
    """A sealed segment's successors know the sequences of its identities: a new one of that name would lose rows."""
    segments = Segments()
    async with AsyncExitStack() as flight:
        names = {await segments.lent(flight, 0)}
        segments.sealed.add(0)
        for segment in range(1, 2 * KEPT):
            names.add(await segments.used(segment))
            segments.sealed.add(segment)
        assert (TOPIC, 0) in privates.free(segments.identities)
        for _ in range(IDENTITIES - 1):
            names.add(await segments.lent(flight, 0))
    for segment in range(2 * KEPT, 4 * KEPT):
        names.add(await segments.used(segment))
        segments.sealed.add(segment)
    assert (TOPIC, 0) not in privates.free(segments.identities)
    assert await segments.used(0) not in names, "a publish that looked before the segment was sealed"


async def test_one_that_waits_during_a_sweep_gets_what_comes_back() -> None:
    segments = Segments()
    async with AsyncExitStack() as flight:
        for _ in range(IDENTITIES):
            await segments.lent(flight, 0)
        waiting = asyncio.create_task(segments.used(0))
        await asyncio.sleep(0)
        segments.sealed.add(0)
        segments.identities.sweep()
    assert await asyncio.wait_for(waiting, 20)


TIMEOUT_S = 1.0


async def deaf_owner(together: InLoop) -> tuple[Broker, Topic]:
    """A broker, and a topic whose owner never answers a forward."""
    one, two = together.brokers
    await inside.topic_admin(two).create("t", TopicConfig())
    topic = await inside.catalog(one).require("t")
    await inside.catalog(one).load_topic(topic)
    inside.forward_receiver(two).receive = Gate()  # type: ignore[method-assign]
    return one, topic


@pytest.mark.brokers
async def test_batches_wait_for_others_no_longer_than_a_publish_may_take(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=2 * TIMEOUT_S) as together:
        one, topic = await deaf_owner(together)
        rows = _rows(topic)
        batches = [asyncio.create_task(inside.publisher(one).batch(topic, rows, None)) for _ in range(4 * IDENTITIES)]
        async with asyncio.timeout(7 * TIMEOUT_S):  # one after another they would take 8
            outcomes = await asyncio.gather(*batches, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {Unavailable}


@pytest.mark.brokers
async def test_singles_that_find_no_slot_are_told_and_those_after_them_go_on(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=TIMEOUT_S) as together:
        one, topic = await deaf_owner(together)
        places = [inside.identities(one).lend(topic, 0, Deadline(SystemClock(), 1)) for _ in range(IDENTITIES)]
        for place in places:
            await place.__aenter__()
        with pytest.raises(Unavailable):
            await inside.publisher(one).single(topic, single("1"), None)
        for place in places:
            await place.__aexit__(None, None, None)
        del inside.forward_receiver(together.brokers[1]).receive
        await publish(one, topic, "2")


@pytest.mark.brokers
async def test_a_stop_ends_the_appends_of_gathered_messages(tmp_path: Path) -> None:
    """They went on after the broker had left, until the time for a publish was over."""
    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        one, topic = await deaf_owner(together)
        waiting = asyncio.create_task(inside.publisher(one).single(topic, single("1"), None))
        while not (begun := [task for task in asyncio.all_tasks() if "_append_gathered" in repr(task.get_coro())]):
            await asyncio.sleep(0.01)
        (publishing,) = [service for service in one.services if isinstance(service, Publishing)]
        await publishing.stop()
        assert all(task.done() for task in begun)
        with pytest.raises(Unavailable):
            await waiting


class SilentPeers:
    """Brokers that never answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def post(self, url: str, call: str, body: bytes, timeout_s: float) -> bytes:
        self.asked += 1
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("count", [1, 3 * FLIGHTS])
async def test_a_stop_ends_what_no_other_broker_answers(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Under way, or waiting for its turn: it would go on until the time for a publish is over."""
    monkeypatch.setattr(forwarder, "FORWARD_BYTES", 1)
    monkeypatch.setattr(forwarder, "encode_forward", lambda frames: b"")
    peers: Any = SilentPeers()
    links, before = Forwarder(peers, 10), asyncio.all_tasks()
    frame: Any = SimpleNamespace(header=SimpleNamespace(length=1))
    outcomes = [links.send("http://b", frame) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert peers.asked == min(count, FLIGHTS)
    await links.stop()
    assert asyncio.all_tasks() == before
    assert [type(one.exception()) for one in outcomes] == [Unavailable] * count


@pytest.mark.brokers
async def test_an_owner_knows_what_the_sender_has_seen_of_coordination(tmp_path: Path) -> None:
    """Rows may name an upload that was claimed then: the owner's journal states that revision."""
    async with in_loop(tmp_path) as together:
        one, topic = await deaf_owner(together)
        two = together.brokers[1]
        del inside.forward_receiver(two).receive
        await publish(one, topic, "1")
        revision = await one.coordination.commit([], [Put("passed", b"")])
        assert revision is not None
        assert two.coordination.seen < revision
        await publish(one, topic, "2")
        assert two.coordination.seen >= revision


async def test_nobody_waits_for_quiet_once_no_commit_can_come_any_more(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        gate = Gate()
        inside.journal(broker).append = gate  # type: ignore[method-assign, assignment]
        publishing = asyncio.create_task(publish(broker, topic, "1"))
        await gate.reached.wait()
        quiet = asyncio.create_task(inside.group_commit(broker).wait_until_idle())
        (commits,) = [task for task in privates.tasks(broker) if task.get_name() == "group commit"]
        commits.cancel()
        async with asyncio.timeout(15):
            await quiet
        with pytest.raises(Unavailable):
            await publishing


async def test_a_folder_of_another_broker_is_not_even_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "folder-id").write_text("another")
    async with running(tmp_path / "own") as broker:
        locked: list[Path] = []
        monkeypatch.setattr(FolderLock, "acquire", lambda self, wait_s=0: locked.append(self.folder))
        record = JournalRecord("file", "the one that is meant", str(other))
        assert await inside.recovery(broker).recover("gone.1", Versioned(record, 1)) is False
        assert locked == []


def _rows(topic: Topic) -> pa.RecordBatch:

    return rows_of_singles([single("1")], topic.layout)
