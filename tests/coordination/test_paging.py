"""Paging over keys: every key once, whatever the size of a page."""

import pytest

from seaweedq.clock import SystemClock
from seaweedq.coordination.interface import Put, entries, pages, read_all
from seaweedq.coordination.memory import MemoryCoordination


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
