"""What every ObjectStore promises, over all backends."""

import asyncio
import time
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from seaweedq.storage.interface import Data, ObjectStore, by_parts, folders
from tests.support.tiers import examples

Order = Callable[[str], str]


async def put(store: ObjectStore, *names: str) -> None:
    for name in names:
        assert await store.create(name, name.encode())


@pytest.mark.parametrize("data", [b"", b"bytes", bytearray(b"array"), memoryview(b"view")[1:]])
async def test_what_is_created_is_read_back(store: ObjectStore, data: Data) -> None:
    assert await store.create("a/b/c", data)
    assert await store.read("a/b/c") == bytes(data)
    assert await store.size("a/b/c") == len(data)


async def test_an_object_does_not_share_memory_with_what_it_was_made_from(store: ObjectStore) -> None:
    data = bytearray(b"before")
    await store.create("a", data)
    data[:] = b"after!"
    assert await store.read("a") == b"before"


async def test_a_taken_name_is_refused_and_keeps_its_bytes(store: ObjectStore) -> None:
    assert await store.create("a/b", b"first")
    assert not await store.create("a/b", b"second")
    assert not await store.create("a/b", b"first")
    assert await store.read("a/b") == b"first"


async def test_of_many_concurrent_creates_one_wins(store: ObjectStore) -> None:
    contents = [f"racer {number}".encode() * 1000 for number in range(32)]
    won = await asyncio.gather(*(store.create("deep/down/name", content) for content in contents))
    assert sum(won) == 1
    assert await store.read("deep/down/name") == contents[won.index(True)]


async def test_a_deleted_name_is_free_again(store: ObjectStore) -> None:
    await put(store, "a/b")
    await store.delete("a/b")
    assert await store.list("") == []
    assert await store.create("a/b", b"again")
    assert await store.read("a/b") == b"again"


@pytest.mark.parametrize("name", ["missing", "missing/deep", "a", "a/b/c", "a/b/c/d"])
async def test_what_is_not_an_object_is_not_found(store: ObjectStore, name: str) -> None:
    await put(store, "a/b.parquet", "a/b/c.parquet")
    with pytest.raises(FileNotFoundError):
        await store.read(name)
    with pytest.raises(FileNotFoundError):
        await store.size(name)
    with pytest.raises(FileNotFoundError):
        store.open(name)
    await store.delete(name)
    assert sorted(await store.list("")) == ["a/b.parquet", "a/b/c.parquet"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, None, b"0123456789"), (3, None, b"3456789"), (3, 5, b"34"), (4, 4, b""), (8, 99, b"89"), (99, None, b"")],
)
async def test_a_range_is_half_open_and_cut_at_the_end(
    store: ObjectStore, start: int, end: int | None, expected: bytes
) -> None:
    await store.create("digits", b"0123456789")
    assert await store.read("digits", start, end) == expected


@pytest.mark.parametrize(("start", "end"), [(-1, None), (5, 4)])
async def test_a_backward_range_is_a_programming_error(store: ObjectStore, start: int, end: int | None) -> None:
    await store.create("digits", b"0123456789")
    with pytest.raises(ValueError, match="not a valid byte range"):
        await store.read("digits", start, end)


async def test_open_gives_a_seekable_reader(store: ObjectStore) -> None:
    await store.create("a/digits", b"0123456789")
    with store.open("a/digits") as reader:
        assert reader.seekable()
        assert reader.seek(-4, 2) == 6
        assert reader.read(2) == b"67"
        assert reader.tell() == 8


NAMES = ("_cluster.json", "a", "t/s=1/1", "t/s=1/2", "t/s=10/1", "t/s=1.json", "t/s=10", "t-1", "t.x", "t0/1", "tt")
TREE = tuple(name for name in NAMES if name != "t/s=10")


PREFIXES = ("", "t", "t/", "t/s=1", "t/s=1/", "t/s=1/2", "t/s=2", "u", "u/v/", "a/b", "a/a")
AFTERS = ("", "t", "t/", "t/s=1", "t/s=1/1", "t/s=1/9", "t/s=1/~", "t/s=1.json", "t/s=10/1", "t0", "t0/1", "z")


async def test_list_is_in_the_stores_order_below_a_prefix_and_behind_a_name(store: ObjectStore, order: Order) -> None:
    await put(store, *TREE)
    for prefix, after in product(PREFIXES, AFTERS):
        if after and not after.startswith(prefix):
            with pytest.raises(ValueError, match="does not begin with the prefix"):
                await store.list(prefix, after)
            continue
        expected = sorted((name for name in TREE if name.startswith(prefix) and order(name) > order(after)), key=order)
        for limit in (1000, 1, 3):
            assert await store.list(prefix, after, limit) == expected[:limit], (prefix, after, limit)


async def test_a_listing_brings_sizes_and_the_stores_own_times(store: ObjectStore) -> None:
    sizes = {"l/1": 0, "l/2": 5, "l/3/4": 70_000}
    began_s = time.time()
    for name, size in sizes.items():
        await store.create(name, b"x" * size)
    found = await store.listed("l/")
    assert {each.name: each.size for each in found} == sizes
    assert all(began_s - 2 <= each.modified_us / 1e6 <= time.time() + 2 for each in found)
    assert [each.name for each in found] == await store.list("l/")
    assert [each.name for each in await store.listed("l/", after="l/1", limit=1)] == ["l/2"]
    await store.delete("l/2")
    assert {each.name for each in await store.listed("l/")} == {"l/1", "l/3/4"}


@pytest.mark.parametrize("order", [str, by_parts])
def test_either_order_is_of_bytes_in_a_folder_and_keeps_folders_together(order: Order) -> None:
    names = sorted(TREE, key=order)
    folders = [name.rpartition("/")[0] for name in names]
    for folder in folders:
        inside = [name for name in names if name.startswith(f"{folder}/")]
        beside = [name for name, at in zip(names, folders, strict=True) if at == folder]
        assert beside == sorted(beside)
        assert not inside or names[names.index(inside[0]) :][: len(inside)] == inside


async def test_an_age_is_that_of_the_store(store: ObjectStore) -> None:
    await put(store, "a")
    assert 0 <= await store.age_s("a") < 60
    with pytest.raises(FileNotFoundError):
        await store.age_s("b")


async def test_all_names_are_paged_once_though_each_is_deleted_at_once(store: ObjectStore, order: Order) -> None:
    await put(store, *TREE)
    found: list[str] = []
    while page := await store.list("t", after=found[-1] if found else "", limit=2):
        found += page
        await asyncio.gather(*map(store.delete, page))
    assert found == sorted((name for name in TREE if name.startswith("t")), key=order)


async def test_folders_are_found_once_each_whatever_lies_beside_and_in_them(store: ObjectStore) -> None:
    strays = ("t/s=1/~~", "t/zzz", "t/a b", "t/s=1/below/x", "t/s=10/\u00fc", "t/s=10/\u00fc1")
    await put(store, *TREE, *strays)
    assert sorted([folder async for folder in folders(store, "t/")]) == ["t/s=1/", "t/s=10/"]
    assert sorted([folder async for folder in folders(store, "")]) == ["t/", "t0/"]


PARTS = st.text("ab./-0", min_size=1, max_size=6)
PLACES = st.text("ab./-0")


def is_tree(names: set[str]) -> bool:
    parts_are_legal = all(part not in ("", ".", "..") for name in names for part in name.split("/"))
    return parts_are_legal and not any(other.startswith(name + "/") for name in names for other in names)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(PARTS, max_size=8).filter(is_tree),
    prefix=st.text("ab.", max_size=2).filter(lambda prefix: prefix not in (".", "..")),
    place=PLACES,
)
async def test_list_agrees_with_sorting(
    store: ObjectStore, order: Order, names: set[str], prefix: str, place: str
) -> None:
    after = place and prefix + place
    assume(not {".", ".."} & set(after.split("/")))  # no store has to sort those
    await put(store, *names)
    try:
        expected = sorted((n for n in names if n.startswith(prefix) and order(n) > order(after)), key=order)
        assert await store.list(prefix, after) == expected
    finally:
        for name in names:
            await store.delete(name)
    assert await store.list("") == []


@pytest.mark.parametrize("name", ["", "/a", "a//b", "a/", "../a", "a/../b", "a/..", ".", "a/./b", "a\0b", "_tmp/a"])
async def test_illegal_names_are_programming_errors(store: ObjectStore, name: str) -> None:
    with pytest.raises(ValueError, match="not a valid object name"):
        await store.create(name, b"")
    with pytest.raises(ValueError, match="not a valid object name"):
        await store.read(name)
    with pytest.raises(ValueError, match="not a valid object name"):
        await store.delete(name)
    with pytest.raises(ValueError, match="not a valid object name"):
        store.open(name)


@pytest.mark.parametrize("prefix", ["/", "../", "a/../b", "a//", "_tmp/", ".", "a/.."])
async def test_illegal_prefixes_are_programming_errors(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(ValueError, match="not a valid object name"):
        await store.list(prefix)
