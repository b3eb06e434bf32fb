"""Two brokers that both think an import is theirs: rows are taken once, one of the two ends it, the other finds out."""

import asyncio
import io
from functools import partial

import pyarrow.parquet as pq
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.imports.importing import Importing
from seaweedq.broker.imports.reader_process import ReaderProcess
from seaweedq.broker.imports.record_store import ImportId
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
from tests.support.http.uploading_files import numbered

pytestmark = pytest.mark.process

ROWS = 30_000  # thirty batches


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
    pq.write_table(numbered(ROWS), sink)
    data = sink.getvalue()

    async def chunks():
        yield data

    upload, _ = await inside.uploads(broker).create(topic, len(data), "x/y", None, None)
    await inside.uploads(broker).receive(topic, upload, chunks())
    return upload


async def counted(broker: Broker) -> int:
    topic = inside.topic(broker, "t")
    return sum(segment.end for segment in topic.opened.values())


async def begun(broker: Broker, upload: str) -> ImportId:
    """An import whose record is there, with nobody at work."""
    topic = inside.topic(broker, "t")
    where = ImportId.of(topic, upload)
    await privates.create(inside.imports(broker))(topic, where, "parquet", False)
    return where


async def test_all_rows_are_taken_once(broker):
    where = await begun(broker, await uploaded(broker))
    importing = privates.runner(inside.imports(broker))
    held = await privates.records(inside.imports(broker)).read(where)
    await asyncio.gather(*(importing.run(where, held, asyncio.Event()) for _ in range(2)))
    found = await inside.imports(broker).show(inside.topic(broker, "t"), where.upload_id)
    # whoever lost the race for the record has stopped; the other one has brought it to its end
    assert (found.state, found.rows_done, sum(one.count for one in found.segments)) == ("done", ROWS, ROWS)
    assert await counted(broker) == ROWS


async def test_one_that_is_behind_takes_nothing(broker):
    """The zombie wakes with a record of long ago: its batches are duplicates, or out of order, and it stops."""
    where = await begun(broker, await uploaded(broker))
    importing, stopping = privates.runner(inside.imports(broker)), asyncio.Event()
    first = asyncio.create_task(
        importing.run(where, await privates.records(inside.imports(broker)).read(where), stopping)
    )
    while (old := await privates.records(inside.imports(broker)).read(where)).record.rows_done < 4000:
        await asyncio.sleep(0.005)
    await first
    assert await counted(broker) == ROWS
    await importing.run(where, old, asyncio.Event())
    assert await counted(broker) == ROWS
    assert (await inside.imports(broker).show(inside.topic(broker, "t"), where.upload_id)).state == "done"


async def test_what_was_taken_in_part_is_completed(broker, monkeypatch):
    """Every third try fails after some or all of its rows were taken."""
    where = await begun(broker, await uploaded(broker))
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
    assert tries > ROWS // 1000
    assert await counted(broker) == ROWS


async def test_who_parts_lets_go_and_the_next_one_goes_on(broker):
    where = await begun(broker, await uploaded(broker))
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
    assert await counted(broker) == left.record.rows_done < ROWS
    imports: Importing = inside.imports(broker)
    await imports.adopt()
    told = await imports.wait(inside.topic(broker, "t"), where.upload_id, 60)
    assert (told.state, told.rows_done) == ("done", ROWS)
    assert await counted(broker) == ROWS
