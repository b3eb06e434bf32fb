"""Batches that are prepared ahead: they lie where they belong whatever becomes of segments, and no bytes stay held."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.imports import runner as importing
from seaweedq.broker.imports.reader_process import ReaderDied, ReaderProcess
from seaweedq.broker.imports.records import WorkId
from seaweedq.broker.publish.publisher import Producer, PublishResult
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import CoordinationUnavailable, NotReady, SequenceOutOfOrder, TopicBeingDeleted, TopicNotFound
from seaweedq.import_worker import COMMAND as IMPORT_WORKER
from seaweedq.segments.keyrange import hash_key
from seaweedq.segments.rows import assemble, microseconds
from seaweedq.settings import Settings
from seaweedq.storage.local import LocalStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.environments import environment
from tests.support.brokers.in_process import Gate, Held
from tests.support.brokers.stored import record_of
from tests.support.http.uploading_files import numbered

pytestmark = pytest.mark.process

ROWS, BATCH = 10_000, 1000
KEYS, PREPARED = 50, 2000
HALF, QUARTER = 1 << 30, 1 << 29


@pytest.fixture
async def broker(tmp_path, monkeypatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(importing, "PAUSE_S", 0.01)
    settings = Settings(data_dir=tmp_path / "data", import_batch_rows=BATCH)
    store, coordination = LocalStore(tmp_path / "store", SystemIds()), Held()
    made = Broker(environment(settings, store, coordination, import_reader=partial(ReaderProcess.start, IMPORT_WORKER)))
    made.lock()
    await made.start()
    await end_task(made, "imports")  # who goes on is the tests' to say
    await inside.topic_admin(made).create("t", TopicConfig())
    yield made
    await made.stop()
    await coordination.close()


def rows_of(topic: Topic) -> pa.RecordBatch:
    """Rows of `numbered`, without a key every seventh time."""
    table = numbered(PREPARED, KEYS)
    key = pa.array([None if n % 7 == 0 else key for n, key in enumerate(table["_key"].to_pylist())])
    times = microseconds(np.zeros(PREPARED, np.int64))
    return assemble(topic.layout, times, key, None, None, [table["value"].combine_chunks()])


async def replaced(broker: Broker, topic: Topic, segments: list[int], points: list[int]) -> list[int]:
    """Have segments give way to others: the open ones, in the order of their ranges."""
    await inside.planner(broker).plan(topic, segments, points)
    async with asyncio.timeout(30):
        while any(inside.catalog(broker).segments(topic)[number].state != "sealed" for number in segments):
            await asyncio.sleep(0.01)
    found = inside.catalog(broker).segments(topic)
    return sorted((n for n in found if found[n].state == "open"), key=lambda n: found[n].low)


async def read(broker: Broker, segment: int) -> list[dict[str, Any]]:
    """All messages of a segment."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Application(broker)), base_url="http://localhost"
    ) as http:
        path = f"/v1/topics/t/segments/{segment}/messages"
        found = await http.get(path, params={"offset": 0, "limit": 10_000})
        assert found.status_code == 200, found.text
        return list(found.json()["messages"])


async def check_all_once(broker: Broker, topic: Topic, published: PublishResult) -> None:
    """The rows of `rows_of` are there once, each in the segment of its key, where `published` says, in order."""
    places = {
        int(at): (place.segment, place.first + rank)
        for place in published.appended
        for rank, at in enumerate(place.indexes)
    }
    numbers: list[int] = []
    for number, record in inside.catalog(broker).segments(topic).items():
        newest: dict[str, int] = {}
        for offset, message in enumerate(await read(broker, number)):
            at, key = message["value"]["n"], message["key"]
            numbers.append(at)
            assert places[at] == (number, offset)
            assert record.low <= hash_key(key if key is not None else f"p:{at}") < record.high
            assert newest.get(str(key), -1) < at
            newest[str(key)] = at
    assert sorted(numbers) == list(range(PREPARED))


def told(published: PublishResult) -> list[tuple[int, int, list[int]]]:
    return [(place.segment, place.first, place.indexes.tolist()) for place in published.appended]


async def split(broker: Broker, topic: Topic) -> None:
    await replaced(broker, topic, [0], [HALF])


async def split_and_split_again(broker: Broker, topic: Topic) -> None:
    halves = await replaced(broker, topic, [0], [HALF])
    await replaced(broker, topic, halves[:1], [QUARTER])


async def split_and_merged(broker: Broker, topic: Topic) -> None:
    await replaced(broker, topic, await replaced(broker, topic, [0], [HALF]), [])


CHANGES = [split, split_and_split_again, split_and_merged]


@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_prepared_before_a_change_lies_where_it_belongs_after_it(broker, change):
    topic = inside.topic(broker, "t")
    prepared = await inside.publisher(broker).prepare(topic, rows_of(topic), Producer("p", 0))
    await change(broker, topic)
    taken = await inside.publisher(broker).append(topic, prepared)
    assert (taken.count, taken.duplicate) == (PREPARED, False)
    assert 0 not in {place.segment for place in taken.appended}
    await check_all_once(broker, topic, taken)
    again = await inside.publisher(broker).append(topic, prepared)
    assert (again.duplicate, told(again)) == (True, told(taken))
    await check_all_once(broker, topic, again)


@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_taken_before_a_change_is_found_where_it_is_after_it(broker, change):
    topic = inside.topic(broker, "t")
    prepared = await inside.publisher(broker).prepare(topic, rows_of(topic), Producer("p", 0))
    await inside.publisher(broker).append(topic, prepared)
    await change(broker, topic)
    again = await inside.publisher(broker).append(topic, prepared)
    assert again.duplicate
    assert {place.segment for place in again.appended} == {0}
    await check_all_once(broker, topic, again)


async def test_what_is_taken_while_its_segment_is_split_is_taken_once(broker):
    """Prepared for both halves, and taken again and again while they give way to one."""
    topic = inside.topic(broker, "t")
    halves = await replaced(broker, topic, [0], [HALF])
    prepared = await inside.publisher(broker).prepare(topic, rows_of(topic), Producer("p", 0))
    merging = asyncio.create_task(replaced(broker, topic, halves, []))
    found = [await inside.publisher(broker).append(topic, prepared)]
    while not merging.done():
        found.append(await inside.publisher(broker).append(topic, prepared))
        await asyncio.sleep(0)  # rows that were taken before are found without a wait
    await merging
    found.append(await inside.publisher(broker).append(topic, prepared))
    assert [one.duplicate for one in found] == [False] + [True] * (len(found) - 1)
    await check_all_once(broker, topic, found[-1])


async def begun(broker: Broker, data: bytes | None = None) -> WorkId:
    """An import of `numbered(ROWS)`, or of these bytes; its record is there, with nobody at work."""
    topic = inside.topic(broker, "t")
    if data is None:
        sink = io.BytesIO()
        pq.write_table(numbered(ROWS), sink)
        data = sink.getvalue()

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    upload, _ = await inside.uploads(broker).create(topic, len(data), "x/y", None, None)
    await inside.uploads(broker).receive(topic, upload, chunks())
    where = WorkId.from_topic(topic, upload)
    await privates.create(inside.imports(broker))(topic, where, "parquet", False, None, None)
    return where


class Run:
    """An import at work; `held` has what the budget held at each batch."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker, self.stopping = broker, asyncio.Event()
        self.held: list[int] = []
        self.at: dict[int, Callable[[], Any]] = {}  # what is done in place of, and before, a batch is taken
        self._take = inside.publisher(broker).append
        monkeypatch.setattr(inside.publisher(broker), "append", self._taken)

    async def _taken(self, topic: Topic, prepared: Any) -> PublishResult:
        self.held.append(inside.budget(self.broker).requests)
        if todo := self.at.pop(len(self.held), None):
            await todo()
        return await self._take(topic, prepared)

    async def run(self, where: WorkId) -> bool:
        """Work on it: whether it is over."""
        held = await privates.records(inside.imports(self.broker)).read(where)
        return await privates.runner(inside.imports(self.broker)).run(where, held, self.stopping)

    def check_nothing_left(self) -> None:
        """The budget held bytes, and does no more."""
        assert max(self.held) > 0
        assert inside.budget(self.broker).requests == 0


@pytest.fixture
def work(broker, monkeypatch) -> Run:
    return Run(broker, monkeypatch)


async def test_one_that_ends_leaves_no_bytes(broker, work):
    where = await begun(broker)
    assert await work.run(where)
    work.check_nothing_left()
    shown = await inside.imports(broker).show(inside.topic(broker, "t"), where.name)
    assert (shown.state, shown.rows_done) == ("done", ROWS)
    assert len(work.held) == ROWS // BATCH
    numbers = [message["value"]["n"] for message in await read(broker, 0)]
    assert numbers == list(range(ROWS))


async def test_one_that_fails_leaves_no_bytes(broker, work):
    async def refused() -> None:
        await ready(work)
        raise SequenceOutOfOrder("its table is gone")

    work.at[3] = refused
    where = await begun(broker)
    assert await work.run(where)
    work.check_nothing_left()
    assert (await inside.imports(broker).show(inside.topic(broker, "t"), where.name)).state == "failed"


async def test_one_whose_rows_a_later_sequence_proves_continues_after_them(broker, work, caplog):
    async def known() -> None:
        await ready(work)
        raise SequenceOutOfOrder("the segment's table knows a later sequence", newest=ROWS)

    work.at[3] = known
    where = await begun(broker)
    assert await work.run(where)
    work.check_nothing_left()
    assert f"the import of upload {where.name} continues after row {3 * BATCH}, because" in caplog.text


async def test_one_that_is_parted_with_leaves_no_bytes(broker, work):
    async def parts() -> None:
        await ready(work)
        work.stopping.set()

    work.at[3] = parts
    where = await begun(broker)
    assert not await work.run(where)
    work.check_nothing_left()
    left = await privates.records(inside.imports(broker)).read(where)
    assert (left.record.broker, left.record.rows_done) == (None, 3 * BATCH)


async def test_one_that_loses_its_record_leaves_no_bytes(broker, work):
    async def lost() -> None:
        await ready(work)
        records = privates.records(inside.imports(broker))
        await records.drop(where, await records.read(where))

    work.at[3] = lost
    where = await begun(broker)
    assert not await work.run(where)
    work.check_nothing_left()


async def test_one_that_loses_its_record_while_it_prepares_leaves_no_bytes(broker, work, monkeypatch):
    prepare = inside.publisher(broker).prepare

    async def lost(topic: Topic, rows: pa.RecordBatch, producer: Producer) -> Any:
        if producer.sequence < 3 * BATCH:
            return await prepare(topic, rows, producer)
        records = privates.records(inside.imports(broker))
        await records.drop(where, await records.read(where))
        raise NotReady("segments are changing")

    where = await begun(broker)
    monkeypatch.setattr(inside.publisher(broker), "prepare", lost)
    assert not await work.run(where)
    work.check_nothing_left()


async def test_one_whose_topic_goes_leaves_no_bytes(broker, work):
    async def gone() -> None:
        await ready(work)
        await inside.deletion(broker).delete(inside.topic(broker, "t"))
        await inside.topic_admin(broker).create("t", TopicConfig())

    work.at[3] = gone
    where = await begun(broker)
    with pytest.raises((TopicNotFound, TopicBeingDeleted)):
        await work.run(where)
    work.check_nothing_left()
    (segment,) = inside.catalog(broker).segments(inside.topic(broker, "t"))
    assert await read(broker, segment) == []


async def test_one_whose_reader_dies_leaves_no_bytes(broker, work, monkeypatch):
    """It is started again where it was, and nothing is taken twice."""
    rows, deaths = ReaderProcess.next_rows, 0

    async def dies(reader: ReaderProcess) -> Any:
        nonlocal deaths
        if len(work.held) in (3, 7) and deaths < 2:
            deaths += 1
            raise ReaderDied("killed")
        return await rows(reader)

    monkeypatch.setattr(ReaderProcess, "next_rows", dies)
    where = await begun(broker)
    assert await work.run(where)
    work.check_nothing_left()
    assert deaths == 2
    assert [message["value"]["n"] for message in await read(broker, 0)] == list(range(ROWS))


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_one_that_is_cancelled_leaves_no_bytes(broker, work, times):
    """A topic that goes cancels its imports when it is to be deleted, and again when it is gone."""
    gate = Gate()
    work.at[3] = gate
    task = asyncio.create_task(work.run(await begun(broker)))
    await gate.reached.wait()
    await ready(work)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()
    await asyncio.sleep(0.05)
    work.check_nothing_left()


async def ready(work: Run) -> None:
    """Until the next batch is prepared."""
    one = work.held[0]
    async with asyncio.timeout(30):
        while inside.budget(work.broker).requests < 1.5 * one:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)


async def test_one_is_not_lost_where_a_batch_waits_while_progress_is_written(broker, work, monkeypatch):
    """What comes looks at a record that this very broker is about to have changed."""
    written, prepare, failures = asyncio.Event(), inside.publisher(broker).prepare, iter([True])

    async def answered_late(writes: Any) -> None:
        if any(put.key.startswith("imports/") and rows_done(put) == 4 * BATCH for put in writes):
            written.set()
            await asyncio.sleep(0.2)

    async def not_yet(topic: Topic, rows: pa.RecordBatch, producer: Producer) -> Any:
        if producer.sequence == 4 * BATCH and next(failures, False):
            await written.wait()
            raise NotReady("segments are changing")
        return await prepare(topic, rows, producer)

    where = await begun(broker)
    monkeypatch.setattr(broker.process.coordination, "after", answered_late)
    monkeypatch.setattr(inside.publisher(broker), "prepare", not_yet)
    assert await work.run(where)
    assert written.is_set()
    work.check_nothing_left()


def rows_done(put: Any) -> int:
    return record_of(keys.IMPORTS, put.value).rows_done


async def test_one_that_fails_while_the_broker_goes_is_left_to_others(broker, work, monkeypatch):
    async def away(*_: Any) -> None:
        work.stopping.set()
        raise CoordinationUnavailable("gone")

    where = await begun(broker, b"neither nor")
    monkeypatch.setattr(privates.records(inside.imports(broker)), "write", away)
    assert not await work.run(where)


async def test_places_that_an_import_tells_are_its_rows_also_over_a_split(broker, work):
    async def splits() -> None:
        await ready(work)
        await split(broker, inside.topic(broker, "t"))

    work.at[3] = splits
    where = await begun(broker)
    assert await work.run(where)
    work.check_nothing_left()
    topic = inside.topic(broker, "t")
    shown = await inside.imports(broker).show(topic, where.name)
    assert len(shown.segments) == 3
    newest: dict[str, int] = {}
    for part in shown.segments:
        messages = await read(broker, part.segment)
        assert (part.first_offset, part.last_offset, part.count) == (0, len(messages) - 1, len(messages))
        for message in messages:
            assert newest.get(message["key"], -1) < message["value"]["n"]
            newest[message["key"]] = message["value"]["n"]
    assert sum(part.count for part in shown.segments) == ROWS
