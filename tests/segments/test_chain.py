"""A chain's names: listed once, never with a gap, read again once a missing file is back. Its sizes and times."""

from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import seaweedq.segments.chain as chain_module
from seaweedq.broker.log.entry_writer import EntryWriter, Source
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.errors import ChainDamaged
from seaweedq.segments.chain import MARKS, Chain, ChainSizes, KnownEntry, RemoteSizeHistory
from seaweedq.segments.entry import EntryName
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.storage.memory import MemoryStore
from tests.support.levels import newest

WRITER = EntryWriter("cluster", "broker.1", SystemClock(), SystemIds(), newest)
LAYOUT = Layout.from_format(Format.JSON)
SOURCE = Source("flights", 0, KeyRange(0, KEY_SPACE), LAYOUT)


class Busy(MemoryStore):
    """A store where `meanwhile` happens, once, while a listing is on its way back."""

    meanwhile: Callable[[], Awaitable[None]] | None = None
    listings = 0

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        self.listings += 1
        found = await super().list(prefix, after, limit)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            await meanwhile()
        return found


async def append(chain: Chain) -> None:
    await WRITER.append(SOURCE, chain, [(chain.end, rows(2))], ProducerTables.empty(0, SOURCE.key_range), 0)


def rows(count: int) -> pa.RecordBatch:
    return rows_of_singles([Single(None, b"1", None, 0, None)] * count, LAYOUT)


@pytest.fixture
async def store() -> Busy:
    """A store with a chain of four entries, of two rows each."""
    store = Busy()
    chain = Chain(store, SOURCE.topic, SOURCE.segment)
    for _ in range(4):
        await append(chain)
    return store


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page holds less than the chain: its names are listed when they are first asked for."""
    monkeypatch.setattr(chain_module, "PAGE", 2)


async def opened(store: Busy) -> Chain:
    chain = Chain(store, SOURCE.topic, SOURCE.segment)
    await chain.open()
    return chain


async def test_names_are_those_of_the_chain_as_it_was_opened(store: Busy) -> None:
    chain = await opened(store)
    assert [(name.sequence, name.first_offset) for name in await chain.names()] == [(0, 0), (1, 2), (2, 4), (3, 6)]
    assert chain.end == 8


async def test_opening_a_short_chain_is_one_listing_and_its_names_none(store: Busy) -> None:
    before = store.listings
    chain = await opened(store)
    assert len(await chain.names()) == 4
    assert await Chain(store, SOURCE.topic, 1).names() == []
    empty = Chain(store, SOURCE.topic, 2)
    await empty.open()
    assert await empty.names() == []
    assert store.listings == before + 3


@pytest.mark.parametrize("page", [2, 1000])
async def test_a_gap_is_damage_each_time_until_the_file_is_back(
    store: Busy, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "PAGE", page)
    name = f"{Chain(store, SOURCE.topic, SOURCE.segment).folder}00000001-0000000000000002.parquet"
    content = await store.read(name)
    await store.delete(name)
    chain = await opened(store)
    for _ in range(2):
        with pytest.raises(ChainDamaged, match="follows"):
            await chain.names()
    await store.create(name, content)
    assert len(await chain.names()) == 4


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
async def test_objects_of_somebody_else_are_left_out(store: Busy, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them took the segment down."""
    monkeypatch.setattr(chain_module, "PAGE", page)
    folder = Chain(store, SOURCE.topic, SOURCE.segment).folder
    foreign = (
        ".a",
        ".b",
        ".c",
        "00000001.crc",
        "00000004-x",
        "_SUCCESS",
        "_tmp/00000004-0000000000000008.parquet",
        "~",
    )
    for name in foreign:
        await store.create(folder + name, b"")
    chain = await opened(store)
    assert chain.end == 8
    names = await chain.names()
    assert [name.sequence for name in names] == [0, 1, 2, 3]
    assert [each.name for each in await chain.listed()] == names
    assert set(await chain.sizes(names)) == set(names)
    assert await chain.first_from(2) == names[2]
    assert await chain.first_from(4) is None
    await append(chain)
    assert (await opened(store)).end == 10
    empty = Chain(store, SOURCE.topic, 1)
    await store.create(f"{empty.folder}_SUCCESS", b"")
    await empty.open()
    assert empty.end == 0


@pytest.mark.usefixtures("long")
async def test_a_last_entry_that_is_gone_is_damage(store: Busy) -> None:
    chain = await opened(store)
    await store.delete(f"{chain.folder}00000003-0000000000000006.parquet")
    with pytest.raises(ChainDamaged, match="00000003-0000000000000006"):
        await chain.names()


@pytest.mark.usefixtures("long")
async def test_an_entry_that_is_appended_during_the_listing_is_among_the_names(store: Busy) -> None:
    chain = await opened(store)
    store.meanwhile = lambda: append(chain)
    assert [name.sequence for name in await chain.names()] == [0, 1, 2, 3, 4]
    await append(chain)
    assert [name.sequence for name in await chain.names()] == [0, 1, 2, 3, 4, 5]


def test_the_bytes_since_an_offset_are_a_share_of_its_file_and_all_later() -> None:
    known = {
        EntryName(0, 0): KnownEntry(0, 5),
        EntryName(1, 0): KnownEntry(100, 10),
        EntryName(2, 10): KnownEntry(40, 20),
    }
    extent = ChainSizes(known, 20)
    assert [extent.size_since(offset) for offset in (0, 5, 10, 15, 20)] == [140, 90, 40, 20, 0]
    assert [extent.arrival_us(offset) for offset in (0, 9, 10, 30)] == [10, 10, 20, 20]


def test_entries_that_are_not_known_count_as_those_that_are() -> None:
    extent = ChainSizes({EntryName(4, 40): KnownEntry(10, 7), EntryName(8, 80): KnownEntry(10, 9)}, 90)
    assert extent.size_since(40) == 50, "of three between only their number is known"
    assert extent.size_since(0) == 90
    assert extent.arrival_us(0) == 7, "it came then or before: a lag is never said to be older than it is"
    assert ChainSizes({}, 0).size_since(0) == 0
    assert ChainSizes({}, 0).arrival_us(0) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 1000)), max_size=12))
@example([(1, 0, 1), (1, 0, 1)])
def test_what_grows_by_one_entry_at_a_time_is_what_would_be_made_of_all(steps: list[tuple[int, int, int]]) -> None:
    grown, known, sequence, offset, of_messages = ChainSizes({}, 0), {}, 0, 0, 0
    for ahead, rows, size in steps:
        sequence += ahead
        of_messages += size if rows else 0
        name, entry = EntryName(sequence, offset), KnownEntry(size, sequence)
        known[name], offset = entry, offset + rows
        grown.append(name, entry, offset)
    whole = ChainSizes(known, offset)
    for at in range(offset + 2):
        assert grown.size_since(at) == whole.size_since(at)
        assert grown.arrival_us(at) == whole.arrival_us(at)
    if known:
        assert grown.size_since(0) >= of_messages, "an entry without rows may count for nothing"
        grown.record_arrival(max(known), 7)
        assert grown.arrival_us(offset) == 7


def test_a_course_has_the_last_mark_up_to_an_offset() -> None:
    history = RemoteSizeHistory()
    assert history.arrival_us(0) is None
    assert history.size_of_rows(5) == 0
    history.record_arrival(10, 100)
    history.record_arrival(20, 200)
    history.record_arrival(15, 140)  # read, after its end was heard of
    history.record_arrival(20, 190)
    assert [history.arrival_us(offset) for offset in (0, 10, 14, 15, 25)] == [100, 100, 100, 140, 190]
    history.record_size(2, 30)
    assert history.size_of_rows(10) == 150


def test_a_course_is_bounded() -> None:
    history = RemoteSizeHistory()
    for offset in range(10 * MARKS):
        history.record_arrival(offset, offset)
    assert len(history._marks) <= MARKS
    assert history.arrival_us(0) == 0
    assert (history.arrival_us(10 * MARKS) or 0) >= 10 * MARKS - 2 * 10
