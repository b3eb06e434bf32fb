"""A rebuild fails at each of its writes, one after the other, and other brokers start beside one."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.checks import using
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.reshaped import at, make, replace
from tests.support.brokers.returned import CopiedCoordination, ReturnedWorld, returned
from tests.support.tiers import later

pytestmark = pytest.mark.brokers
STEPS = ("generation", "saved", "replaced")


class Writes:
    """Counts what is written, to the store and to coordination, and fails at the turn, before or behind the write."""

    def __init__(self) -> None:
        self.left = -1
        self.behind = False

    async def write(self, call: Any, *arguments: Any, **more: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.behind:
            raise RuntimeError("killed here")
        found = await call(*arguments, **more)
        if self.left == 0:
            raise RuntimeError("killed here")
        return found


class FailingStore(MemoryStore):
    """A store whose puts fail at the turn."""

    def __init__(self, writes: Writes) -> None:
        super().__init__()
        self._writes = writes

    async def create(self, *arguments: Any, **more: Any) -> Any:
        return await self._writes.write(super().create, *arguments, **more)


class FailingCoordination(CopiedCoordination):
    """A coordination whose transactions fail at the turn."""

    writes: Writes

    async def commit(self, *arguments: Any, **more: Any) -> Any:
        return await self.writes.write(super().commit, *arguments, **more)


async def changed(world: ReturnedWorld) -> None:
    """A topic with messages, some of them behind a split that no snapshot has."""
    first = world.together.brokers[0]
    await make(first, 2)
    await world.publish(first, 6)
    await world.snapshot()
    await replace(world.together, [0], 2)
    await world.publish(first, 6)


async def ask(world: ReturnedWorld, broker: Broker) -> httpx.Response:
    async with at(world.together, broker) as http:
        return await http.post("/v1/cluster/rebuild", json={})


@pytest.mark.parametrize("behind", [later(False), True])
async def test_a_rebuild_that_fails_at_each_write_is_run_again(tmp_path: Path, behind: bool) -> None:
    """Each begins over what the one before has left, and gets one write further."""
    writes = Writes()
    async with returned(tmp_path, 1, journal="object", store=FailingStore(writes)) as world:
        await changed(world)
        coordination = FailingCoordination(world.together.machine.clock)
        coordination.writes = writes
        waiting = await world.bring_back(coordination, await world.crash_all())
        writes.behind = behind
        for turn in count(1):
            writes.left = turn
            answer = await ask(world, waiting[0])
            writes.left, left = -1, writes.left
            if answer.status_code == 200 or (behind and answer.status_code == 409):
                break
            assert answer.status_code == 500
            assert left <= 0, "it failed of something else"
        assert turn > 6
        alive = await world.go_on(waiting)
        await world.publish(alive[0], 3)
        assert await world.delivered(alive[0]) == world.acked


async def test_brokers_that_start_amid_a_rebuild_wait(tmp_path: Path) -> None:
    """None of them serves before the end, and then all do."""
    async with returned(tmp_path, 1 + len(STEPS), journal="object") as world:
        await changed(world)
        first, *dead = await world.crash_all()
        coordination = CopiedCoordination(world.together.machine.clock)
        waiting = await world.bring_back(coordination, [first])
        begun: list[asyncio.Task[list[Broker]]] = []

        def points(place: str) -> None:
            if place.removeprefix("rebuild.") in STEPS[len(begun) :]:
                begun.append(asyncio.create_task(world.bring_back(coordination, [dead[len(begun)]])))

        with using(points):
            answer = await ask(world, waiting[0])
        assert answer.status_code == 200, answer.text
        found = waiting + [life for one in begun for life in await one]
        assert len(found) == 1 + len(STEPS)
        alive = [await world.next_life(life) if life.waiting or life.lost.is_set() else life for life in found]
        assert not any(life.waiting for life in alive)
        await world.publish(alive[-1], 3)
        assert await world.delivered(alive[1]) == world.acked
