"""What every Coordination promises of watches, over all backends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from seaweedq.coordination.interface import Change, Coordination, Delete, Put, WatchLost


async def collect(watch: AsyncIterator[Sequence[Change]], count: int) -> list[Change]:
    found: list[Change] = []
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
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
    async with asyncio.timeout(10):
        assert await asyncio.gather(*reading) == [seen] * 3
    assert seen == [Change("a", b"", revision or 0)]


async def test_watches_come_and_go_alone(coordination: Coordination, base: int) -> None:
    first, second = aiter(coordination.watch("", base)), aiter(coordination.watch("", base))
    await coordination.commit([], [Put("a", b"1")])
    assert await anext(first) == await anext(second)
    await first.aclose()  # type: ignore[attr-defined]
    await coordination.commit([], [Put("a", b"2")])
    assert [change.value for change in await anext(second)] == [b"2"]
