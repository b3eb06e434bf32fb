"""What every Coordination promises of keys and transactions, over all backends. Leases and watches: the next files."""

import asyncio
from typing import Any

import pytest

from seaweedq.coordination.interface import Compare, Coordination, Delete, Entry, Put, read_all
from seaweedq.errors import CoordinationUnavailable


async def put(coordination: Coordination, *keys: str) -> int:
    revision = await coordination.commit([], [Put(key, key.encode()) for key in keys])
    assert revision is not None
    return revision


async def test_a_fresh_state_is_empty(coordination: Coordination) -> None:
    assert await coordination.get("a") is None
    page = await coordination.range("")
    assert (page.entries, page.more) == ((), False)
    assert await put(coordination, "a") == page.revision + 1


async def test_an_entry_carries_the_revision_of_its_last_change(coordination: Coordination) -> None:
    first = await put(coordination, "a")
    second = await put(coordination, "b")
    assert 1 <= first < second
    assert await coordination.get("a") == Entry("a", b"a", first)
    third = await coordination.commit([], [Put("a", b"again")])
    assert await coordination.get("a") == Entry("a", b"again", third or 0)
    assert await coordination.get("b") == Entry("b", b"b", second)


async def test_a_count_is_that_of_the_range(coordination: Coordination) -> None:
    await put(coordination, "a", "b/", "b/1", "b/2", "b0", "c")
    for prefix, count in (("", 6), ("b", 4), ("b/", 3), ("b/1", 1), ("d", 0)):
        assert await coordination.count(prefix) == len((await coordination.range(prefix)).entries) == count
    await coordination.commit([], [Delete("b/1")])
    assert await coordination.count("b/") == 2


async def test_any_bytes_are_a_value(coordination: Coordination) -> None:
    for value in (b"", b"\0\xff", bytes(100_000)):
        await coordination.commit([], [Put("a", value)])
        entry = await coordination.get("a")
        assert entry is not None
        assert entry.value == value


async def test_a_transaction_applies_all_or_nothing(coordination: Coordination) -> None:
    revision = await put(coordination, "a", "b")
    writes: list[Put | Delete] = [Put("a", b"new"), Delete("b"), Put("c", b"new")]
    for compares in ([Compare("a", revision + 1)], [Compare("a", revision), Compare("c", revision)], [Compare("a", 0)]):
        assert await coordination.commit(compares, writes) is None
    assert [(e.key, e.value) for e in (await coordination.range("")).entries] == [("a", b"a"), ("b", b"b")]
    after = await coordination.commit([Compare("a", revision), Compare("c", 0)], writes)
    assert after is not None
    assert after > revision
    expected = (Entry("a", b"new", after), Entry("c", b"new", after))
    page = await coordination.range("")
    assert (page.entries, page.revision) == (expected, after)


async def test_a_deleted_key_is_absent_and_comes_back_with_a_new_revision(coordination: Coordination) -> None:
    first = await put(coordination, "a")
    await coordination.commit([Compare("a", first)], [Delete("a")])
    assert await coordination.get("a") is None
    assert await coordination.commit([Compare("a", first)], [Put("a", b"")]) is None
    again = await coordination.commit([Compare("a", 0)], [Put("a", b"")])
    assert again is not None
    assert again > first


async def test_what_changes_nothing_makes_no_revision(coordination: Coordination) -> None:
    revision = await put(coordination, "a")
    assert await coordination.commit([Compare("a", revision)], []) == revision
    assert await coordination.commit([], [Delete("missing")]) == revision
    assert (await coordination.range("")).revision == revision


@pytest.mark.parametrize(
    ("compares", "writes"),
    [
        ([Compare("a", 0)] * 29, [Put(f"{n}", b"") for n in range(100)]),
        ([], [Put("a", b"1"), Put("a", b"2")]),
        ([], [Put("a", b"1"), Delete("a")]),
    ],
)
async def test_impossible_transactions_are_programming_errors(
    coordination: Coordination, base: int, compares: Any, writes: Any
) -> None:
    with pytest.raises(ValueError, match=r"over 128|twice"):
        await coordination.commit(compares, writes)
    assert (await coordination.range("")).revision == base


async def test_128_operations_are_possible(coordination: Coordination) -> None:
    assert await coordination.commit([Compare("a", 0)] * 28, [Put(f"{n}", b"") for n in range(100)])


KEYS = ("a", "a/", "a/1", "a/10", "a/2", "a/b/c", "a0", "b", "ä", "ä/1", "\U0001f600")


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/1", "b/", "c", "ä"])
@pytest.mark.parametrize("after", ["", "a", "a/1", "a/3", "z"])
async def test_a_range_is_in_key_order_below_a_prefix_and_behind_a_key(
    coordination: Coordination, prefix: str, after: str
) -> None:
    revision = await put(coordination, *reversed(KEYS))
    expected = sorted(key for key in KEYS if key.startswith(prefix) and key > after)
    page = await coordination.range(prefix, after)
    assert [entry.key for entry in page.entries] == expected
    assert (page.revision, page.more) == (revision, False)
    for limit in (1, 3):
        page = await coordination.range(prefix, after, limit)
        assert [entry.key for entry in page.entries] == expected[:limit]
        assert page.more == (len(expected) > limit)


async def test_read_all_joins_the_pages_and_watches_from_the_first(coordination: Coordination) -> None:
    revision = await put(coordination, *(f"k/{n:03d}" for n in range(100)))
    entries, seen = await read_all(coordination, "k/", limit=7)
    assert [entry.key for entry in entries] == [f"k/{n:03d}" for n in range(100)]
    assert seen == revision
    assert await read_all(coordination, "none/") == ([], revision)


async def test_read_all_misses_no_change_made_between_its_pages(coordination: Coordination) -> None:
    await put(coordination, "k/1", "k/2", "k/3")

    class Meddled:
        async def range(self, prefix: str, after: str = "", limit: int = 500) -> Any:
            page = await coordination.range(prefix, after, limit)
            await coordination.commit([], [Put("k/1", b"changed behind the reader")])
            return page

    entries, revision = await read_all(Meddled(), "k/", limit=2)  # type: ignore[arg-type]
    assert [entry.value for entry in entries] == [b"k/1", b"k/2", b"k/3"]
    changes = await anext(aiter(coordination.watch("k/", revision)))
    assert changes[0].value == b"changed behind the reader"


async def test_concurrent_increments_are_all_counted(backend: Any) -> None:
    async def increment(coordination: Coordination) -> None:
        while True:
            entry = await coordination.get("n")
            value, revision = (int(entry.value), entry.revision) if entry else (0, 0)
            if await coordination.commit([Compare("n", revision)], [Put("n", str(value + 1).encode())]):
                return

    handles = [backend.connect() for _ in range(4)]
    await asyncio.gather(*(increment(handle) for handle in handles for _ in range(8)))
    entry = await handles[0].get("n")
    assert entry is not None
    assert entry.value == b"32"


async def test_all_handles_see_one_state(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    revision = await put(one, "a")
    assert await other.get("a") == Entry("a", b"a", revision)
    assert await other.commit([Compare("a", revision)], [Delete("a")])
    assert await one.get("a") is None


async def test_a_closed_handle_is_unavailable(coordination: Coordination) -> None:
    await put(coordination, "a")
    await coordination.close()
    await coordination.close()
    with pytest.raises(CoordinationUnavailable):
        await coordination.get("a")
