"""The names of a chain: listed once, never with a gap, and read again once a missing file is back."""

from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest

import seaweedq.segments.chain as chain_module
from seaweedq.broker.log.entry_writer import EntryWriter, Source
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.errors import ChainDamaged
from seaweedq.segments.chain import Chain
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.layout import Format, Layout, Single, rows_of_singles
from seaweedq.segments.producers import ProducerTables
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
