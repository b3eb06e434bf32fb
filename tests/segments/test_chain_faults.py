"""A chain over a store that fails: an ambiguous put is put again, and the nonce inside the object decides."""

import itertools
from collections.abc import Callable

import pyarrow as pa
import pytest

from seaweedq.errors import ChainDamaged, Fenced, StoreUnavailable
from seaweedq.segments.chain import LAST_PAUSE_S, Chain
from seaweedq.segments.entry import EntryMetadata, EntryName, Seal, encode_entry
from seaweedq.segments.layout import Format, Layout
from seaweedq.storage.memory import MemoryStore

LAYOUT = Layout.from_format(Format.JSON)


class Pauses:
    """Does not sleep; remembers for how long it should have."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        assert len(self.asked) < 50, "it tries for ever"


class Faults:
    """Fails at the moments named, one after another, and counts all."""

    def __init__(self, *moments: str, act: Callable[[], None] = lambda: None) -> None:
        self.left = list(moments)
        self.act = act
        self.seen: list[str] = []

    def __call__(self, moment: str, name: str) -> None:
        self.seen.append(moment)
        if self.left and moment == self.left[0]:
            self.left.pop(0)
            self.act()
            raise StoreUnavailable(f"{moment} {name}")


def entry(chain: Chain, nonce: str, count: int = 1, seal: Seal | None = None) -> tuple[EntryMetadata, bytes]:
    first = chain.end
    metadata = EntryMetadata(
        "c" * 32, "t", 0, 0, 10, chain.next.sequence, first, first + count, f"of-{nonce}", nonce, 0, 1, 2, b"", seal
    )
    rows = pa.RecordBatch.from_arrays(
        [pa.array([0] * count, LAYOUT.rows(0).field(0).type), pa.array(["{}"] * count)], schema=LAYOUT.rows(0)
    )
    return metadata, bytes(encode_entry([(first, rows)] if count else [], LAYOUT, metadata))


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def chain(store: MemoryStore, pauses: Pauses) -> Chain:
    return Chain(store, "t", 0, pauses)


async def test_a_reset_after_it_happened_is_done(store: MemoryStore, chain: Chain, pauses: Pauses) -> None:
    store.faults = faults = Faults("after create")
    await chain.append(*entry(chain, "mine"))
    assert faults.seen.count("before create") == 2
    assert len(pauses.asked) == 1
    assert (chain.end, chain.failing) == (1, None)


async def test_a_failure_before_it_happened_is_tried_again_more_and_more_seldom(
    store: MemoryStore, chain: Chain, pauses: Pauses
) -> None:
    store.faults = Faults(*["before create"] * 12)
    await chain.append(*entry(chain, "mine"))
    assert pauses.asked[:3] == [0.05, 0.1, 0.2]
    assert pauses.asked[-1] == LAST_PAUSE_S
    assert await store.list("") == ["topics/t/segment=0/00000000-0000000000000000.parquet"]


async def test_while_it_fails_it_says_why(store: MemoryStore, pauses: Pauses) -> None:
    seen = []

    async def look(seconds: float) -> None:
        seen.append(str(chain.failing))

    chain = Chain(store, "t", 0, look)
    store.faults = Faults("before create", "after create")
    await chain.append(*entry(chain, "mine"))
    assert [text.split(" topics")[0] for text in seen] == ["before create", "after create"]
    assert chain.failing is None


async def test_anothers_entry_fences(store: MemoryStore, chain: Chain, pauses: Pauses) -> None:
    other = Chain(store, "t", 0, pauses)
    await other.append(*entry(other, "theirs"))
    with pytest.raises(Fenced, match="of-theirs"):
        await chain.append(*entry(chain, "mine"))
    assert chain.last is None
    assert pauses.asked == []
    await chain.open()
    await chain.append(*entry(chain, "mine"))
    assert chain.end == 2


async def test_anothers_entry_that_lands_between_two_tries_fences(store: MemoryStore, chain: Chain) -> None:
    _, data = entry(Chain(store, "t", 0), "theirs")
    store.faults = Faults("before create", act=lambda: store.objects.update({chain.folder + str(chain.next): data}))
    with pytest.raises(Fenced):
        await chain.append(*entry(chain, "mine"))


async def test_what_exists_and_cannot_be_read_is_unknown_not_lost(store: MemoryStore, chain: Chain) -> None:
    mine = entry(chain, "mine")
    name = chain.folder + str(chain.next)
    store.objects[name] = b"half of somet"
    rounds = itertools.count()

    def heal(moment: str, _: str) -> None:
        if moment == "before open" and next(rounds) == 3:
            store.objects[name] = mine[1]

    store.faults = heal
    await chain.append(*mine)
    assert chain.end == 1


async def test_reads_that_fail_are_tried_again_too(store: MemoryStore, chain: Chain) -> None:
    store.faults = Faults("after create", "before open", "after open", "before create")
    await chain.append(*entry(chain, "mine"))
    assert store.faults.left == []
    assert chain.end == 1


async def test_a_seal_and_all_metadata_come_back(store: MemoryStore, chain: Chain, pauses: Pauses) -> None:
    await chain.append(*entry(chain, "a", count=0))
    assert (chain.end, chain.next) == (0, EntryName(1, 0))
    sealed, data = entry(chain, "b", count=3, seal=Seal((4, 5), ((0, 7), (7, 10))))
    await chain.append(sealed, data)
    again = Chain(store, "t", 0, pauses)
    await again.open()
    assert again.last == sealed
    assert again.end == 3
    assert [str(n) for n in await again.names()] == [
        "00000000-0000000000000000.parquet",
        "00000001-0000000000000000.parquet",
    ]


async def filled(store: MemoryStore, pauses: Pauses, count: int) -> Chain:
    """A chain of so many entries of one row; only the last one can be read."""
    writer = Chain(store, "t", 0, pauses)
    for sequence in range(count - 1):
        store.objects[writer.folder + str(EntryName(sequence, sequence))] = b""
    writer.last = EntryMetadata("c", "t", 0, 0, 10, count - 2, count - 2, count - 1, "b", "n", 0, 0, 0, b"")
    await writer.append(*entry(writer, "last"))
    return Chain(store, "t", 0, pauses)


@pytest.mark.parametrize("count", [2, 999, 1000, 1001, 2000, 2001, 2500, 10_000])
async def test_the_end_of_a_long_chain_is_found_with_few_listings(
    store: MemoryStore, pauses: Pauses, count: int
) -> None:
    chain = await filled(store, pauses, count)
    store.faults = faults = Faults()
    await chain.open()
    assert chain.end == count
    listings = faults.seen.count("before list")
    assert listings <= (1 if count < 1000 else 20), f"{listings} listings"
    assert faults.seen.count("before open") == 1
    assert len(await chain.names()) == count


async def test_the_end_is_found_where_retention_took_the_oldest(store: MemoryStore, pauses: Pauses) -> None:
    chain = await filled(store, pauses, 2500)
    for name in await store.list(chain.folder, limit=900):
        await store.delete(name)
    await chain.open()
    assert chain.end == 2500
    assert len(await chain.names()) == 1600


@pytest.mark.parametrize("gone", [1, 700, 1500])
async def test_a_gap_is_damage(store: MemoryStore, pauses: Pauses, gone: int) -> None:
    chain = await filled(store, pauses, 1600)
    await store.delete(chain.folder + str(EntryName(gone, gone)))
    await chain.open()
    with pytest.raises(ChainDamaged):
        await chain.names()


async def test_a_missing_entry_is_damage_also_for_its_size(store: MemoryStore, pauses: Pauses) -> None:
    chain = await filled(store, pauses, 3)
    await chain.open()
    with pytest.raises(ChainDamaged, match="does not exist"):
        await chain.sizes([EntryName(0, 0), EntryName(9, 9)])


async def test_names_grow_with_appends_and_never_show_anything_behind_the_end(
    store: MemoryStore, chain: Chain, pauses: Pauses
) -> None:
    await chain.append(*entry(chain, "a"))
    other = Chain(store, "t", 0, pauses)
    await other.open()
    await other.append(*entry(other, "b"))
    assert await chain.names() == [EntryName(0, 0)]
    await chain.open()
    await chain.append(*entry(chain, "c"))
    assert await chain.names() == [EntryName(n, n) for n in range(3)]


async def test_nothing_is_put_behind_a_seal(store: MemoryStore, chain: Chain) -> None:
    await chain.append(*entry(chain, "a", seal=Seal((4,), ((0, 10),))))
    with pytest.raises(ChainDamaged, match="was sealed at offset 1"):
        await chain.append(*entry(chain, "b"))
    assert len(await store.list(chain.folder)) == 1


async def test_a_chain_that_has_a_start_and_no_entries_is_damaged(store: MemoryStore) -> None:
    """Retention keeps the newest entry. An empty chain would give out offsets below its start once more."""
    chain = Chain(store, "t", 0)
    chain.raise_start(EntryName(3, 12))
    with pytest.raises(ChainDamaged, match=r"its first file should be number 00000003"):
        await chain.open()
