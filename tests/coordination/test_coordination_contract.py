"""What every Coordination promises of keys, transactions, pages, leases and watches, over all backends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from seaweedq.clock import SystemClock
from seaweedq.coordination.interface import (
    Change,
    Compare,
    Coordination,
    Delete,
    Entry,
    Put,
    WatchLost,
    entries,
    pages,
    read_all,
)
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.errors import CoordinationUnavailable

KEYS = ("a", "a/", "a/1", "a/10", "a/2", "a/b/c", "a0", "b", "ä", "ä/1", "\U0001f600")


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


async def test_a_dump_has_all_keys_in_their_order(coordination: Coordination) -> None:
    assert await coordination.dump() == await coordination.range("")
    await put(coordination, *KEYS)
    lease = (await coordination.leases.grant(60)).lease
    await coordination.commit([], [Put("leased", b"x", lease), Delete("b")])
    page = await coordination.dump()
    assert page == await coordination.range("")
    assert next(entry for entry in page.entries if entry.key == "leased").lease == lease


async def test_a_dump_is_of_one_revision_whatever_is_written_meanwhile(coordination: Coordination) -> None:
    names = [f"k{number:04d}" for number in range(1_200)]  # several answers of a backend that has pages
    for at in range(0, len(names), 100):
        await put(coordination, *names[at : at + 100])
    ends, done = [names[0], names[600], names[-1]], asyncio.Event()
    await coordination.commit([], [Put(key, b"0") for key in ends])

    async def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            await coordination.commit([], [Put(key, b"%d" % number) for key in ends])
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    for _ in range(5):
        page = await coordination.dump()
        there = {entry.key: entry for entry in page.entries}
        assert list(there) == names
        assert len({(there[key].value, there[key].revision) for key in ends}) == 1
        assert max(entry.revision for entry in page.entries) <= page.revision
        await asyncio.sleep(0.01)
    done.set()
    await writing


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
    with pytest.raises(ValueError, match=r"the limit is 128 in total|twice"):
        await coordination.commit(compares, writes)
    assert (await coordination.range("")).revision == base


async def test_128_operations_are_possible(coordination: Coordination) -> None:
    assert await coordination.commit([Compare("a", 0)] * 28, [Put(f"{n}", b"") for n in range(100)])


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


async def leased(coordination: Coordination, key: str, ttl_s: float = 5) -> int:
    lease = (await coordination.leases.grant(ttl_s)).lease
    assert await coordination.commit([], [Put(key, b"", lease)])
    return lease


async def test_a_leased_key_names_its_lease(coordination: Coordination) -> None:
    lease = (await coordination.leases.grant(5)).lease
    assert lease > 0
    revision = await coordination.commit([], [Put("a", b"", lease)])
    assert await coordination.get("a") == Entry("a", b"", revision or 0, lease)
    assert (await coordination.range("a")).entries[0].lease == lease


async def test_keys_of_an_ended_lease_are_gone_for_all_readers(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    await leased(one, "a/1")
    await leased(one, "a/2", ttl_s=7)
    await one.commit([], [Put("a/3", b"")])
    await backend.advance(4.9)
    assert await other.get("a/1") is not None
    await backend.advance(0.2)
    assert await other.get("a/1") is None
    assert [entry.key for entry in (await other.range("a/")).entries] == ["a/2", "a/3"]


async def test_a_key_of_an_ended_lease_compares_as_absent(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    await leased(one, "a")
    revision = (await one.get("a")).revision
    await backend.advance(5)
    assert await other.commit([Compare("a", revision)], [Put("b", b"")]) is None
    assert await other.commit([Compare("a", 0)], [Put("a", b"mine")]) is not None


async def test_renewal_starts_the_time_anew(backend: Any, coordination: Coordination) -> None:
    lease = await leased(coordination, "a")
    for _ in range(3):
        await backend.advance(4)
        assert await coordination.leases.renew(lease)
    assert await coordination.get("a") is not None


async def test_an_ended_lease_never_comes_back(backend: Any, coordination: Coordination) -> None:
    lease = await leased(coordination, "a")
    await backend.advance(5)
    assert not await coordination.leases.renew(lease)
    assert await coordination.commit([], [Put("b", b"", lease)]) is None
    assert (await coordination.leases.grant(5)).lease != lease
    assert not await coordination.leases.renew(lease)


async def test_a_put_under_an_ended_lease_stops_the_whole_transaction(backend: Any, coordination: Coordination) -> None:
    ended = (await coordination.leases.grant(1)).lease
    living = (await coordination.leases.grant(9)).lease
    await backend.advance(2)
    assert await coordination.commit([], [Put("a", b"", living), Put("b", b"", ended)]) is None
    assert await coordination.commit([], [Put("a", b"", 12345)]) is None
    assert (await coordination.range("")).entries == ()


async def test_revocation_deletes_the_keys_at_once(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    lease = await leased(one, "a")
    await other.leases.revoke(lease)
    assert await one.get("a") is None
    assert not await one.leases.renew(lease)
    await one.leases.revoke(lease)
    await one.leases.revoke(12345)
    await one.commit([], [Put("kept", b"")])
    await one.leases.revoke(0)
    assert await one.get("kept"), "a key without a lease has no lease that ends"


@pytest.mark.parametrize("instead", [Put("a", b"kept"), Delete("a")])
async def test_a_key_written_anew_belongs_to_its_new_lease(
    backend: Any, coordination: Coordination, instead: Put | Delete
) -> None:
    await leased(coordination, "a")
    await coordination.commit([], [instead])
    before = (await coordination.range("")).revision
    await backend.advance(6)
    page = await coordination.range("")
    assert page.revision == before
    assert [entry.key for entry in page.entries] == (["a"] if isinstance(instead, Put) else [])


async def test_the_end_of_a_lease_is_one_new_revision_in_watches(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    lease = (await one.leases.grant(5)).lease
    revision = await one.commit([], [Put("a/1", b"", lease), Put("a/2", b"", lease), Put("b", b"", lease)])
    watch = other.watch("a/", revision)
    await backend.advance(5)
    assert list(await anext(watch)) == [Change("a/1", None, revision + 1), Change("a/2", None, revision + 1)]
    await watch.aclose()
    assert (await one.range("")).revision == revision + 1


async def collect(watch: AsyncIterator[Sequence[Change]], count: int) -> list[Change]:
    found: list[Change] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await anext(watch)
    return found


async def test_a_watch_reports_what_came_after_its_revision(coordination: Coordination, base: int) -> None:
    first = await coordination.commit([], [Put("a/1", b"1")])
    assert first
    second = await coordination.commit([], [Put("a/2", b"2"), Put("b", b""), Delete("a/1")])
    assert second
    assert await collect(coordination.watch("a/", base), 3) == [
        Change("a/1", b"1", first),
        Change("a/2", b"2", second),
        Change("a/1", None, second),
    ]
    assert await collect(coordination.watch("a/", first), 2) == [
        Change("a/2", b"2", second),
        Change("a/1", None, second),
    ]


async def test_a_watch_waits_for_other_handles(backend: Any, base: int) -> None:
    one, other = backend.connect(), backend.connect()
    waiting = asyncio.create_task(collect(other.watch("a", base), 1))
    await other.get("a")
    assert not waiting.done()
    await one.commit([], [Put("unrelated", b"")])
    revision = await one.commit([], [Put("a", b"1")])
    assert await waiting == [Change("a", b"1", revision)]


async def test_no_group_cuts_a_transaction_and_nothing_is_left_out(backend: Any, base: int) -> None:
    one, other = backend.connect(), backend.connect()

    async def write() -> None:
        for n in range(30):
            await one.commit([], [Put(f"a/{key}", b"%d" % n) for key in range(5)])

    writing = asyncio.create_task(write())
    groups: list[Sequence[Change]] = []
    async with asyncio.timeout(30):
        async for group in other.watch("a/", base):
            groups.append(group)
            if group[-1].value == b"29":
                break
    await writing
    assert all(len(group) % 5 == 0 for group in groups)
    changes = [change for group in groups for change in group]
    assert [(c.key, c.value) for c in changes] == [(f"a/{key}", b"%d" % n) for n in range(30) for key in range(5)]
    assert [c.revision for c in changes] == [revision for revision in range(base + 1, base + 31) for _ in range(5)]


async def test_a_watch_that_reaches_too_far_back_is_lost(
    backend: Any, coordination: Coordination, base: int, log_limit: int
) -> None:
    for n in range(log_limit + 3):
        assert await coordination.commit([], [Put("a", b"%d" % n)])
    await backend.forget()
    with pytest.raises(WatchLost):
        await anext(aiter(coordination.watch("", base + 2)))
    changes = await collect(coordination.watch("", base + 3), log_limit)
    assert [change.revision - base for change in changes] == list(range(4, log_limit + 4))


async def test_a_watch_that_falls_behind_is_lost(
    backend: Any, coordination: Coordination, base: int, log_limit: int
) -> None:
    if backend.keeps_all:
        pytest.skip("this backend holds for a watch what it has yet to read: test_etcd_watch")
    watch = aiter(coordination.watch("", base))
    await coordination.commit([], [Put("a", b"")])
    await anext(watch)
    for n in range(log_limit + 1):
        await coordination.commit([], [Put("a", b"%d" % n)])
    with pytest.raises(WatchLost):
        await anext(watch)


async def test_watches_end_when_their_handle_closes(coordination: Coordination, base: int) -> None:
    read = asyncio.Semaphore(0)

    async def read_to_the_end() -> list[Change]:
        found: list[Change] = []
        async for group in coordination.watch("", base):
            found += group
            read.release()
        return found

    reading = [asyncio.create_task(read_to_the_end()) for _ in range(3)]
    revision = await coordination.commit([], [Put("a", b"")])
    seen = await collect(coordination.watch("", base), 1)
    for _ in reading:
        await read.acquire()
    await coordination.close()
    async with asyncio.timeout(30):
        assert await asyncio.gather(*reading) == [seen] * 3
    assert seen == [Change("a", b"", revision or 0)]


async def test_watches_come_and_go_alone(coordination: Coordination, base: int) -> None:
    first, second = aiter(coordination.watch("", base)), aiter(coordination.watch("", base))
    await coordination.commit([], [Put("a", b"1")])
    assert await anext(first) == await anext(second)
    await first.aclose()  # type: ignore[attr-defined]
    await coordination.commit([], [Put("a", b"2")])
    assert [change.value for change in await anext(second)] == [b"2"]


async def filled(count):
    coordination = MemoryCoordination(SystemClock())
    await coordination.commit([], [Put("other/1", b""), Put("z", b"")])
    for number in range(count):
        await coordination.commit([], [Put(f"p/{number:02d}", b"%d" % number)])
    return coordination


@pytest.mark.parametrize("count", [0, 1, 3, 4, 6, 7])
async def test_every_key_once(count):
    coordination = await filled(count)
    wanted = [f"p/{number:02d}" for number in range(count)]
    assert [entry.key async for entry in entries(coordination, "p/", limit=3)] == wanted
    assert [entry.key for entry in (await read_all(coordination, "p/", 3))[0]] == wanted


async def test_it_begins_behind_a_key():
    coordination = await filled(5)
    assert [entry.key async for entry in entries(coordination, "p/", "p/02", 1)] == ["p/03", "p/04"]


async def test_a_page_is_read_when_it_is_due():
    coordination = await filled(4)
    seen = []
    async for entry in entries(coordination, "p/", limit=2):
        seen.append(entry.key)
        if entry.key == "p/01":
            await coordination.commit([], [Put("p/015", b"")])
    assert seen == ["p/00", "p/01", "p/015", "p/02", "p/03"]


async def test_the_revision_to_watch_from_is_the_first_pages():
    coordination = await filled(4)
    _, revision = await read_all(coordination, "p/")
    reading = pages(coordination, "p/", limit=2)
    first = await anext(reading)
    await coordination.commit([], [Put("p/03", b"new")])
    assert (first.revision, first.more) == (revision, True)
    assert (await anext(reading)).revision == revision + 1


async def test_nothing_is_one_empty_page():
    coordination = await filled(0)
    found = [page async for page in pages(coordination, "p/")]
    assert [page.entries for page in found] == [()]
