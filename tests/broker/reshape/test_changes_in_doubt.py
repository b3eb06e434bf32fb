"""Changes by hand that take long, or that others get in the way of: 200 where they come about, else 202 or 503."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.broker import Broker
from seaweedq.broker.reshape.planning import stage
from seaweedq.coordination.records import Intent, SegmentRecord, Successor
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.keyrange import KEY_SPACE
from tests.support.brokers import inside
from tests.support.brokers.changing import TOPIC, ask, at, make, records, refused
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process import Gate, held
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until


@pytest.fixture
async def together(tmp_path: Path) -> AsyncIterator[InLoop]:
    async with in_loop(tmp_path, publish_timeout_s=2) as made:
        yield made


def hold_commits(broker: Broker) -> Gate:
    """No plan is committed before the gate is open."""
    gate = Gate()

    async def commits(writes: Any) -> None:
        if any(b'"committed"' in getattr(put, "value", b"") for put in writes):
            await gate()

    held(broker).before = commits
    return gate


@pytest.mark.brokers
async def test_what_is_under_way_when_the_time_is_over_is_202_and_comes_about(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    gate = hold_commits(one)
    async with at(together, two) as http:
        await inside.catalog(two).require("t")
        answer = await ask(http, 0, "split", {"at": [9]})
        assert (answer.status_code, answer.json()) == (
            202,
            {
                "planned": [0],
                "successors": [
                    {"id": 1, "low": 0, "high": 9, "owner": None},
                    {"id": 2, "low": 9, "high": KEY_SPACE, "owner": None},
                ],
            },
        )
        refused(await ask(http, 0, "split"), 409, "segment-conflict", "already being replaced", [1, 2])
        gate.open.set()
        await until(lambda: records(two)[0].state == "sealed")
        refused(await ask(http, 0, "split", {"at": [9]}), 409, "segment-conflict", "replaced", [1, 2])


@pytest.mark.brokers
async def test_a_move_that_takes_long_is_202_and_comes_about(together: InLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = together.brokers
    await make(one)
    gate = Gate()
    settle = inside.mover(one)._flush_all

    async def settles(segment: Any) -> None:
        await gate()
        await settle(segment)

    async def relays(*arguments: Any) -> Any:  # who hangs up ends nothing at the other side
        return await asyncio.shield(asyncio.create_task(relay(*arguments)))

    relay = two.process.peers.relay
    monkeypatch.setattr(two.process.peers, "relay", relays)
    monkeypatch.setattr(inside.mover(one), "_flush_all", settles)
    async with at(together, two) as http:
        assert (await http.post(f"{TOPIC}/messages", json={"value": 1})).status_code == 200
        answer = await ask(http, 0, "move", {"to": "b1"})
        mine, its = one.id, two.id
        assert (answer.status_code, answer.json()) == (202, {"segment": 0, "owner": mine, "to": its})
        gate.open.set()
        await until(lambda: records(two)[0].owner == its)


@pytest.mark.long
@pytest.mark.brokers
async def test_a_segment_whose_owner_is_gone_is_503_and_nothing_is_planned(together: InLoop) -> None:
    one, two = together.brokers
    leader, other = (one, two) if inside.election(one).is_leader else (two, one)
    await make(other)
    await inside.catalog(leader).require("t")
    gate = Gate()
    held(one).before = lambda writes: gate() if any("segments/" in put.key for put in writes) else asyncio.sleep(0)
    await together.crash(other)
    await until(lambda: not inside.roster(leader).alive(other.id))
    async with at(together, leader) as http:
        for change, body in (("split", {}), ("roll", None), ("move", {"to": leader.id})):
            refused(await ask(http, 0, change, body), 503, "not-owner", "no running broker owns segment")
    assert records(leader)[0].intent is None
    gate.open.set()


@pytest.mark.brokers
async def test_a_plan_that_a_move_has_undone_is_written_again(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    gate = hold_commits(one)
    async with at(together, two) as http:
        await inside.catalog(two).require("t")
        asking = asyncio.create_task(ask(http, 0, "split"))
        await gate.reached.wait()
        inside.ownership(one).locks._holders.clear()  # as if the move had been first
        assert await inside.mover(one).move(inside.topic(one, "t"), 0, two.id)
        gate.open.set()
        answer = await asking
    assert (answer.status_code, answer.json()["sealed"]) == (200, [0])
    assert [successor["id"] for successor in answer.json()["successors"]] == [3, 4]
    assert {successor["owner"] for successor in answer.json()["successors"]} == {two.id}


@pytest.mark.brokers
async def test_a_broker_that_hears_no_news_looks_for_itself(together: InLoop) -> None:
    one, two = together.brokers
    await make(one, 2)
    await inside.catalog(two).require("t")
    await until(lambda: len(records(two)) == 2)
    await deaf(two)
    async with at(together, two) as http:
        assert (await ask(http, 0, "split")).status_code == 200
        merged = await ask(http, 1, "merge", {"with": 3})
        assert (merged.status_code, merged.json()["sealed"]) == (200, [3, 1])
        assert (await ask(http, 2, "move", {"to": "b1"})).status_code == 200


@pytest.mark.brokers
async def test_who_waits_is_told_that_the_topic_is_being_deleted(together: InLoop) -> None:
    one, two = together.brokers
    await make(one)
    gate = hold_commits(one)
    async with at(together, two) as http:
        await inside.catalog(two).require("t")
        asking = asyncio.create_task(ask(http, 0, "split"))
        await gate.reached.wait()
        deleting = asyncio.create_task(inside.deletion(one).delete(inside.topic(one, "t")))
        refused(await asking, 409, "topic-being-deleted")
        gate.open.set()
        await deleting


@pytest.mark.brokers
async def test_a_broker_that_stops_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        one, two = together.brokers
        await make(one)
        gate = hold_commits(one)
        async with at(together, two) as http:
            await inside.catalog(two).require("t")
            asking = asyncio.create_task(ask(http, 0, "split"))
            await gate.reached.wait()
            two.begin_stop()
            async with asyncio.timeout(20):
                assert (await asking).status_code == 202
        gate.open.set()


INTENT = Intent(7, "planned", (1, 2), (Successor(7, 0, KEY_SPACE),))
OPEN = SegmentRecord(0, 5, "open", (), (), "b", None, 1, intent=INTENT)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "under way"),
        ({1: {"intent": None}}, "undone"),
        ({2: {"intent": None}, 1: {"intent": None}}, "undone"),
        ({2: {"intent": Intent(8, "planned", (2,), ())}}, "undone"),
        ({1: {"intent": Intent(7, "committed", (1, 2), INTENT.successors)}}, "under way"),
        ({1: {"state": "sealed", "successors": (7,), "intent": None}}, "under way"),
        ({n: {"state": "sealed", "successors": (7,), "intent": None} for n in (1, 2)}, "under way"),
        ({n: {"state": "sealed", "successors": (7,), "intent": None} for n in (1, 2)} | {7: {"intent": None}}, "done"),
        (
            {n: {"state": "sealed", "successors": (8,), "intent": None} for n in (1, 2)} | {7: {"intent": None}},
            "undone",
        ),
    ],
)
def test_how_far_an_intent_has_come(changes: dict[int, dict[str, Any]], expected: str) -> None:
    numbers = {1, 2} | changes.keys()
    assert stage({n: Versioned(replace(OPEN, **changes.get(n, {})), 1) for n in numbers}, INTENT) == expected
