"""A seek begins an epoch: what is delivered after it, what does not count any more, and what a repetition does."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.subscriptions import open_subscriptions
from seaweedq.checks import using
from seaweedq.coordination import keys
from seaweedq.coordination.interface import read_all
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import TOPIC, make, opened, records, replace
from tests.support.brokers.retained import raise_start, retained, see_start
from tests.support.brokers.subscribing import SUBSCRIPTION, ack, consume, create, everywhere, publish, pull
from tests.support.http.asking import problem_of
from tests.support.tiers import later

pytestmark = pytest.mark.brokers


async def seek(http: httpx.AsyncClient, to: Any, **more: Any) -> dict[str, Any]:
    answer = await http.post(f"{SUBSCRIPTION}/seek", json={"to": to, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def rest_of(http: httpx.AsyncClient) -> list[str]:
    """Pulls and acks all that comes, of any attempt. Returns the ids."""
    found: list[str] = []
    while came := (await http.post(f"{SUBSCRIPTION}/pull", json={"max_messages": 200})).json()["messages"]:
        found += [message["id"] for message in came]
        await ack(http, [message["id"] for message in came])
    return found


@pytest.mark.parametrize("mode", ["ordered", "shared", "keyed"])
async def test_all_leases_end_and_acks_of_before_count_no_more(tmp_path: Path, mode: str) -> None:
    async with in_loop(tmp_path, 1) as together, everywhere(together) as (http,):
        await make(together.brokers[0])
        ids = await publish(http, 0)
        assert (await http.put(SUBSCRIPTION, json={"start": "earliest", "mode": mode})).status_code == 201
        first = await pull(http, 10)
        await ack(http, ids[:5])
        sought = await seek(http, "earliest")
        assert sought["segments"] == [{"segment": 0, "from": 5, "to": 0}]
        for asked in ({"ids": ids[5:7]}, {"ids": ids[5:7], "consumer": "c"}):
            late = (await http.post(f"{SUBSCRIPTION}/ack", json=asked)).json()
            assert late == {"acked": 0, "late": 0, "unknown": ids[5:7]}
        again = await pull(http, 100, "other")
        assert sorted(m["id"] for m in again) == sorted(ids)
        assert {m["id"] for m in first} <= set(ids)
        await ack(http, ids)
        assert (await seek(http, "latest"))["segments"] == [{"segment": 0, "from": 40, "to": 40}]
        assert await pull(http) == []


async def test_sealed_segments_are_sought_too_and_successors_wait_again(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)
        await create(clients[0])
        await publish(clients[0], 0)
        await replace(together, [0], 2, [one, two])
        await publish(clients[1], 1)
        assert {n for _, _, _, n in await consume(clients, lambda: True)} == {0, 1}
        sought = await seek(clients[1], "earliest")
        assert {(s["segment"], s["to"]) for s in sought["segments"]} == {(n, 0) for n in records(one)}
        rows = await consume(clients, lambda: True)
        assert [n for _, _, _, n in rows] == [0] * 40 + [1] * 40
        assert all(s["from"] > 0 for s in (await seek(clients[0], "latest"))["segments"])
        assert await pull(clients[0]) == []
        await seek(clients[0], {"offsets": {"0": 30}})
        rows = await consume(clients, lambda: True)
        assert [(segment, offset) for segment, offset, _, _ in rows] == [(0, offset) for offset in range(30, 40)]
        assert set(opened(one)) == set(records(one)) - {0}


async def test_offsets_move_the_segments_they_name_others_keep_their_acks(tmp_path: Path) -> None:
    async with in_loop(tmp_path, checkpoint_s=600) as together, everywhere(together) as clients:
        await make(together.brokers[0], 2)
        ids = await publish(clients[0], 0, 100)
        await create(clients[0])
        await pull(clients[0], 200)
        await ack(clients[0], ids[::2])  # with holes
        sought = await seek(clients[1], {"offsets": {"0": 17}})
        assert [(s["segment"], s["to"]) for s in sought["segments"]] == [(0, 17)]
        found = await rest_of(clients[0])
        unacked = {one for one in ids[1::2] if one.startswith("1-")}
        in_zero = {one for one in ids if one.startswith("0-") and int(one[2:]) >= 17}
        assert sorted(found) == sorted(unacked | in_zero)


async def test_a_seek_out_of_range_is_refused_one_below_the_start_is_moved_up(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, everywhere(together) as (http,):
        await make(together.brokers[0])
        await publish(http, 0)
        await create(http)
        path = f"{SUBSCRIPTION}/seek"
        beyond = problem_of(
            await http.post(path, json={"to": {"offsets": {"0": 41}}}), 416, "offset-out-of-range", "41"
        )
        assert beyond["end_offset"] == 40
        problem_of(await http.post(path, json={"to": {"offsets": {"7": 0}}}), 404, "segment-not-found", "7")
        bad: list[Any] = [
            {},
            {"offsets": {}},
            {"offsets": {"x": 1}},
            {"offsets": {"0": -1}},
            {"timestamp": "now"},
            "soon",
        ]
        for to in [*bad, None, 5, {"offsets": {"0": 1.5}}, {"offsets": {"-1": 1}}, {"since": "now"}]:
            problem_of(await http.post(path, json={"to": to}), 422, "invalid-request", "to")
        problem_of(await http.post(path, json={}), 422, "invalid-request", "to")
        both = {"timestamp": "2020-01-01T00:00:00Z", "offsets": {"0": 1}}
        problem_of(
            await http.post(path, json={"to": both}),
            422,
            "invalid-request",
            "exactly one of the fields `timestamp` and `offsets`",
        )
        assert (await seek(http, {"offsets": {"0": 40}}))["moved"] == []
        assert await pull(http) == []


async def test_what_retention_has_taken_is_not_sought(tmp_path: Path) -> None:
    """Four files: one without rows, and three of two rows each."""
    async with retained(tmp_path) as world, world.http() as http:
        await create(http, "latest")
        await raise_start(world.together.coordination, 2, 2)
        await see_start(2, world.broker)
        sought = await seek(http, {"offsets": {"0": 1}})
        assert (sought["segments"], sought["moved"]) == ([{"segment": 0, "from": 6, "to": 2}], [0])
        assert [message["offset"] for message in await pull(http)] == [2, 3, 4, 5]
        assert (await seek(http, "earliest"))["segments"] == [{"segment": 0, "from": 2, "to": 2}]
        old = await seek(http, {"timestamp": "1969-01-01T00:00:00Z"})
        assert (old["segments"], old["moved"]) == ([{"segment": 0, "from": 2, "to": 2}], [])
        assert (await seek(http, {"timestamp": "2999-01-01T00:00:00Z"}))["segments"][0]["to"] == 6


async def test_a_repetition_under_its_id_changes_nothing(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        ids = await publish(clients[0], 0)
        await create(clients[0])
        sought = await seek(clients[0], "earliest", id="again.1")
        assert sought["id"] == "again.1"
        await pull(clients[1], 10)
        await ack(clients[1], ids[:10])
        assert await seek(clients[1], "earliest", id="again.1") == sought
        assert (await pull(clients[0]))[0]["id"] == ids[10]
        for is_handed_over in (False, True):
            for other in ("latest", {"offsets": {"0": 1}}, {"timestamp": "2026-01-01T00:00:00Z"}):
                answer = await clients[0].post(f"{SUBSCRIPTION}/seek", json={"to": other, "id": "again.1"})
                assert answer.status_code == 422, "it was told that it had gone there"
                assert "again.1" in answer.json()["detail"]
            for broker in () if is_handed_over else together.brokers:
                dispatcher = inside.dispatcher(broker)
                for topic, name in dispatcher.names():
                    await dispatcher.hand_over(topic, name)
        assert (await seek(clients[1], "earliest", id="again.1"))["segments"] == []


async def test_a_refusal_names_all_forms_of_a_place(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, everywhere(together) as (http,):
        await make(together.brokers[0])
        await create(http)
        answer = await http.post(f"{SUBSCRIPTION}/seek", json={"to": "the end"})
        assert answer.status_code == 422
        for form in ("latest", "earliest", '{"timestamp": ...}', '{"offsets": ...}'):
            assert form in answer.json()["bound"]
        answer = await http.get(f"{SUBSCRIPTION}/stream?consumer=", headers={"seaweedq-client": "test"})
        assert (answer.status_code, answer.json()["field"]) == (422, "consumer")


async def test_a_paused_subscription_may_be_sought(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, everywhere(together) as (http,):
        await make(together.brokers[0])
        await publish(http, 0)
        await create(http, "latest")
        assert (await http.patch(SUBSCRIPTION, json={"paused": True})).status_code == 200
        await seek(http, "earliest")
        assert await pull(http) == []
        shown = (await http.get(SUBSCRIPTION)).json()
        assert (shown["paused"], shown["lag_total"]["messages"]) == (True, 40)


async def test_a_pull_that_waits_gets_what_was_sought(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        ids = await publish(clients[0], 0)
        await create(clients[0], "latest")
        waiting = asyncio.create_task(pull(clients[1], 100, "c", 20))
        await asyncio.sleep(0.1)
        await seek(clients[0], {"offsets": {"0": 30}})
        assert [message["id"] for message in await asyncio.wait_for(waiting, 15)] == ids[30:]


async def all_readable(http: httpx.AsyncClient) -> None:
    """Waits until the segments of a dead broker have another: until then their messages are unknown to an ack."""
    async with asyncio.timeout(15):
        while any(one["end_offset"] is None for one in (await http.get(f"{TOPIC}/segments")).json()["segments"]):
            await asyncio.sleep(0.01)


class Killed(BaseException):
    """The end of a broker at a fail point."""


def killing(place: str) -> Callable[[str], None]:
    """Ends whoever reaches a place for the n-th time: `place:n`."""
    name, _, count = place.partition(":")
    left = int(count or 1)

    def reach(reached: str) -> None:
        nonlocal left
        left -= reached == name
        if reached == name and left == 0:
            raise Killed

    return reach


@pytest.mark.parametrize(
    "place",
    [
        "checkpoint.written:2",
        "seek.begin",
        *map(later, ("checkpoint.write", "seek.begun", "seek.cursors:1")),
        "seek.cursors:2",
        "seek.cursors:3",
        "seek.written",
    ],
)
async def test_killed_amid_a_seek_all_segments_are_sought_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(open_subscriptions, "PAGE", 1)  # cursors a transaction
    has_begun = place.startswith("seek.") and place != "seek.begin"
    async with in_loop(tmp_path, checkpoint_s=600, publish_timeout_s=20) as together, everywhere(together) as clients:
        await make(together.brokers[0], 3)
        ids = await publish(clients[0], 0, 60)
        await create(clients[0])
        held = [m["id"] for m in await pull(clients[0], 200)]
        while len(held) < 60:
            held += [m["id"] for m in await pull(clients[0], 200)]
        await ack(clients[0], ids[:30])
        (dispatcher,) = [b for b in together.brokers if inside.dispatcher(b).names()]
        at_fault = clients[together.brokers.index(dispatcher)]
        (left,) = [client for client in clients if client is not at_fault]
        with using(killing(place)), pytest.raises(Killed):
            await seek(at_fault, "earliest")
        await together.crash(dispatcher)
        await all_readable(left)
        late = await left.post(f"{SUBSCRIPTION}/ack", json={"ids": ids[30:35]})
        assert late.json()["acked"] == (0 if has_begun else 5), late.text
        assert sorted(await rest_of(left)) == sorted(ids if has_begun else ids[35:])
        assert not any(
            keys.SUBSCRIPTIONS.require(entry).record.is_seeking
            for entry in (await read_all(together.coordination, keys.SUBSCRIPTIONS.prefix()))[0]
        )


async def test_a_dispatcher_that_dies_behind_a_seek_keeps_only_its_epochs_acks(tmp_path: Path) -> None:
    """Its journal has frames of both epochs. The next one takes acks of work under way, but not of what may have been
    delivered before the seek."""
    async with in_loop(tmp_path, checkpoint_s=600, publish_timeout_s=20) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        ids = await publish(clients[0], 0)
        await create(clients[0])
        await pull(clients[0], 30)
        await ack(clients[0], ids[:20])
        await seek(clients[0], {"offsets": {"0": 5}})
        await pull(clients[0], 10)
        await ack(clients[0], ids[5:8])
        more = await publish(clients[0], 1, 10)
        (dispatcher,) = [b for b in together.brokers if inside.dispatcher(b).names()]
        (left,) = [c for c, b in zip(clients, together.brokers, strict=True) if b is not dispatcher]
        await together.crash(dispatcher)
        await all_readable(left)
        late = await left.post(f"{SUBSCRIPTION}/ack", json={"ids": [*ids[20:30], more[0]]})
        assert (late.json()["acked"], sorted(late.json()["unknown"])) == (1, sorted(ids[20:30]))
        assert sorted(await rest_of(left)) == sorted([*ids[8:], *more[1:]])


async def test_two_seeks_at_once_come_one_after_the_other(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        ids = await publish(clients[0], 0)
        await create(clients[0])
        seeks = [seek(clients[n % 2], {"offsets": {"0": 10 + n % 3}}, id=f"s{n % 3}") for n in range(6)]
        done = await asyncio.gather(*seeks)
        places = {one["id"]: (one["segments"][0]["from"], one["segments"][0]["to"]) for one in done if one["segments"]}
        assert len(places) == 3
        assert {one for one, _ in places.values()} - {0} <= {
            to for _, to in places.values()
        }  # each begins where one ended
        (last,) = {to for _, to in places.values()} - {one for one, _ in places.values()}
        assert (await pull(clients[0]))[0]["id"] == ids[last]


async def test_acks_beside_seeks_are_answered_or_unknown_and_nothing_is_lost(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0], 2)
        ids = await publish(clients[0], 0, 100)
        await create(clients[0])
        stop = False

        async def consumer(http: httpx.AsyncClient, name: str) -> None:
            while not stop:
                found = await pull(http, 10, name)
                answer = await http.post(f"{SUBSCRIPTION}/ack", json={"ids": [m["id"] for m in found] or ["0-0"]})
                assert answer.status_code == 200, answer.text
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for n, http in enumerate(clients):
                group.create_task(consumer(http, f"c{n}"))
            for n in range(6):
                await seek(clients[n % 2], "earliest" if n % 2 else {"offsets": {"1": 3}})
                await asyncio.sleep(0.05)
            await seek(clients[0], "earliest")
            stop = True
        await seek(clients[0], "earliest")
        rows = await consume(clients, lambda: True)
        assert {f"{segment}-{offset}" for segment, offset, _, _ in rows} == set(ids)


@pytest.mark.parametrize("mode", ["ordered", "shared", "keyed"])
async def test_deliveries_that_a_seek_ends_do_not_count(tmp_path: Path, mode: str) -> None:
    """With max_attempts 1 what was leased in a segment that stayed died, though its lease had not failed."""
    async with in_loop(tmp_path, 1) as together, everywhere(together) as (http,):
        await http.put("/v1/topics/t", json={"initial_segments": 2})
        settings = {"start": "earliest", "mode": mode, "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await http.put(SUBSCRIPTION, json=settings)).status_code == 201
        sent = [{"key": f"k{n}", "value": n} for n in range(20)]
        ids = (await http.post("/v1/topics/t/messages", json={"messages": sent})).json()["ids"]
        assert {one.split("-")[0] for one in ids} == {"0", "1"}
        assert len(await pull(http)) == 20
        await seek(http, {"offsets": {"0": 0}})
        assert sorted(message["id"] for message in await pull(http)) == sorted(ids)
