"""A view: whatever order answers come in, it ends where the truth is, and remembers nothing of what has gone."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.clock import SystemClock
from seaweedq.coordination.interface import Change, Delete, Put, WatchLost
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.view import View

KEYS = ("a/1", "a/2", "b/1")


class Seen:
    def __init__(self) -> None:
        self.coordination = MemoryCoordination(SystemClock())
        self.there: dict[str, bytes] = {}
        self.view = View(self.coordination, ("a/", "b/"), self.apply)

    def apply(self, change: Change) -> None:
        if change.value is None:
            del self.there[change.key]  # fails where it was not there
        else:
            self.there[change.key] = change.value


async def test_a_key_that_went_unseen_is_known_to_be_gone_once_it_is_read_again() -> None:
    seen = Seen()
    await seen.coordination.commit([], [Put("a/1", b"x"), Put("a/11", b"y")])
    await seen.view.load()
    await seen.coordination.commit([], [Delete("a/1")])
    await seen.view.refresh("a/1")
    assert seen.there == {"a/11": b"y"}


@given(st.data())
async def test_old_news_change_nothing_and_what_has_gone_is_forgotten(data: st.DataObject) -> None:
    """Each prefix's watch brings all changes in order; own writes and single reads come at any time, also late."""
    writes = data.draw(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=12))
    changes: list[Change] = []
    truth: dict[str, bytes] = {}
    for number, (key, puts) in enumerate(writes, 1):
        changes.append(Change(key, b"%d" % number if puts else None, number))
        truth |= {key: b"%d" % number} if puts else {}
        if not puts:
            truth.pop(key, None)
    seen = Seen()
    watched = {"a/": [c for c in changes if c.key < "b"], "b/": [c for c in changes if c.key >= "b"]}
    late = list(changes)
    while any(watched.values()) or late:
        source = data.draw(st.sampled_from([name for name in watched if watched[name]] + (["late"] if late else [])))
        if source == "late":
            seen.view.take([late.pop(data.draw(st.integers(0, len(late) - 1)))])
        else:
            _watch(seen.view, source, [watched[source].pop(0)])
    assert seen.there == truth
    assert set(seen.view._seen) == set(truth)


def _watch(view: View, prefix: str, changes: Sequence[Change]) -> None:
    view.take(changes)
    view._raise_floor(prefix, changes[-1].revision)


@pytest.mark.parametrize("value", [b"again", None])
async def test_a_load_that_began_before_a_change_does_not_take_it_back(value: bytes | None) -> None:
    seen = Seen()
    await seen.coordination.commit([], [Put("a/1", b"x")])
    await seen.view.load()
    page = await seen.coordination.range("a/")
    revision = await seen.coordination.commit([], [Put("a/1", value) if value else Delete("a/1")])
    assert revision
    seen.view.take([Change("a/1", value, revision)])
    seen.view.take([Change(entry.key, entry.value, entry.revision) for entry in page.entries])
    assert seen.there == ({"a/1": value} if value else {})


@pytest.mark.parametrize("turns", range(8))
async def test_a_view_that_is_cancelled_as_its_watch_is_lost_ends(turns: int) -> None:
    """In whichever turn of the loop between the loss and the next read the cancellation comes."""

    class Losing(MemoryCoordination):
        def __init__(self) -> None:
            super().__init__(SystemClock())
            self.lost: list[asyncio.Future[None]] = []

        async def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[Change]]:
            self.lost.append(asyncio.get_running_loop().create_future())
            await self.lost[-1]
            yield ()

    coordination = Losing()
    view = View(coordination, ["a/", "b/"], lambda change: None)
    following = asyncio.create_task(view.follow(await view.load()))
    while len(coordination.lost) < 2:
        await asyncio.sleep(0)
    for watch in coordination.lost:
        watch.set_exception(WatchLost("compacted"))
    for _ in range(turns):
        await asyncio.sleep(0)
    following.cancel()
    done, _ = await asyncio.wait([following], timeout=5)
    ended = bool(done) and following.cancelled()
    following.cancel()
    assert ended
    await coordination.close()
