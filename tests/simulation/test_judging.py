"""The judge of a whole run finds what is planted: each plant is a run in a process of its own."""

import asyncio
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import CursorRecord, RevocationRecord
from seaweedq.coordination.versioned import Versioned
from tests.simulation import world
from tests.simulation.cluster import Cluster
from tests.simulation.plan import Fault, Plan
from tests.simulation.world import World, simulate
from tests.support.brokers import inside

pytestmark = [pytest.mark.long, pytest.mark.brokers, pytest.mark.process]

PLAN = Plan(1, 10.0, knobs={"lease_s": 3.0, "checkpoint_s": 1.0}, publishers=2, consumers=("keyed",), readers=0)


class Cycle:
    """What only a collection of garbage frees."""

    def __init__(self) -> None:
        self.itself = self
        self.task: Any = None


def hold(world: World) -> None:
    """A broker that serves holds memory and a task for nobody."""
    process = world.cluster.processes[0]
    assert process.broker
    inside.budget(process.broker).incomplete += 1
    process.life.part("x").part("y").start(asyncio.sleep(1e6))


def raise_unseen(world: World) -> None:
    """Tasks raise, and something holds them."""

    async def fail(holder: object) -> None:
        await asyncio.sleep(0.1)
        raise ValueError(type(holder).__name__)

    process, cycle = world.cluster.processes[0], Cycle()
    cycle.task = process.life.start(fail(cycle))
    process.held = process.life.start(fail(process))  # type: ignore[attr-defined]


def leave(cluster: Cluster) -> None:
    """Brokers that have left leave keys, objects and a lock, and have lost the newest file of a segment."""
    planted = {
        keys.REVOCATIONS.key("b7.dead"): keys.REVOCATIONS.encode(Versioned.new(RevocationRecord("", (), 3.0))),
        keys.CURSORS.key("gone", 0, "s", 0): keys.CURSORS.encode(Versioned.new(CursorRecord(1, 0))),
    }
    cluster.coordination.engine.commit([], [Put(key, value) for key, value in planted.items()])
    objects = cluster.store.memory.objects
    del objects[max(name for name in objects if name.startswith("topics/t/segment=0/"))]
    objects |= {"junk": b"x", "_payloads/gone/x": b"x"}
    cluster.disks[0].locked[Path("/x")] = 1


def planted(plant: str) -> list[str]:
    """What is wrong with a run in which something was planted."""
    plan, end, settle, left = PLAN, World.end, World.settle, world.left

    async def changed_end(self: World) -> list[str]:
        hold(self)
        return await end(self)

    async def changed_settle(self: World, *arguments: Any) -> list[str]:
        raise_unseen(self)
        return await settle(self, *arguments)

    def changed_left(cluster: Cluster) -> Iterator[str]:
        leave(cluster)
        return left(cluster)

    if plant == "held":
        World.end = changed_end  # type: ignore[method-assign]
    elif plant == "raised":
        World.settle = changed_settle  # type: ignore[method-assign]
    elif plant == "left":
        world.left = changed_left  # type: ignore[attr-defined]
    elif plant == "fault":
        plan = replace(plan, faults=(Fault("nonsense", 3.0, 1.0),))
    return simulate(plan).wrong


@pytest.mark.parametrize(
    ("plant", "wanted"),
    [
        ("nothing", ()),
        ("held", ("1 bytes of incomplete", "has left, and has tasks")),
        ("raised", ("nobody saw ValueError('Cycle')", "nobody saw ValueError('Process')")),
        (
            "left",
            (
                *("revocations/b7.dead is still there", "cursors/gone/0000000000/s/0000000000 is of no topic"),
                *("the store has junk, which is of no kind", "_payloads/gone/x, of a topic that there is not"),
                *("rows of t were in files, and have gone", "has locks"),
            ),
        ),
        ("fault", ("nobody saw KeyError('nonsense')",)),
    ],
)
def test_what_is_planted_is_found(plant: str, wanted: tuple[str, ...]) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        wrong = pool.apply(planted, (plant,))
    assert [text for text in wanted if not any(text in one for one in wrong)] == [], wrong
    assert bool(wrong) == bool(wanted), wrong
