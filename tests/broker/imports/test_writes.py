"""Writes: many files, taken once for each number of a writer, whatever ends a broker between two steps, whoever asks
again, and with whichever uploads."""

import asyncio
import io
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.periodic_tasks import UploadSweep
from seaweedq.broker.imports import writing
from seaweedq.broker.imports.reader_process import ReaderProcess
from seaweedq.broker.imports.records import DAY_US, WorkId
from seaweedq.broker.imports.writing import Wanted
from seaweedq.broker.uploads import rules
from seaweedq.checks import using
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.records import TopicConfig, WriteRecord
from seaweedq.errors import (
    NotReady,
    TooManyWriters,
    TopicNotFound,
    Unavailable,
    UploadConflict,
    UploadExpired,
    UploadNotFound,
    WriteNotFound,
    WriteOutOfOrder,
)
from seaweedq.import_worker import COMMAND
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.returned import CopiedCoordination, returned
from tests.support.tiers import later, soaked

pytestmark = [pytest.mark.process, pytest.mark.brokers]

FORMAT = {"format": "parquet"}
FILES, ROWS, BATCH = 5, 1300, 1000  # 7 batches over 5 files
ALL = list(range(FILES * ROWS))
PLACES = [
    later("write.listed"),
    soaked("write.checking"),
    later("write.claimed"),
    soaked("write.checked"),
    later("write.counted"),
    soaked("write.running"),
    later("change.put"),
    soaked("change.made"),
    soaked("write.batch:1"),
    "write.batch:3",
    later("write.progress"),
    soaked("write.batch:6"),
    later("write.batch:7"),
    later("write.done"),
    later("change.made:2"),
]


class Turns:
    """A turn that nobody gets until the gate opens."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __aenter__(self) -> None:
        await self._gate()

    async def __aexit__(self, *exception: object) -> None:
        pass


class Killed(BaseException):
    """The broker does not live behind this place."""


def killed_at(place: str, dead: asyncio.Event) -> Any:
    """Has what runs in this context end at a place; with `:n` when it is reached for the n-th time."""
    name, _, count = place.partition(":")
    left = int(count or 1)

    def points(reached: str) -> None:
        nonlocal left
        left -= reached == name
        if left <= 0:
            dead.set()
            raise Killed

    return using(points)


READER = partial(ReaderProcess.start, COMMAND)


@asynccontextmanager
async def some(folder: Path, count: int = 1, segments: int = 3, **settings: Any) -> AsyncIterator[InLoop]:
    """So many brokers, with a topic."""
    given = {"import_batch_rows": BATCH, "snapshot_s": 3600, **settings}
    async with in_loop(folder, count, import_reader=READER, **given) as together:
        await inside.topic_admin(together.brokers[0]).create("t", TopicConfig(initial_segments=segments))
        await until(lambda: all(inside.catalog(one).get("t") for one in together.brokers))
        yield together


def file_of(numbers: Sequence[int], bad: bool = False) -> bytes:
    sink = io.BytesIO()
    values = [f'{{"n":{n}}}' for n in numbers]
    pq.write_table(pa.table({"value": [*values, "no JSON"] if bad else values}), sink)
    return sink.getvalue()


async def upload(broker: Broker, data: bytes, write: str) -> str:
    topic = inside.topic(broker, "t")

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    begun, _ = await inside.uploads(broker).create(topic, len(data), "x/y", None, None, write)
    await inside.uploads(broker).receive(topic, begun, chunks())
    return begun


async def wanted(broker: Broker, number: int, files: Sequence[Sequence[int]], bad: int = -1) -> Wanted:
    """A write of these numbers, whose files are uploaded; the file at `bad` has a row that is not valid."""
    data = [file_of(numbers, at == bad) for at, numbers in enumerate(files)]
    uploads = [await upload(broker, one, f"w/{number}") for one in data]
    return Wanted("w", number, uploads, "parquet", False)


def cut(numbers: Sequence[int], count: int = FILES) -> list[Sequence[int]]:
    return [numbers[at * len(numbers) // count : (at + 1) * len(numbers) // count] for at in range(count)]


async def ask(broker: Broker, one: Wanted, wait_s: float) -> tuple[WriteRecord, bool]:
    """Ask for it once."""
    given = (one.writer, one.number, one.uploads, one.format, one.bare, one.drawn)
    return await inside.writes(broker).write(inside.topic(broker, "t"), *given, wait_s)


async def write(broker: Broker, one: Wanted, wait_s: float = 60) -> tuple[WriteRecord, bool]:
    """Write it; a broker that cannot do so yet is asked again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask(broker, one, wait_s)
            except Unavailable:
                await asyncio.sleep(0.05)


async def read(broker: Broker) -> list[int]:
    """The numbers of all messages, those of a segment behind one another."""
    found: list[int] = []
    transport = httpx.ASGITransport(Application(broker))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http, asyncio.timeout(30):
        for segment in sorted(inside.catalog(broker).segments(inside.topic(broker, "t"))):
            path = f"/v1/topics/t/segments/{segment}/messages?offset=0&limit=10000"
            while (answer := await http.get(path)).status_code == 503:
                await asyncio.sleep(0.05)
            assert answer.status_code == 200, answer.text
            found += [message["value"]["n"] for message in answer.json()["messages"]]
    return found


async def lists(together: InLoop) -> list[str]:
    return await together.store.list("_writes/")


async def record_of(broker: Broker) -> WriteRecord:
    held = await privates.records(inside.writes(broker)).read(WorkId.from_topic(inside.topic(broker, "t"), "w"))
    return held.record


async def dies(together: InLoop, dying: Broker, place: str, work: Coroutine[Any, Any, Any]) -> None:
    """The broker is killed at a place of this work."""
    dead = asyncio.Event()
    with killed_at(place, dead):
        request = asyncio.create_task(work)
    async with asyncio.timeout(60):
        await dead.wait()
    left = [request, *privates.tasks(inside.writes(dying)).values()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await together.crash(dying)


@pytest.mark.parametrize("place", PLACES)
async def test_killed_at_each_step_all_rows_are_there_once(tmp_path, place):
    """The job is run again at another broker, with other files of other rows each: all of one of the two are there."""
    async with some(tmp_path, 2) as together:
        dying, other = together.brokers
        first, second = await wanted(dying, 7, cut(ALL)), await wanted(other, 7, cut(ALL[::-1], 3))
        await dies(together, dying, place, write(dying, first))
        record, begun = await write(other, second)
        assert (record.state, record.rows_done, begun) == ("done", len(ALL), place == "write.listed")
        assert sorted(await read(other)) == ALL
        again, begun = await write(other, first)
        assert (again, begun) == (record, False)
        await check_lists(together, len(await lists(together)))
        for _ in range(2):  # objects go, then records
            await sweep(other, together, 3)
        await check_lists(together, 0)
        assert await together.store.list("_payloads/") == []
        assert not (await together.coordination.range(keys.UPLOADS.prefix())).entries


@pytest.mark.parametrize("place", ["write.checked", "write.batch:3"])
async def test_a_version_of_the_schema_that_begins_meanwhile_changes_no_batch(tmp_path, place):
    """Another broker goes on with the version of before: its batches are the same, and known as repeats."""

    def schema(kind: str, key: str, *more: dict[str, str]) -> dict[str, Any]:
        named = [{"id": 2, "name": key, "type": "string"}, {"id": 1, "name": "n", "type": kind}]
        return {"fields": [*named, *more]}

    given = {"import_batch_rows": BATCH, "snapshot_s": 3600}
    async with in_loop(tmp_path, 2, import_reader=READER, **given) as together:
        dying, other = together.brokers
        transport = httpx.ASGITransport(Application(other))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1/topics") as http:
            made = {"format": "typed", "schema": schema("int", "k"), "key_field": "k", "initial_segments": 3}
            assert (await http.put("/t", json=made)).status_code == 201
            await until(lambda: inside.catalog(dying).get("t"))
            uploads = []
            for numbers in cut(ALL):
                sink = io.BytesIO()
                keys = pa.array([f"k{number % 7}" for number in numbers])
                pq.write_table(pa.table({"n": pa.array(numbers, pa.int32()), "k": keys}), sink)
                uploads.append(await upload(dying, sink.getvalue(), "w/7"))
            one = Wanted("w", 7, uploads, "parquet", False)
            await dies(together, dying, place, write(dying, one))
            wider = schema("long", "key", {"name": "x", "type": "string"})
            changed = await http.patch("/t", json={"schema": wider, "if_schema_id": 0})
            assert changed.json()["key_field"] == "key", changed.text
            record, _ = await write(other, one)
            assert (record.state, record.rows_done, record.schema_id) == ("done", len(ALL), 0)
            for segment in range(3):
                page = (await http.get(f"/t/segments/{segment}/messages?offset=0&limit=10000")).json()["messages"]
                assert all(one["key"] == one["value"]["key"] == f"k{one['value']['n'] % 7}" for one in page)
        assert sorted(await read(other)) == ALL


async def test_values_of_a_field_that_is_dropped_meanwhile_are_in_files(tmp_path):
    """The rows that are not there yet keep the version with which the write began: none is half written."""
    fields = [{"name": "n", "type": "int"}, {"name": "x", "type": "int"}]
    given = {"import_batch_rows": BATCH, "snapshot_s": 3600}
    async with in_loop(tmp_path, 2, import_reader=READER, **given) as together:
        dying, other = together.brokers
        transport = httpx.ASGITransport(Application(other))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1/topics") as http:
            made = {"format": "typed", "schema": {"fields": fields}, "initial_segments": 3}
            assert (await http.put("/t", json=made)).status_code == 201
            await until(lambda: inside.catalog(dying).get("t"))
            uploads = []
            for numbers in cut(ALL):
                sink = io.BytesIO()
                pq.write_table(pa.table({name: pa.array(numbers, pa.int32()) for name in "nx"}), sink)
                uploads.append(await upload(dying, sink.getvalue(), "w/7"))
            one = Wanted("w", 7, uploads, "parquet", False)
            await dies(together, dying, "write.batch:3", write(dying, one))
            changed = await http.patch("/t", json={"schema": {"fields": fields[:1]}, "if_schema_id": 0})
            assert changed.status_code == 200, changed.text
            assert (await http.post("/t/messages", json={"messages": [{"value": {"n": -1}}]})).status_code == 200
            record, _ = await write(other, one)
            assert (record.state, record.rows_done, record.schema_id) == ("done", len(ALL), 0)
            assert sorted(await read(other)) == [-1, *ALL]
            await http.post("/t/flush")
        assert sorted(await read(other)) == [-1, *ALL]
        kept = []
        for name, file in together.store.objects.items():
            if name.startswith("topics/t/segment=") and "x" in pq.read_schema(io.BytesIO(bytes(file))).names:
                kept += pq.read_table(io.BytesIO(bytes(file)))["x"].to_pylist()
        assert sorted(kept) == ALL


async def sweep(broker: Broker, together: InLoop, days: int) -> None:
    """Has the leader's sweep go over uploads and lists, so many days later."""
    leading, check = broker.context.election.leader_compare, broker.context.generations.check
    coordination, payloads = together.coordination, broker.context.store.payloads
    sweeping = UploadSweep(inside.catalog(broker), coordination, payloads, Later(days), 0, leading, check)
    await sweeping.records()
    await sweeping.lists()


async def check_lists(together: InLoop, count: int) -> None:
    assert len(await together.store.list("_writes/")) == count


class Later(SystemClock):
    """The real clock, so many days on."""

    def __init__(self, days: float) -> None:
        self._us = int(days * DAY_US)

    def now_us(self) -> int:
        return super().now_us() + self._us


async def test_a_refused_row_in_one_of_many_files_takes_nothing(tmp_path):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        bad = await wanted(broker, 1, cut(ALL, 50), bad=48)
        record, begun = await write(broker, bad)
        assert (record.state, record.rows, record.rows_done, begun) == ("failed", None, 0, True)
        assert record.problem.slug == "invalid-messages"
        assert record.problem.fields["upload_id"] == bad.uploads[48]
        assert record.problem.fields["errors"][0]["index"] == len(ALL) // 50
        assert await read(broker) == []
        assert await write(broker, replace(bad, uploads=bad.uploads[::-1])) == (record, False)  # the same ones
        good = await wanted(broker, 1, cut(ALL, 50))
        done, begun = await write(broker, good)
        assert (done.state, done.rows_done, done.uploads, begun) == ("done", len(ALL), 50, True)
        assert sum(one.count for one in done.segments) == len(ALL)
        assert await write(broker, bad) == (done, False)
        assert sorted(await read(broker)) == ALL
        await check_lists(together, 0)


@pytest.mark.long
async def test_numbers_rise_with_holes_and_sequences_run_on_at_one_broker(tmp_path):
    async with some(tmp_path, 2) as together:
        broker, other = together.brokers
        first, _ = await write(broker, await wanted(broker, 3, [[0, 1], [2]]))
        second, _ = await write(broker, await wanted(broker, 9, [[3]]))
        assert (second.nonce, second.first) == (first.nonce, 3)
        with pytest.raises(WriteOutOfOrder) as refused:
            await write(broker, await wanted(broker, 8, [[4]]))
        assert refused.value.fields == {"writer": "w", "number": 8, "newest": 9}
        third, _ = await write(other, await wanted(other, 10, [[5]]))  # which has not seen how the one before ended
        assert (third.nonce != first.nonce, third.first) == (True, 0)
        fourth, _ = await write(other, await wanted(other, 11, [[6], [7]]))
        assert (fourth.nonce, fourth.first) == (third.nonce, 1)
        assert sorted(await read(broker)) == [0, 1, 2, 3, 5, 6, 7]


@pytest.mark.long
async def test_a_higher_number_waits_until_the_one_before_is_over(tmp_path, monkeypatch):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        gate, append = Gate(), inside.publisher(broker).append

        async def held(*given: Any) -> Any:
            await gate()
            return await append(*given)

        monkeypatch.setattr(inside.publisher(broker), "append", held)
        first, second = await wanted(broker, 1, [[1]]), await wanted(broker, 2, [[2]])
        running, _ = await ask(broker, first, 0)
        assert running.state == "checking"
        await gate.reached.wait()
        with pytest.raises(NotReady, match="write 1 of writer 'w' has not ended"):
            await ask(broker, second, 0)
        waiting = asyncio.create_task(write(broker, second))
        gate.open.set()
        assert (await waiting)[0].number == 2
        assert sorted(await read(broker)) == [1, 2]


@pytest.mark.long
async def test_many_ask_at_once_and_one_begins(tmp_path):
    async with some(tmp_path, 2) as together:
        uploads = [await wanted(one, 1, cut(ALL)) for one in together.brokers]
        asked = [write(broker, one) for broker in together.brokers for one in (*uploads, *uploads)]
        found = await asyncio.gather(*asked)
        assert sum(begun for _, begun in found) == 1
        assert {record.state for record, _ in found} == {"done"}
        assert sorted(await read(together.brokers[0])) == ALL


@pytest.mark.parametrize("days", [later(8), 31])
async def test_a_writer_is_remembered_for_30_days(tmp_path, days):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        one, other = await wanted(broker, 1, [[1]]), await wanted(broker, 2, [[2]])
        drawn = Wanted("drawn", 0, [await upload(broker, file_of([0]), "drawn/0")], "parquet", False, drawn=True)
        first, _ = await write(broker, one)
        await write(broker, drawn)
        privates.use_clock(inside.writes(broker), Later(days))
        await inside.writes(broker).adopt()
        with pytest.raises(WriteNotFound):
            await inside.writes(broker).show(inside.topic(broker, "t"), "drawn")
        if days > 30:
            with pytest.raises(WriteNotFound):
                await inside.writes(broker).show(inside.topic(broker, "t"), "w")
        else:
            assert await inside.writes(broker).show(inside.topic(broker, "t"), "w") == first
            assert await write(broker, one) == (first, False)
        second, begun = await write(broker, other)
        assert (second.state, begun, second.nonce == first.nonce) == ("done", True, days < 30)
        assert sorted(await read(broker)) == [0, 1, 2]


@pytest.mark.long
async def test_a_topic_that_is_made_anew_knows_no_writer_of_the_old_one(tmp_path):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        await write(broker, await wanted(broker, 7, [[1]]))
        await together.store.create(f"_writes/t/20260101/20260101-0-{'0' * 32}", b"left")
        await inside.deletion(broker).delete(inside.topic(broker, "t"))
        await check_lists(together, 0)
        await inside.topic_admin(broker).create("t", TopicConfig())
        done, begun = await write(broker, await wanted(broker, 3, [[2]]))
        assert (done.state, begun) == ("done", True)
        assert await read(broker) == [2]


async def test_a_write_that_names_a_wrong_upload_leaves_nothing_behind(tmp_path):
    """No record is made, so that the number is not used up, and no writer is remembered."""
    async with some(tmp_path, upload_expires_s=7 * 86_400) as together:
        (broker,) = together.brokers
        topic = inside.topic(broker, "t")
        one = await wanted(broker, 1, [[1], [2]])
        gone = await upload(broker, b"x", "w/1")
        await inside.uploads(broker).abort(topic, gone)
        for wrong, error in (
            (replace(one, number=2**63 - 1), UploadConflict),
            (replace(one, writer="other"), UploadConflict),
            (replace(one, uploads=[*one.uploads, gone]), UploadNotFound),
            (replace(one, uploads=[*one.uploads, "20260131-0-5f2b8a6c"]), UploadNotFound),
        ):
            with pytest.raises(error):
                await ask(broker, wrong, 0)
        assert await privates.records(inside.writes(broker)).count(topic) == 0
        await check_lists(together, 0)
        privates.use_clock(inside.uploads(broker), Later(8))
        with pytest.raises(UploadExpired):
            await ask(broker, one, 0)
        privates.use_clock(inside.uploads(broker), SystemClock())
        assert (await write(broker, one))[0].state == "done"
        with pytest.raises(UploadConflict, match="created for the write w/1"):
            await inside.uploads(broker).claim(topic, await upload(broker, b"x", "w/1"))
        assert sorted(await read(broker)) == [1, 2]


async def test_an_upload_that_goes_before_it_is_claimed_fails_the_write(tmp_path):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        where, topic = await begun(broker, 2), inside.topic(broker, "t")
        listed = await privates.files(inside.writes(broker)).find(where, await record_of(broker))
        await privates.records(inside.uploads(broker)).change(topic, listed[1].upload, rules.as_dead)
        again = Wanted("w", 1, [one.upload for one in listed], "parquet", False)
        failed, mine = await write(broker, again)
        assert (failed.problem.slug, failed.rows, mine) == ("upload-not-found", None, False)
        corrected, mine = await write(broker, await wanted(broker, 1, [[3]]))
        assert (corrected.state, mine) == ("done", True)
        assert await read(broker) == [3]


@pytest.mark.parametrize("anew", [False, True])
async def test_a_topic_that_goes_while_a_write_waits_ends_it(tmp_path, anew):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        gate, topic = Gate(), inside.topic(broker, "t")
        one = await wanted(broker, 1, cut(ALL))
        privates.use_turns(inside.writes(broker), Turns(gate))
        asking = asyncio.create_task(ask(broker, one, 30))
        await gate.reached.wait()
        await inside.deletion(broker).delete(topic)
        if anew:
            await inside.topic_admin(broker).create("t", TopicConfig())
        with pytest.raises(TopicNotFound):
            await asking


async def test_who_waits_is_told_before_a_higher_number_takes_the_record(tmp_path):
    """One that waits looks now and then: here it looks last, and between its looks a higher number comes."""
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        first, second = await wanted(broker, 1, [[1]]), await wanted(broker, 2, [[2]])
        records, turns = privates.records(inside.writes(broker)), asyncio.Semaphore(0)
        privates.use_turns(inside.writes(broker), turns)
        found, late = records.read, Gate()
        waiting = asyncio.create_task(ask(broker, first, 60))
        await until(lambda: inside.writes(broker).under_way == 1)

        async def read_late(where: WorkId) -> Any:
            if asyncio.current_task() is waiting:
                await late()
            return await found(where)

        records.read = read_late
        turns.release()
        await late.reached.wait()
        await until(lambda: inside.writes(broker).under_way == 0)
        with pytest.raises(
            NotReady,
            match="write 1 of writer 'w' has not ended yet, or this broker does not know the write's outcome yet",
        ):
            await ask(broker, second, 0)
        late.open.set()
        assert (await waiting)[0].state == "done"
        turns.release()
        assert (await write(broker, second))[0].state == "done"
        assert sorted(await read(broker)) == [1, 2]


@pytest.mark.long
async def test_a_topic_has_so_many_writers(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MAX_WRITERS", 1)
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        await write(broker, await wanted(broker, 1, [[1]]))
        with pytest.raises(TooManyWriters):
            await write(broker, Wanted("other", 1, [await upload(broker, file_of([2]), "other/1")], "parquet", False))
        await write(broker, await wanted(broker, 2, [[3]]))


async def begun(broker: Broker, count: int = len(ALL)) -> WorkId:
    """A write whose record is there, with nobody at work."""
    topic = inside.topic(broker, "t")
    where = WorkId.from_topic(topic, "w")
    one = await wanted(broker, 1, cut(list(range(count))))
    await privates.create(inside.writes(broker))(topic, where, one, None)
    return where


async def test_a_list_that_a_record_names_is_not_swept(tmp_path):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        await end_task(broker, "writes")
        await begun(broker)
        await sweep(broker, together, 3)
        await check_lists(together, 1)
        record, _ = await write(broker, Wanted("w", 1, ["other"], "parquet", False))
        assert (record.state, record.rows_done) == ("done", len(ALL))


@pytest.mark.long
async def test_two_who_work_at_once_take_all_rows_once(tmp_path):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        await end_task(broker, "writes")
        where = await begun(broker)
        at_work, held = (
            privates.runner(inside.writes(broker)),
            await privates.records(inside.writes(broker)).read(where),
        )
        await asyncio.gather(*(at_work.run(where, held, asyncio.Event()) for _ in range(2)))
        record = await record_of(broker)
        assert (record.state, record.rows_done, sum(one.count for one in record.segments)) == ("done", 6500, 6500)
        assert sorted(await read(broker)) == ALL


@pytest.mark.long
async def test_a_record_of_an_earlier_day_goes_on_behind_all_that_tables_know(tmp_path):
    """More batches than a table remembers: those below are counted, and nothing is taken twice."""
    count = 14 * BATCH + 300
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        await end_task(broker, "writes")
        where, records = await begun(broker, count), privates.records(inside.writes(broker))
        seen: list[Any] = []
        with using(lambda place: seen.append(place)):
            stopping, at_work = asyncio.Event(), privates.runner(inside.writes(broker))
            first = asyncio.create_task(at_work.run(where, await records.read(where), stopping))
            while "write.running" not in seen:
                await asyncio.sleep(0.002)
            old = await records.read(where)
            while seen.count("write.batch") < 12:
                await asyncio.sleep(0.002)
        stopping.set()
        await first
        left = await records.read(where)
        assert left.record.broker is None
        assert left.record.rows_done % BATCH == 0
        together.coordination.went_back = True
        assert old.record.state == "running"
        back = await records.write(where, left, msgspec.structs.replace(old.record, broker=None))
        assert back is not None
        await inside.writes(broker).adopt()
        record, again = await write(broker, Wanted("w", 1, ["other"], "parquet", False))
        assert (record.state, record.rows_done, again) == ("done", count, False)
        assert sorted(await read(broker)) == list(range(count))


@pytest.mark.long
async def test_the_store_knows_a_write_before_anybody_is_told(tmp_path):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        await until(lambda: broker.leadership.snapshots.made)
        record, _ = await write(broker, await wanted(broker, 1, [[1], [2]]))
        found = await broker.context.backups.newest(1)
        assert found is not None
        key = privates.records(inside.writes(broker)).key(WorkId.from_topic(inside.topic(broker, "t"), "w"))
        assert keys.WRITES.require(Entry(key, found.state.keys[key], 1)).record == record


@pytest.mark.parametrize(
    "place",
    [
        soaked("write.running"),
        soaked("change.made"),
        soaked("write.batch:5"),
        later("write.done"),
        later("change.made:2"),
    ],
)
async def test_a_write_outlives_the_loss_of_coordination(tmp_path, place):
    """The records of its uploads are lost; the store has its files, their list, and what was decided."""
    given = {"import_batch_rows": BATCH, "snapshot_s": 3600, "journal": "object"}
    async with returned(tmp_path, 1, import_reader=READER, **given) as world:
        (dying,) = world.together.brokers
        await inside.topic_admin(dying).create("t", TopicConfig(initial_segments=2))
        await world.snapshot()
        first = await wanted(dying, 7, cut(ALL))
        await dies(world.together, dying, place, write(dying, first))
        waiting = await world.bring_back(CopiedCoordination(), [dying])
        await world.rebuild(waiting[0])
        (alive,) = await world.go_on(waiting)
        record, begun = await write(alive, await wanted(alive, 7, cut(ALL[::-1], 3)))
        assert (record.state, record.rows_done, begun) == ("done", len(ALL), place == "write.running")
        assert sorted(await read(alive)) == ALL


@pytest.mark.long
async def test_what_drains_lets_go_and_another_goes_on(tmp_path):
    async with some(tmp_path, 2) as together:
        going, other = together.brokers
        for one in together.brokers:
            await end_task(one, "writes")
        where, stopping = await begun(going), asyncio.Event()
        records = privates.records(inside.writes(going))

        def points(place: str) -> None:
            if place == "write.batch":
                stopping.set()

        with using(points):
            assert not await privates.runner(inside.writes(going)).run(where, await records.read(where), stopping)
        left = (await records.read(where)).record
        assert (left.broker, left.rows_done % BATCH, left.rows_done < len(ALL)) == (None, 0, True)
        record, again = await write(other, Wanted("w", 1, ["other"], "parquet", False))
        assert (record.state, record.rows_done, again) == ("done", len(ALL), False)
        assert sorted(await read(other)) == ALL


async def test_requests_and_answers(tmp_path):
    async with some(tmp_path) as together:
        (broker,) = together.brokers
        transport = httpx.ASGITransport(Application(broker))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1/topics/t") as http:
            one = await wanted(broker, 5, [[1], [2, 3]])
            body = {"uploads": one.uploads, "format": "parquet"}
            found = await http.put("/writes/w/5", json=body)
            assert found.status_code == 200, found.text
            answer = found.json()
            assert answer.pop("segments")
            assert answer == {
                "writer": "w",
                "number": 5,
                "state": "done",
                "format": "parquet",
                "uploads": 2,
                "count": 3,
                "rows": 3,
                "broker": None,
                "duplicate": False,
            }
            assert (await http.put("/writes/w/5", json=body)).json()["duplicate"]
            shown = (await http.get("/writes/w")).json()
            assert (shown["number"], shown["count"], "duplicate" in shown) == (5, 3, False)
            bad = await wanted(broker, 6, [[1], [2]], bad=1)
            failed = await http.put("/writes/w/6", json={"uploads": bad.uploads, "format": "parquet"})
            assert failed.status_code == 422
            assert failed.json()["upload_id"] == bad.uploads[1]
            told = (await http.get("/writes/w")).json()["problem"]
            assert (told["type"], told["upload_id"]) == ("/problems/invalid-messages", bad.uploads[1])
            assert (told["errors"][0]["index"], told["invalid"]) == (1, 1)
            (listed,) = (await http.get("/writes")).json()["writes"]
            assert (listed["problem"]["upload_id"], "errors" in listed["problem"]) == (bad.uploads[1], False)
            lower = await http.put("/writes/w/4", json=body)
            assert (lower.status_code, lower.json()["type"], lower.json()["newest"]) == (
                409,
                "/problems/write-out-of-order",
                6,
            )
            await http.put("/writes/v/0", json={"uploads": [await upload(broker, file_of([4]), "v/0")], **FORMAT})
            page = (await http.get("/writes", params={"page_size": 1})).json()
            assert ([each["writer"] for each in page["writes"]], page["next_page_token"]) == (["v"], "v")
            page = (await http.get("/writes", params={"page_size": 1, "page_token": "v"})).json()
            assert ([each["writer"] for each in page["writes"]], "next_page_token" in page) == (["w"], False)
            for uploads in ([], [one.uploads[0]] * 2, [f"20260101-0-{n:032x}" for n in range(100_001)]):
                refused = await http.put("/writes/w/7", json={"uploads": uploads, "format": "parquet"})
                assert refused.status_code in (400, 422), refused.text
            assert (await http.get("/writes/nobody")).status_code == 404
            metrics = (await http.get("http://localhost/metrics")).text
            assert 'seaweedq_file_works_total{kind="write",state="failed"} 1.0' in metrics
            assert 'seaweedq_file_work_rows_total{kind="write"} 4.0' in metrics
            for path in ("/writes/w/-1", f"/writes/w/{2**63}", "/writes/w:/1", f"/writes/{'w' * 129}/1"):
                assert (await http.put(path, json=body)).status_code == 422, path
            assert (await http.put(f"/writes/{'w' * 128}/{2**63 - 1}", json={**body, "wait": 1})).status_code == 422
