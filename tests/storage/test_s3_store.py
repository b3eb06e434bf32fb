"""What the S3 store alone promises: readers that ask seldom, bodies without copies, clear refusals."""

import asyncio
import gc
import io
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seaweedq.cli.server.backends import open_store
from seaweedq.clock import Ids, SystemClock
from seaweedq.errors import InvalidRequest, StoreUnavailable
from seaweedq.settings import Settings
from seaweedq.storage.endpoints import Endpoints
from seaweedq.storage.instrumented import InstrumentedStore
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.ranges import AHEAD_BYTES, TAIL_BYTES, RangeReader
from seaweedq.storage.s3 import S3Store, s3_stores
from tests.support import privates
from tests.support.processes.s3_service import Absent, S3Service
from tests.support.storage.clients_put import key_of
from tests.support.storage.store_proxy import Exchange, proxy_of, through

MIB = 1024 * 1024


@pytest.fixture
async def store(s3: S3Service) -> AsyncIterator[S3Store]:
    store = S3Store(f"s3://{s3.place()}/below/")
    yield store
    await store.close()


@pytest.mark.service
async def test_folder_markers_of_other_tools_are_no_objects_and_shorten_no_page(store: S3Store) -> None:
    for key in ("t", "t/a", "t/b"):
        await privates.bucket(store).create(f"{key_of(store, key)}/", b"")
    for name in ("t/a/1", "t/b/1", "t/b/2"):
        await store.create(name, b"")
    assert await store.list("t/", limit=2) == ["t/a/1", "t/b/1"]
    assert await store.list("t/", after="t/b/1", limit=2) == ["t/b/2"]


@pytest.mark.service
async def test_a_list_starts_after_names_of_its_prefix_alone(s3: S3Service) -> None:
    """SeaweedFS 4.44 lists other keys, or none, where `StartAfter` does not begin with `Prefix`."""
    asked: list[str] = []

    async def note(exchange: Exchange) -> None:
        asked.append(exchange.head.split(b" ")[1].decode())
        await through(exchange)

    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}/below", proxy.endpoint)
        for name in ("a/1", "m/1", "m/2", "z/1"):
            await store.create(name, b"")
        proxy.inject(note)
        assert await store.list("m/") == ["m/1", "m/2"]
        assert await store.list("m/", after="m/1") == ["m/2"]
        for outside in ("a/1", "z"):
            with pytest.raises(ValueError, match="does not begin with the prefix"):
                await store.list("m/", after=outside)
        await store.close()
    assert ["start-after" in target for target in asked] == [False, True]


@pytest.mark.service
@pytest.mark.long
async def test_more_names_than_a_page_holds(s3: S3Service) -> None:
    store = S3Store(f"s3://{s3.place()}")
    names = [f"n/{number:04d}" for number in range(1100)]
    for start in range(0, len(names), 50):
        await asyncio.gather(*(store.create(name, b"") for name in names[start : start + 50]))
    assert await store.list("n/", limit=2000) == names
    assert await store.list("n/", after="n/0041", limit=1050) == names[42:1092]
    await store.close()


@pytest.mark.service
async def test_a_large_body_is_sent_whole_and_not_copied(s3: S3Service) -> None:
    store = S3Store(f"s3://{s3.place()}")
    await store.create("first", b"connects")
    memory = np.random.default_rng(1).integers(0, 256, 32 * MIB, np.uint8)
    data = memoryview(pa.py_buffer(memory))
    tracemalloc.start()
    assert await store.create("large", data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(data) / 2
    assert await store.read("large", 31 * MIB) == bytes(data[31 * MIB :])
    await store.close()


@pytest.mark.service
async def test_a_store_is_used_in_two_lives_also_at_the_root_of_its_bucket(s3: S3Service) -> None:
    try:
        store = S3Store(f"s3://{s3.bucket()}")
    except Absent as absent:
        pytest.skip(str(absent))
    await store.create("a", b"a")
    await store.close()
    assert await store.read("a") == b"a"
    await store.close()


@pytest.mark.service
async def test_parquet_is_opened_with_one_request_and_a_row_group_read_with_few(s3: S3Service) -> None:
    sink = io.BytesIO()
    columns = {f"c{n}": np.random.default_rng(n).integers(0, 1 << 60, 20_000) for n in range(3)}
    pq.write_table(pa.table(columns), sink, row_group_size=10_000)
    async with proxy_of(s3.endpoint) as proxy:
        store = S3Store(f"s3://{s3.place()}", proxy.endpoint)
        await store.create("file.parquet", sink.getvalue())
        proxy.methods.clear()

        def read() -> tuple[int, pa.Table]:
            with store.open("file.parquet") as file:
                parquet = pq.ParquetFile(file)
                opened = len(proxy.methods)
                return opened, parquet.read_row_group(0, columns=["c0", "c1"])

        opened, table = await asyncio.to_thread(read)
        assert opened == 1
        assert len(proxy.methods) <= 3
        assert table["c1"].to_numpy().tolist() == columns["c1"][:10_000].tolist()
        await store.close()


def counted_reader(data: bytes) -> tuple[RangeReader, list[tuple[int, int]]]:
    asked: list[tuple[int, int]] = []

    def fetch(start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[start:end]

    return RangeReader(fetch, len(data), data[-TAIL_BYTES:]), asked


def test_a_reader_takes_the_tail_from_what_it_has_and_reads_ahead() -> None:
    data = np.random.default_rng(2).bytes(2 * MIB)
    reader, asked = counted_reader(data)
    assert reader.seek(-TAIL_BYTES, io.SEEK_END) == len(data) - TAIL_BYTES
    assert reader.read() == data[-TAIL_BYTES:]
    assert reader.read(5) == b""
    reader.seek(100)
    assert reader.read(10) + reader.read(20) == data[100:130]
    assert reader.read(MIB) == data[130 : 130 + MIB]
    assert asked == [(100, 100 + AHEAD_BYTES), (130, 130 + MIB)]
    reader.seek(0)
    assert reader.readall() == data
    space = bytearray(7)
    reader.seek(-4, io.SEEK_END)
    assert reader.readinto(space) == 4
    assert space[:4] == data[-4:]


def test_a_reader_refuses_short_answers_and_what_is_no_place() -> None:
    reader = RangeReader(lambda start, end: b"short", MIB, b"")
    with pytest.raises(StoreUnavailable, match="5 bytes"):
        reader.read(100)
    with pytest.raises(ValueError, match="negative"):
        reader.seek(-1)
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read()


@pytest.mark.parametrize("url", ["s3://", "s3://b", "s3://bucket//x", "s3://bucket/x?versionId=1", "S3://bucket"])
def test_what_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="s3://bucket/prefix"):
        S3Store(url)


@pytest.mark.parametrize("endpoint", ["nonsense", "127.0.0.1:9000", "http://-a:99999"])
async def test_an_endpoint_that_is_no_url_is_a_bad_setting(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    store = S3Store("s3://bucket/x")
    acts = [store.create("a", b""), store.read("a"), store.list(""), store.delete("a"), store.presign_get("a", 60)]
    for act in acts:
        with pytest.raises(InvalidRequest, match=rf"bucket bucket.*{endpoint}.*AWS_ENDPOINT_URL_S3"):
            await act
    with pytest.raises(InvalidRequest, match=endpoint):
        await asyncio.to_thread(store.open, "a")


@pytest.mark.service
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "left"])
def test_a_life_leaves_no_client_to_the_loop_of_the_next_one(s3: S3Service, closes: bool) -> None:
    """Also where the client of its readers is garbage only then. Nothing is heard of on the next life's loop."""
    place, lives = s3.place(), list[S3Store]()

    async def live() -> list[str]:
        heard: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(str(context)))
        store = S3Store(f"s3://{place}/below")
        await store.create(f"{len(lives)}{closes}", b"content")
        await asyncio.to_thread(lambda: store.open(f"{len(lives)}{closes}").read())
        lives.append(store)
        if closes:
            await store.close()
        else:
            await privates.bucket(store).close()
        return heard

    async def next_life() -> list[str]:
        heard: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(str(context)))
        lives.clear()
        gc.collect()
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        return [*heard, *map(repr, others)]

    assert asyncio.run(live()) == []
    assert (
        privates.sessions(privates.endpoint(privates.s3(privates.files(lives[0]._readers))).http_session) is None
    ) == closes
    assert asyncio.run(next_life()) == []


@pytest.mark.service
async def test_an_endpoint_that_was_left_out_is_closed_as_well(s3: S3Service) -> None:
    stores = [S3Store(f"s3://{s3.place()}/below") for _ in range(2)]
    several = Endpoints(stores)
    for one in stores:
        await one.list("a")
    several.leave_out(stores[1])
    await several.close()
    assert [
        privates.sessions(privates.endpoint(privates.s3(privates.files(privates.bucket(one)))).http_session)
        for one in stores
    ] == [None, None]


def test_settings_choose_the_store(tmp_path: Any, ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_store(Settings(data_dir=tmp_path), ids), LocalStore)
    assert isinstance(open_store(Settings(store="s3://bucket/x"), ids), S3Store)
    several = open_store(Settings(store="s3://bucket/x", s3_endpoints="http://a:1, http://b:2,"), ids)
    assert isinstance(several, Endpoints)
    assert [each.endpoint for each in several.endpoints] == ["http://a:1", "http://b:2"]
    assert [each.endpoint for each in s3_stores("s3://bucket", [])] == [None]
    with pytest.raises(InvalidRequest, match=r"gs://.*file:///path or s3://"):
        open_store(Settings(store="gs://bucket"), ids)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InvalidRequest, match=r"pip install .*\[s3\]'"):
        open_store(Settings(store="s3://bucket/x"), ids)


async def test_requests_are_counted_and_all_else_is_had(ids: Ids) -> None:
    inner = MemoryStore()
    store = InstrumentedStore(inner, SystemClock())
    await store.create("a", b"a")
    await store.create("a", b"a")
    await store.list("")
    await store.size("a")
    store.open("a").close()
    assert await store.read("a") == b"a"
    await store.delete("a")
    with pytest.raises(FileNotFoundError):
        await store.digest("a")
    assert store.uri("a")
    assert store.requests == Counter(create=2, list=1, size=1, open=1, read=1, delete=1, digest=1)
    assert (store.sent, store.received) == (Counter(create=2), Counter(read=1))
    assert {name: sum(one["ok"].counts) for name, one in store.durations.items() if any(one["ok"].counts)} == {
        "create": 2,
        "list": 1,
        "size": 1,
        "open": 1,
        "read": 1,
        "delete": 1,
    }
    assert not any(any(one["failed"].counts) for one in store.durations.values())
    assert store.faults is inner.faults
    with pytest.raises(AttributeError, match="nonsense"):
        store.nonsense  # noqa: B018
    assert InstrumentedStore(SimpleNamespace(endpoints=("x",)), SystemClock()).endpoints == ("x",)
