"""Publishing: over a journal that fails and halts a 200 is stored, and a repeat shares the fate of the first;
`publish_timeout_s` covers all of a publish, and stores that hang hold up nobody who needs no store.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.log.entry_writer import Source
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.publish.local_append import LocalAppender
from seaweedq.broker.publish.publisher import Producer, Publisher
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.segment_index import Routing
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.concurrency.futures import Signal
from seaweedq.coordination.records import TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalUnavailable, NotReady, SequenceOutOfOrder
from seaweedq.segments.chain import Chain
from seaweedq.segments.keyrange import hash_key, tile
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, held, make_topic, publish, running
from tests.support.journal.memory_journal import MemoryJournal

LAYOUT = Layout.from_format(Format.JSON)


class Parts:
    """A topic of some segments on a journal in memory. `gate` holds its appends up, `fault` makes them fail."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.fault = False
        self.leased = True
        self.commit = GroupCommit(MemoryJournal(self._hook), SystemClock(), lambda: self.leased)
        self.topic = Topic.from_record("t", Versioned(TopicRecord(0, "active", TopicConfig(), 0), 1))
        local = LocalAppender(self.commit)  # all segments are its own
        self.publisher = Publisher(None, self.commit, local, None, SystemIds(), SystemClock(), 10)
        self.segments: list[OpenSegment] = []

    async def _hook(self, frames):
        fault = self.fault
        self.begun.set()
        await self.gate.wait()
        if fault:
            raise JournalUnavailable("a full disk")

    async def open(self, count):
        store, ranges = MemoryStore(), tile(count)
        for number, key_range in enumerate(ranges):
            chain = Chain(store, "t", number)
            await chain.open()
            source = Source("t", number, key_range, LAYOUT, owner="me")
            producers = ProducerTables.empty(number, key_range)
            mine = OpenSegment(source, chain, producers, Budget(2**30), Signal(), lambda segment: None)
            self.segments.append(mine)
        self.topic.opened = dict(enumerate(self.segments))
        bounds = np.array([each.low for each in ranges], np.int32)
        self.topic.routing = Routing(bounds, list(range(count)), [*self.segments])

    def batch(self, sequence, keys):
        rows = rows_of_singles([single(key, sequence + n) for n, key in enumerate(keys)], LAYOUT)
        return self.publisher.batch(self.topic, rows, Producer("p", sequence))

    def single(self, sequence, key=None):
        message = single(key, sequence)
        return self.publisher.single(self.topic, message, Producer("p", sequence))

    def stored(self, segment=0):
        """The values in a segment, in order: sequence numbers."""
        pieces = self.segments[segment].tail.since(0)
        return [int(text) for piece in pieces for text in piece.rows.column("value").to_pylist()]

    def key_of(self, segment):
        """A key that belongs to a segment."""
        key_range = self.segments[segment].source.key_range
        return next(key for key in map(str, range(10_000)) if hash_key(key) in key_range)

    async def lose(self, publish):
        """A publish that fails in the journal."""
        self.fault = True
        with pytest.raises(JournalUnavailable):
            await publish
        self.fault = False


def single(key, n):
    return Single(key, str(n).encode(), None, 1_700_000_000_000_000, None)


@pytest.fixture
async def parts():
    parts = Parts()
    await parts.open(2)
    running = asyncio.create_task(parts.commit.run())
    yield parts
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_lost_batch_followed_by_a_later_one_is_never_answered_as_stored(parts):
    key = parts.key_of(0)
    await parts.lose(parts.batch(0, [key] * 3))
    assert not (await parts.batch(3, [key] * 2)).duplicate
    with pytest.raises(SequenceOutOfOrder):
        await parts.batch(0, [key] * 3)
    with pytest.raises(SequenceOutOfOrder):
        await parts.single(1, key)
    assert parts.stored() == [3, 4]


async def test_a_lost_batch_that_is_repeated_at_once_is_taken_as_new(parts):
    key = parts.key_of(0)
    await parts.lose(parts.batch(0, [key] * 3))
    assert not (await parts.batch(0, [key] * 3)).duplicate
    assert (await parts.batch(0, [key] * 3)).duplicate
    assert parts.stored() == [0, 1, 2]


async def test_of_a_lost_batch_over_two_segments_none_is_taken_if_one_refuses(parts):
    zero, one = parts.key_of(0), parts.key_of(1)
    await parts.lose(parts.batch(0, [zero, one]))
    await parts.batch(2, [one])
    with pytest.raises(SequenceOutOfOrder):
        await parts.batch(0, [zero, one])
    assert (parts.stored(0), parts.stored(1)) == ([], [2])


async def test_a_lost_batch_is_taken_when_the_later_one_went_to_another_segment(parts):
    await parts.lose(parts.batch(0, [parts.key_of(0)]))
    await parts.batch(1, [parts.key_of(1)])
    assert not (await parts.batch(0, [parts.key_of(0)])).duplicate
    assert (parts.stored(0), parts.stored(1)) == ([0], [1])


@pytest.mark.parametrize("lost", [False, True])
async def test_a_repeat_shares_the_fate_of_the_first_while_that_is_not_durable(parts, lost):
    key = parts.key_of(0)
    parts.fault = lost
    parts.gate.clear()
    first = asyncio.create_task(parts.batch(0, [key] * 2))
    await parts.begun.wait()
    repeats = [asyncio.create_task(parts.batch(0, [key] * 2)) for _ in range(2)]
    _, waiting = await asyncio.wait(repeats, timeout=0.1)
    assert len(waiting) == 2  # not a word before the first is durable
    parts.gate.set()
    outcomes = await asyncio.gather(first, *repeats, return_exceptions=True)
    if lost:
        assert [type(outcome) for outcome in outcomes] == [JournalUnavailable] * 3
        assert parts.stored() == []
    else:
        assert [[p.first for p in outcome.appended] for outcome in outcomes] == [[0]] * 3
        assert [outcome.duplicate for outcome in outcomes] == [False, True, True]
        assert parts.stored() == [0, 1]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_repeated_single_shares_the_fate_of_the_first(parts, lost):
    parts.fault = lost
    parts.gate.clear()
    first = asyncio.create_task(parts.single(0))
    await parts.begun.wait()
    repeat = asyncio.create_task(parts.single(0))
    _, waiting = await asyncio.wait([repeat], timeout=0.1)
    assert waiting
    parts.gate.set()
    outcomes = await asyncio.gather(first, repeat, return_exceptions=True)
    if lost:
        assert [type(outcome) for outcome in outcomes] == [JournalUnavailable] * 2
    else:
        assert outcomes == [(*outcomes[0][:2], False), (*outcomes[0][:2], True)]
    assert len(parts.stored(0) + parts.stored(1)) == (0 if lost else 1)


async def test_a_later_request_on_its_way_does_not_make_a_lost_one_stored(parts):
    key = parts.key_of(0)
    parts.fault = True
    parts.gate.clear()
    first = asyncio.create_task(parts.batch(0, [key]))
    await parts.begun.wait()
    later = asyncio.create_task(parts.single(1, key))
    await asyncio.sleep(0)  # it has been judged, and waits for the next commit
    parts.fault = False
    parts.gate.set()
    with pytest.raises(JournalUnavailable):
        await first
    await later
    with pytest.raises(SequenceOutOfOrder):
        await parts.batch(0, [key])
    assert parts.stored() == [1]


async def test_a_remembered_request_is_a_duplicate_beside_a_later_one(parts):
    key = parts.key_of(0)
    await parts.batch(0, [key])
    parts.gate.clear()
    parts.begun.clear()
    later = asyncio.create_task(parts.batch(1, [key]))
    await parts.begun.wait()
    assert (await parts.batch(0, [key])).duplicate
    parts.gate.set()
    assert not (await later).duplicate


async def test_without_a_lease_nothing_is_acked_and_a_retry_finds_durable_rows(parts):
    """A repeat was acked without a lease, though other brokers may own its segment by now."""
    key = parts.key_of(0)
    parts.leased = False
    for _ in range(2):
        with pytest.raises(NotReady):
            await parts.batch(0, [key] * 2)
        with pytest.raises(NotReady):
            await parts.single(2, key)
    parts.leased = True
    again = await parts.batch(0, [key] * 2)
    assert again.duplicate
    assert [p.first for p in again.appended] == [0]
    assert await parts.single(2, key) == (0, 2, True)
    assert parts.stored() == [0, 1, 2]


async def test_keyless_messages_come_to_the_same_segments_alone_and_together(parts):
    rows = [None] * 40
    placed = (await parts.batch(0, rows)).appended
    assert {p.segment for p in placed} == {0, 1}
    where = {int(index): (p.segment, p.first + n) for p in placed for n, index in enumerate(p.indexes)}
    assert all(parts.stored(segment)[offset] == sequence for sequence, (segment, offset) in where.items())
    again = await parts.batch(0, rows)
    assert again.duplicate
    assert [(p.segment, p.first, p.indexes.tolist()) for p in again.appended] == [
        (p.segment, p.first, p.indexes.tolist()) for p in placed
    ]
    segment, offset, _ = await parts.single(40)
    assert [(p.segment, p.first) for p in (await parts.batch(40, [None])).appended] == [(segment, offset)]


async def test_a_batch_refused_at_once_leaves_nothing_for_a_repeat_to_wait_for(parts):
    await parts.open(2)
    parts.commit.close()
    for _ in range(2):
        with pytest.raises(NotReady):
            await asyncio.wait_for(parts.batch(0, ["a", "b", "c"]), 2)


TIMEOUT_S = 0.5
WITHIN_S = 14.0  # a publish that waits gives up after 15 s


class BlackHole(LocalStore):
    """A store of files whose blocking reads never end, once it is `dark`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SystemIds())
        self.dark = False
        self.light = threading.Event()

    def hang(self, calls: int) -> None:
        """As many reads hang, as those of clients who fetch."""
        self.dark = True
        for _ in range(calls):
            self.readers.submit(self.light.wait)

    def _read(self, path: str, start: int, end: int | None) -> bytes:
        if self.dark:
            self.light.wait()
        return super()._read(path, start, end)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BlackHole]:
    store = BlackHole(tmp_path / "store")
    yield store
    store.light.set()


def asking(broker: Broker) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(Application(broker)), base_url="http://127.0.0.1", timeout=60
    )


async def test_reads_that_hang_hold_up_no_publish_no_leader_and_no_stop(tmp_path: Path, store: BlackHole) -> None:
    async with running(tmp_path / "data", store, journal="file", shutdown_s=2) as broker:  # type: ignore[arg-type]
        topic = await make_topic(broker)
        await publish(broker, topic, "the first commit of a life, which asks the store for a later generation")
        store.hang(20)
        async with asyncio.timeout(WITHIN_S), asking(broker) as http:
            for n in range(20):
                await publish(broker, topic, str(n))
            large = [{"key": f"k{n}", "value": "x" * 1000} for n in range(200)]
            answer = await http.post("/v1/topics/t/messages", json={"messages": large})
            assert answer.status_code == 200
            await inside.leader(broker).round()
            await broker.stop()
        assert await held(broker).get(f"brokers/{broker.id}") is None


async def test_a_segment_that_cannot_be_opened_ends_the_publish_in_time(tmp_path: Path, store: BlackHole) -> None:
    async with running(tmp_path / "data", store, publish_timeout_s=TIMEOUT_S) as broker:  # type: ignore[arg-type]
        topic = await make_topic(broker)
        topic.opened.clear()
        topic.routing = None
        store.hang(20)
        async with asyncio.timeout(WITHIN_S), asking(broker) as http:
            for body in ({"value": 1}, {"messages": [{"value": n} for n in range(3)]}):
                answer = await http.post("/v1/topics/t/messages", json=body)
                assert answer.status_code == 503
                assert f"within publish_timeout_s={TIMEOUT_S:g}; nothing was stored" in answer.json()["detail"]


@pytest.mark.parametrize("phase", ["require", "commit"])
async def test_a_publish_that_waits_in_several_places_has_one_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    gate = Gate()
    async with running(tmp_path, publish_timeout_s=TIMEOUT_S) as broker, asking(broker) as http:
        await make_topic(broker)
        name = "t"
        if phase == "require":
            monkeypatch.setattr(inside.catalog(broker), "require", gate)
            name = "unknown"
        else:
            monkeypatch.setattr(inside.journal(broker), "append", gate)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(WITHIN_S):
            answer: Any = await http.post(f"/v1/topics/{name}/messages", json={"value": 1})
        assert loop.time() - began_s >= TIMEOUT_S * 0.9
        assert answer.status_code == 503
        assert ("nothing was stored" if phase == "require" else "is unknown") in answer.json()["detail"]
        gate.open.set()
