"""A life sees that coordination went back from an answer whose revision is below one known when it asked."""

import asyncio
from typing import Any

import pytest

from seaweedq.clock import SystemClock
from seaweedq.coordination.interface import Compare, Page, Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.seen_revisions import SeenRevisions
from seaweedq.errors import CoordinationUnavailable


class Replaceable:
    """A coordination behind which another one can be put."""

    def __init__(self) -> None:
        self.now = MemoryCoordination(SystemClock())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


class World:
    """A coordination that can be replaced by an older one, and a life that sees it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.inner = Replaceable()
        self.seen = SeenRevisions(self.inner, self.told.append)

    async def put(self, times: int) -> None:
        for _ in range(times):
            await self.seen.commit([], [Put("a", b"1")])

    def go_back(self) -> None:
        self.inner.now = MemoryCoordination(SystemClock())


async def test_the_highest_revision_of_any_answer_is_seen() -> None:
    world = World()
    other = world.inner
    await other.commit([], [Put("a", b"1")])
    assert await world.seen.get("a")
    assert world.seen.seen == 1
    await other.commit([], [Put("b", b"1")])
    await world.seen.range("x")
    assert world.seen.seen == 2
    await world.put(1)
    assert world.seen.seen == 3
    await other.commit([], [Put("b", b"2")])
    async for changes in world.seen.watch("b", 3):
        assert changes[0].revision == world.seen.seen == 4
        break
    await other.commit([], [Put("b", b"3")])
    assert (await world.seen.dump()).revision == world.seen.seen == 5
    assert await world.seen.commit([Compare("a", 77)], [Put("a", b"2")]) is None
    assert not world.told
    await world.seen.close()


@pytest.mark.parametrize("call", ["get", "range", "dump", "commit"])
async def test_a_lower_revision_is_told_and_its_answer_is_not_given(call: str) -> None:
    world = World()
    await world.put(3)
    world.go_back()
    asked = {
        "get": lambda: world.seen.get("a"),
        "range": lambda: world.seen.range(""),
        "dump": lambda: world.seen.dump(),
        "commit": lambda: world.seen.commit([], [Put("b", b"")]),
    }[call]
    with pytest.raises(CoordinationUnavailable, match=r"coordination went back from revision 3 to [01]"):
        await asked()
    assert len(world.told) == 1
    assert world.seen.seen == 3


async def test_answers_that_overtake_one_another_are_no_return() -> None:
    world = World()
    await world.put(1)
    gate, early = asyncio.Event(), await world.inner.range("")
    answers = iter([early])

    async def held(*_: object) -> Page:
        found = next(answers)
        await gate.wait()
        return found

    world.inner.now.range = held  # type: ignore[method-assign]
    asked = asyncio.create_task(world.seen.range(""))
    await asyncio.sleep(0)
    await world.put(3)
    gate.set()
    assert (await asked).revision == 1
    assert (world.seen.seen, world.told) == (4, [])
