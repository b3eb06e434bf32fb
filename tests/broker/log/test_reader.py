"""The search for a time in a chain: few requests to the store, however many files there are. Reads of groups that are
larger than the cache: each is decoded once, for all its readers."""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO, cast
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.log import reader as readers
from seaweedq.broker.log.entry_writer import Source
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.log.reader import GroupCache, Reader, find_in_groups
from seaweedq.clock import SystemClock
from seaweedq.concurrency.futures import Signal
from seaweedq.segments import entry as entries
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryMetadata, EntryName, encode_entry, segment_folder
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.storage.interface import ListedObject
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.ranges import TAIL_BYTES, RangeReader

LAYOUT = Layout.from_format(Format.BYTES)
SOURCE = Source("t", 0, KeyRange(0, KEY_SPACE), LAYOUT)
FILES, ROWS = 10_000, 150
STEP_US = 1_000


def time_of(offset: int) -> int:
    """The time of a row; one in seven came late."""
    return offset * STEP_US - (500_000 if offset % 7 == 3 else 0)


class MadeStore(MemoryStore):
    """A store with a chain of 10,000 files, each made when it is read; it counts what S3 would be asked for."""

    requests = 0

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        self.requests += 1
        folder = segment_folder("t", 0)
        first = int(after.removeprefix(folder)[:8]) + ("-" in after.removeprefix(folder)) if after else 0
        return [f"{folder}{EntryName(n, n * ROWS)}" for n in range(first, min(first + limit, FILES))]

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        return [ListedObject(name, 0, 0) for name in await self.list(prefix, after, limit)]

    def open(self, name: str) -> BinaryIO:
        data = entry(EntryName.parse(name).sequence)

        def fetch(start: int, end: int) -> bytes:
            self.requests += 1
            return data[start:end]

        self.requests += 1
        return cast(BinaryIO, RangeReader(fetch, len(data), data[-TAIL_BYTES:]))


def entry(number: int) -> bytes:
    first = number * ROWS
    values = random.Random(number)
    singles = [
        Single(None, values.randbytes(2_000), None, time_of(offset), None) for offset in range(first, first + ROWS)
    ]
    newest_us = max(time_of(offset) for offset in range(max(0, first - 7), first + ROWS))
    metadata = EntryMetadata("c", "t", 0, 0, KEY_SPACE, number, first, first + ROWS, "b", "n", 0, 0, newest_us, b"")
    return encode_entry([(first, rows_of_singles(singles, LAYOUT))], LAYOUT, metadata).to_pybytes()


def opened(chain: Chain) -> OpenSegment:
    tables = ProducerTables.empty(0, KeyRange(0, KEY_SPACE))
    return OpenSegment(SOURCE, chain, tables, Budget(1 << 30), Signal(), lambda _: None)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(-1, 31))
def test_the_first_row_of_an_entry_that_reaches_a_time_is_found(times: list[int], wanted: int) -> None:
    """Also where row groups have to be left out."""
    singles = [Single(None, b"", None, at, None) for at in times]
    metadata = EntryMetadata("c", "t", 0, 0, KEY_SPACE, 0, 5, 5 + len(times), "b", "n", 0, 0, max(times), b"")
    with patch.object(entries, "ROW_GROUP_ROWS", 4):
        data = encode_entry([(5, rows_of_singles(singles, LAYOUT))], LAYOUT, metadata)
    parquet = pq.ParquetFile(pa.BufferReader(data))
    assert parquet.num_row_groups == -(-len(times) // 4)
    first = next((at for at, time in enumerate(times) if time >= wanted), None)
    expected = (5 + len(times), False) if first is None else (5 + first, True)
    assert find_in_groups(parquet, 5, wanted) == expected


@pytest.mark.parametrize("file", [0, 4_321, FILES - 1])
async def test_a_time_in_ten_thousand_files_takes_forty_requests(file: int) -> None:
    store = MadeStore()
    chain = Chain(store, "t", 0)
    await chain.open()
    opening = store.requests
    reader = Reader(GroupCache(Budget(1 << 30), 1 << 20), SystemClock())
    wanted = file * ROWS + 77
    assert await reader.find(opened(chain), time_of(wanted)) == wanted
    assert store.requests - opening <= 30
    assert store.requests <= 40
    before = store.requests
    assert await reader.find(opened(chain), time_of(FILES * ROWS) + 1) == FILES * ROWS
    assert store.requests - before <= 20  # the names are known


@pytest.mark.parametrize("limit", [0, 100_000, 1 << 20])
async def test_a_group_larger_than_the_cache_is_decoded_once_for_all_its_readers(limit: int) -> None:
    chain, budget = Chain(MadeStore(), "t", 0), Budget(1 << 30)
    await chain.open()
    segment, reader = opened(chain), Reader(GroupCache(budget, limit), SystemClock())

    async def listen() -> None:
        for offset in range(0, ROWS, 10):
            ((first, rows),) = await reader.read(segment, offset, 10, 1 << 20)
            assert (first, rows.num_rows) == (offset, 10)

    with patch.object(readers, "load", wraps=readers.load) as load:
        for _ in range(5):
            await asyncio.gather(*(listen() for _ in range(10)))
    assert load.call_count == 1
    assert ROWS * 2_000 < budget.cached < ROWS * 2_200


async def test_the_newest_group_alone_may_pass_the_limit_of_the_cache() -> None:
    chain, budget = Chain(MadeStore(), "t", 0), Budget(1 << 30)
    await chain.open()
    cache = GroupCache(budget, 100_000)
    segment, reader = opened(chain), Reader(cache, SystemClock())
    for number in range(3):
        await reader.read(segment, number * ROWS, 1, 1 << 20)
        assert budget.cached < ROWS * 2_200
    assert cache.get((chain.folder, 1, 0)) is None
    assert cache.get((chain.folder, 2, 0)) is not None
    cache.shrink()
    assert budget.cached == 0


@pytest.mark.parametrize(("limit", "most"), [(0, 1), (700_000, 2)])
async def test_groups_that_are_decoded_at_a_time_take_no_more_than_the_cache_may(limit: int, most: int) -> None:
    """Each takes 300 kB. More of them than fit wait."""
    chain = Chain(MadeStore(), "t", 0)
    await chain.open()
    segment, reader = opened(chain), Reader(GroupCache(Budget(1 << 30), limit), SystemClock())
    running, highest, lock = 0, 0, threading.Lock()

    def counted(*arguments: Any) -> readers.Group:
        nonlocal running, highest
        with lock:
            running += 1
            highest = max(highest, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return load(*arguments)

    load = readers.load
    with patch.object(readers, "DECODING_BYTES", 1000), patch.object(readers, "load", counted):
        found = await asyncio.gather(*(reader.read(segment, number * ROWS, 1, 1 << 20) for number in range(12)))
    assert [pieces[0][0] for pieces in found] == [number * ROWS for number in range(12)]
    assert highest == most


async def test_a_decoding_that_hangs_holds_others_up_for_a_moment() -> None:
    chain = Chain(MadeStore(), "t", 0)
    await chain.open()
    segment, reader = opened(chain), Reader(GroupCache(Budget(1 << 30), 0), SystemClock())
    hangs, goes_on = threading.Event(), threading.Event()

    def stuck(*arguments: Any) -> readers.Group:
        hangs.set()
        goes_on.wait(60)
        return load(*arguments)

    load = readers.load
    with patch.object(readers, "DECODING_BYTES", 1000), patch.object(readers, "ROOM_S", 0.1):
        with patch.object(readers, "load", stuck):
            first = asyncio.create_task(reader.read(segment, 0, 1, 1 << 20))
            await asyncio.to_thread(hangs.wait, 60)
        try:
            ((offset, _),) = await asyncio.wait_for(reader.read(segment, ROWS, 1, 1 << 20), 30)
            assert offset == ROWS
            assert not first.done()
        finally:
            goes_on.set()
        assert await first
