"""Imports among several brokers: one of them dies, stands still, or is told to stop, and others go on; two work on one
import. Rows are taken once, and beside publishes the order of what was acknowledged holds.
"""

import asyncio
import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.imports.importing import Importing
from seaweedq.broker.imports.reader_process import ReaderProcess
from seaweedq.broker.imports.records import WorkId
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import PartlyTaken, Unavailable
from seaweedq.import_worker import COMMAND as IMPORT_WORKER
from seaweedq.settings import Settings
from seaweedq.storage.local import LocalStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.environments import environment
from tests.support.http.uploading_files import Importer, check_all_once, numbered, parquet
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.together import Together, started

pytestmark = pytest.mark.process

ROWS = 120_000  # 120 batches


@pytest.fixture
def brokers(broker_process: Callable[..., BrokerProcess]) -> Iterator[Together]:
    def make(*arguments: str, **more) -> BrokerProcess:
        return broker_process(*arguments, "--import-batch-rows", "1000", **more)

    with started(make) as together:
        together.make()
        yield together


def begun(brokers: Together, importer: Importer, batches: int = 4) -> tuple[str, int]:
    """An import that has come so far, and the broker at which it runs."""
    upload = importer.upload(parquet(numbered(ROWS)))
    assert importer.ask(upload, wait_s=0).status_code == 202
    end = time.monotonic() + 60
    while (told := importer.show(upload).json())["count"] < batches * 1000:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert told["state"] == "running"
    url = next(b["url"] for b in brokers.get(0, "/v1/cluster")["brokers"] if b["id"] == told["broker"])
    return upload, brokers.urls.index(url)


def finish(importer: Importer, upload: str) -> None:
    told = importer.ended(upload, 120)
    assert (told["state"], told["count"]) == ("done", ROWS)
    assert sum(one["count"] for one in told["segments"]) == ROWS
    check_all_once(importer.column(), ROWS)


@pytest.mark.long
def test_one_that_is_killed_is_followed(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]))
    other = importer_of(brokers.urls[(runner + 1) % 3])
    brokers.signal(runner)
    finish(other, upload)


@pytest.mark.long
def test_one_that_stands_still_comes_back_and_does_no_harm(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]))
    other = importer_of(brokers.urls[(runner + 1) % 3])
    before = other.show(upload).json()["broker"]
    with brokers.stopped(runner):
        end = time.monotonic() + 60
        while (told := other.show(upload)).json()["broker"] == before:
            assert told.json()["state"] == "running", "it was over before it was stopped"
            assert time.monotonic() < end
            time.sleep(0.05)
    finish(other, upload)


@pytest.mark.long
def test_one_that_drains_lets_go_and_another_goes_on(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]))
    pid = brokers.pid(runner)
    os.kill(pid, signal.SIGTERM)
    finish(importer_of(brokers.urls[(runner + 1) % 3]), upload)


@pytest.mark.long
def test_who_asks_elsewhere_joins(brokers, importer_of):
    upload, runner = begun(brokers, importer_of(brokers.urls[0]), batches=1)
    answer = importer_of(brokers.urls[(runner + 1) % 3]).ask(upload, wait_s=90)
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] == ROWS
    finish(importer_of(brokers.urls[(runner + 2) % 3]), upload)


KEYS, ORDERED = 5, 20_000


def named(count: int, who: str) -> pa.Table:
    values = [json.dumps({"who": who, "n": n}) for n in range(count)]
    return pa.table({"value": values, "_key": [f"k{n % KEYS}" for n in range(count)]})


def publish(importer: Importer, who: str, first: int, count: int) -> None:
    rows = [{"key": f"k{n % KEYS}", "value": {"who": who, "n": n}} for n in range(first, first + count)]
    answer = importer.http.post(f"{importer.path}/messages", json={"messages": rows})
    assert answer.status_code == 200, answer.text


def test_keys_keep_their_order(broker_process, importer_of):
    broker = broker_process("--import-batch-rows", "1000")
    importer = importer_of(broker.url)
    importer.make(initial_segments=3)
    publish(importer, "before", 0, 50)
    over = Event()

    def beside() -> int:
        count = 0
        with_own = importer_of(broker.url)
        while not over.is_set() or not count:
            publish(with_own, "beside", count, 20)
            count += 20
        return count

    with ThreadPoolExecutor(3) as pool:
        publisher = pool.submit(beside)
        uploads = [importer.upload(parquet(named(ORDERED, who))) for who in ("a", "b")]
        answers = list(pool.map(lambda upload: importer_of(broker.url).ask(upload), uploads))
        over.set()
        assert [answer.json()["count"] for answer in answers] == [ORDERED, ORDERED]
        count = publisher.result()
    publish(importer, "after", 0, 50)
    table = importer.column()
    seen: dict[str, list[tuple[str, int]]] = {}
    for key, text in zip(table["_key"].to_pylist(), table["value"].to_pylist(), strict=True):
        value = json.loads(text)
        seen.setdefault(key, []).append((value["who"], value["n"]))
    totals = {"before": 50, "beside": count, "a": ORDERED, "b": ORDERED, "after": 50}
    for number in range(KEYS):
        found = seen[f"k{number}"]
        for who, total in totals.items():
            assert [n for one, n in found if one == who] == list(range(number, total, KEYS)), who
        assert {who for who, _ in found[:10]} == {"before"}
        assert {who for who, _ in found[-10:]} == {"after"}


def test_a_segment_that_splits_and_merges_meanwhile(broker_process, importer_of):
    broker = broker_process("--import-batch-rows", "1000")
    importer = importer_of(broker.url)
    importer.make()
    upload = importer.upload(parquet(numbered(60_000, keys=200)))
    assert importer.ask(upload, wait_s=0).status_code == 202
    split = importer.http.post(f"{importer.path}/segments/0/split", json={})
    assert split.status_code in (200, 202), split.text
    halves = [
        s["id"] for s in importer.http.get(f"{importer.path}/segments").json()["segments"] if s["state"] == "open"
    ]
    merged = importer.http.post(f"{importer.path}/segments/{halves[0]}/merge", json={"with": halves[1]})
    assert merged.status_code in (200, 202), merged.text
    assert importer.ended(upload)["count"] == 60_000
    table = importer.column()
    found: dict[str, list[int]] = {}
    for key, text in zip(table["_key"].to_pylist(), table["value"].to_pylist(), strict=True):
        found.setdefault(key, []).append(json.loads(text)["n"])
    assert found == {f"k{k}": list(range(k, 60_000, 200)) for k in range(200)}


SHARED = 30_000  # thirty batches


@pytest.fixture
async def broker(tmp_path):
    coordination = MemoryCoordination(SystemClock())
    settings = Settings(data_dir=tmp_path / "data", import_batch_rows=1000)
    store = LocalStore(tmp_path / "store", SystemIds())
    made = Broker(environment(settings, store, coordination, import_reader=partial(ReaderProcess.start, IMPORT_WORKER)))
    made.lock()
    await made.start()
    await end_task(made, "imports")  # who goes on is the tests' to say
    await inside.topic_admin(made).create("t", TopicConfig(initial_segments=3))
    yield made
    await made.stop()
    await coordination.close()


async def uploaded(broker: Broker) -> str:
    topic = inside.topic(broker, "t")
    sink = io.BytesIO()
    pq.write_table(numbered(SHARED), sink)
    data = sink.getvalue()

    async def chunks():
        yield data

    upload, _ = await inside.uploads(broker).create(topic, len(data), "x/y", None, None)
    await inside.uploads(broker).receive(topic, upload, chunks())
    return upload


async def counted(broker: Broker) -> int:
    topic = inside.topic(broker, "t")
    return sum(segment.end for segment in topic.opened.values())


async def shared_import(broker: Broker, upload: str) -> WorkId:
    """An import whose record is there, with nobody at work."""
    topic = inside.topic(broker, "t")
    where = WorkId.from_topic(topic, upload)
    await privates.create(inside.imports(broker))(topic, where, "parquet", False, None, None)
    return where


async def test_all_rows_are_taken_once(broker):
    where = await shared_import(broker, await uploaded(broker))
    importing = privates.runner(inside.imports(broker))
    held = await privates.records(inside.imports(broker)).read(where)
    await asyncio.gather(*(importing.run(where, held, asyncio.Event()) for _ in range(2)))
    found = await inside.imports(broker).show(inside.topic(broker, "t"), where.name)
    # whoever lost the race for the record has stopped; the other one has brought it to its end
    assert (found.state, found.rows_done, sum(one.count for one in found.segments)) == ("done", SHARED, SHARED)
    assert await counted(broker) == SHARED


async def test_one_that_is_behind_takes_nothing(broker):
    """The zombie wakes with a record of long ago: its batches are duplicates, or out of order, and it stops."""
    where = await shared_import(broker, await uploaded(broker))
    importing, stopping = privates.runner(inside.imports(broker)), asyncio.Event()
    first = asyncio.create_task(
        importing.run(where, await privates.records(inside.imports(broker)).read(where), stopping)
    )
    while (old := await privates.records(inside.imports(broker)).read(where)).record.rows_done < 4000:
        await asyncio.sleep(0.005)
    await first
    assert await counted(broker) == SHARED
    await importing.run(where, old, asyncio.Event())
    assert await counted(broker) == SHARED
    assert (await inside.imports(broker).show(inside.topic(broker, "t"), where.name)).state == "done"


async def test_what_was_taken_in_part_is_completed(broker, monkeypatch):
    """Every third try fails after some or all of its rows were taken."""
    where = await shared_import(broker, await uploaded(broker))
    take, tries = inside.publisher(broker).append, 0

    async def torn(topic, prepared):
        nonlocal tries
        tries += 1
        done = await take(topic, prepared)
        if tries % 3 == 0:
            raise PartlyTaken("some were not", taken=[]) if tries % 2 else Unavailable("no answer", retry_after_s=1)
        return done

    monkeypatch.setattr(inside.publisher(broker), "append", torn)
    monkeypatch.setattr("seaweedq.broker.imports.runner.PAUSE_S", 0.01)
    await privates.runner(inside.imports(broker)).run(
        where, await privates.records(inside.imports(broker)).read(where), asyncio.Event()
    )
    assert tries > SHARED // 1000
    assert await counted(broker) == SHARED


async def test_who_parts_lets_go_and_the_next_one_goes_on(broker):
    where = await shared_import(broker, await uploaded(broker))
    importing, stopping = privates.runner(inside.imports(broker)), asyncio.Event()
    first = asyncio.create_task(
        importing.run(where, await privates.records(inside.imports(broker)).read(where), stopping)
    )
    while (await privates.records(inside.imports(broker)).read(where)).record.rows_done < 4000:
        await asyncio.sleep(0.005)
    stopping.set()
    await first
    left = await privates.records(inside.imports(broker)).read(where)
    assert left.record.broker is None
    assert left.record.rows_done % 1000 == 0
    assert await counted(broker) == left.record.rows_done < SHARED
    imports: Importing = inside.imports(broker)
    await imports.adopt()
    told = await imports.wait(inside.topic(broker, "t"), where.name, 60)
    assert (told.state, told.rows_done) == ("done", SHARED)
    assert await counted(broker) == SHARED
