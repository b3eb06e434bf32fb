"""A topic that waits for a rebuild, beside others that are served."""

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from seaweedq.broker.rebuild.signs import COMMAND
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from tests.support.brokers.reshaped import at, make
from tests.support.brokers.returned import CopiedCoordination, ReturnedWorld, returned

pytestmark = pytest.mark.brokers
PLACE = ("t", 0, "s", 0)


async def raise_cursor(copy: CopiedCoordination) -> None:
    """All that the subscription has got was acked, and more that is not there."""
    there = await copy.get(keys.CURSORS.key(*PLACE))
    assert there is not None
    held = keys.CURSORS.require(there)
    raised = held.with_record(replace(held.record, acked_to=1000, delivered_to=1000))
    await copy.commit([], [Put(there.key, keys.CURSORS.encode(raised))])


async def statuses(world: ReturnedWorld) -> list[int]:
    async with at(world.together, world.together.brokers[-1]) as http:
        body = {"messages": [{"value": 1}]}
        found = [await http.post(f"/v1/topics/{name}/messages", json=body) for name in ("t", "u", "t")]
        for answer in found:
            assert answer.status_code == 200 or answer.json()["type"] == "/problems/restored", answer.text
            assert answer.status_code == 200 or answer.json()["command"] == COMMAND
        return [answer.status_code for answer in found]


async def test_a_cursor_above_its_segments_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with returned(tmp_path, 1, journal="object") as world:
        together, first = world.together, world.together.brokers[0]
        await make(first)
        await world.publish(first, 6)
        assert await world.delivered(first) == world.acked
        async with at(together, first) as http:
            assert (await http.put("/v1/topics/u", json={})).status_code == 201
        dead = await world.crash_all()
        copy = await world.copy()
        await raise_cursor(copy)
        with caplog.at_level(logging.ERROR):
            (alive,) = await world.bring_back(copy, dead)
            assert not alive.waiting
            assert await statuses(world) == [503, 200, 503]
        assert sum("'t' waits: a subscription" in one.getMessage() for one in caplog.records) == 1
        async with at(together, alive) as http:
            assert 'seaweedq_restored{found="cursor"} 1.0' in (await http.get("/metrics")).text
            assert (await http.post("/v1/cluster/rebuild", json={"dry_run": True})).status_code == 409
            assert not alive.lost.is_set()
            assert (await http.post("/v1/cluster/rebuild", json={})).status_code == 503
        waiting = await world.next_life(alive)
        assert waiting.waiting
        await world.rebuild(waiting)
        (alive,) = await world.go_on([waiting])
        world.acked.clear()
        await world.publish(alive, 3)
        assert await world.delivered(alive) == world.acked
