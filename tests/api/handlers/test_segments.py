"""One segment by itself: open, sealed, and after retention has removed it."""

from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import TombstoneRecord
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop
from tests.support.brokers.reshaped import at, make, replace
from tests.support.brokers.retained import fill

pytestmark = pytest.mark.brokers

T = "/v1/topics/t"


async def show(together: InLoop, broker: Broker, number: int, status: int = 200) -> dict[str, Any]:
    async with at(together, broker) as http:
        answer = await http.get(f"{T}/segments/{number}")
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def test_a_segment_is_shown_in_each_of_its_states(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        await make(one)
        await fill(one)
        for broker in together.brokers:
            found = await show(together, broker, 0)
            assert (found["state"], found["ended"], found["end_offset"]) == ("open", False, 6)
            assert found["owner"] in (one.id, two.id)
        successors = await replace(together, [0], 2)
        sealed = await show(together, two, 0)
        assert (sealed["state"], sealed["ended"], sealed["end_offset"]) == ("sealed", True, 6)
        assert (sealed["successors"], sealed["start_offset"], sealed["owner"]) == (successors, 0, None)
        value = keys.TOMBSTONES.encode(
            Versioned.new(TombstoneRecord(0, sealed["high"], 6, (), tuple(successors), 1, 2, 3))
        )
        place = ("t", 0, 0)
        await together.coordination.commit(
            [], [Put(keys.TOMBSTONES.key(*place), value), Delete(keys.SEGMENTS.key(*place))]
        )
        while 0 in inside.catalog(one).records(inside.topic(one, "t")):
            await inside.catalog(one).refresh("t", 0)
        removed = await show(together, one, 0)
        assert removed.pop("removed_at") == "1970-01-01T00:00:00.000003Z"
        assert (removed["state"], removed["ended"], removed["start_offset"]) == ("removed", True, 6)
        assert {name: removed[name] for name in ("end_offset", "successors", "low", "high")} == {
            name: sealed[name] for name in ("end_offset", "successors", "low", "high")
        }
        assert (await show(together, two, 99, 404))["type"] == "/problems/segment-not-found"
        await show(together, two, 10**12, 404)
