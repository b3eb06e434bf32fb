"""Subscriptions go on over splits, merges and rolls: each message once, a key's in order, behind its predecessors; in
`shared` nothing waits. A dispatcher may die behind a split, with acks in its journal alone. A subscription begins at
its place in a topic whose segments have given way to others, or do so meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.subscriptions import acking
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import CursorRecord
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers import in_process, inside
from tests.support.brokers.deaf import end_task
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import (
    TOPIC,
    at,
    beside,
    change_all,
    check_all_once_in_order,
    make,
    opened,
    publishing,
    records,
    replace,
)
from tests.support.brokers.subscribing import SUBSCRIPTION, ack, consume, create, everywhere, lag, publish, pull

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
async def test_each_message_comes_once_and_in_order_and_nothing_is_left(tmp_path: Path, arrow: bool) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0], 2)
        await create(clients[0])
        changed = asyncio.Event()
        async with beside(consume(clients, changed.is_set)) as tasks:
            async with publishing(together, arrow) as published:
                await change_all(together)
            changed.set()
        check_all_once_in_order(tasks[0].result(), published.taken)
        left = await lag(clients[1])
        assert {one["segment"] for one in left} == set(opened(together.brokers[0]))
        assert sum(one["messages"] for one in left) == 0
        await create_late(clients, published.taken)


async def create_late(clients: list[httpx.AsyncClient], taken: dict[str, int]) -> None:
    """A subscription that is made when all is over reads the same from the first segments on."""
    assert (await clients[0].delete(SUBSCRIPTION)).status_code == 204
    await create(clients[1])
    assert sum(one["messages"] for one in await lag(clients[0])) == sum(taken.values())
    check_all_once_in_order(await consume(clients, lambda: True), taken)


async def test_a_successor_waits_until_all_its_predecessors_are_acked(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as (http, other):
        await make(together.brokers[0], 2)
        await create(http)
        before = await publish(http, 0)
        merged = (await replace(together, opened(together.brokers[0])))[0]
        behind = await publish(other, 1)
        assert {id.split("-")[0] for id in behind} == {str(merged)}
        first = await pull(http)
        assert sorted(message["id"] for message in first) == sorted(before)
        assert await pull(other, consumer="another") == []
        by_segment = [[m["id"] for m in first if m["segment"] == segment] for segment in (0, 1)]
        await ack(other, by_segment[0])
        await ack(http, by_segment[1][1:])
        assert await pull(http) == await pull(other, consumer="another") == []
        left = {one["segment"]: one for one in await lag(other)}
        assert {n: one["messages"] for n, one in left.items()} == {1: 1, merged: len(behind)}
        assert left[merged]["acked_to"] == 0
        assert left[merged]["bytes"] > 0
        waiting = asyncio.create_task(pull(other, wait_s=20))
        await asyncio.wait([waiting], timeout=0.1)
        await ack(http, by_segment[1][:1])
        assert sorted(m["id"] for m in await asyncio.wait_for(waiting, 15)) == sorted(behind)


async def test_a_pull_waits_for_a_segment_in_replacement_and_is_never_empty(
    tmp_path: Path,
) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one = together.brokers[0]
        topic = await make(one)
        await create(clients[0])
        await publish(clients[1], 0)
        held, go_on = asyncio.Event(), asyncio.Event()
        quiet = inside.group_commit(one).wait_until_idle

        async def slow() -> None:
            held.set()
            await go_on.wait()
            await quiet()

        inside.group_commit(one).wait_until_idle = slow  # type: ignore[method-assign]
        await inside.planner(one).plan(topic, [0], [1_000_000_000])
        await held.wait()
        pulls = [asyncio.create_task(pull(http, consumer=str(n))) for n, http in enumerate(clients)]
        fetch = asyncio.create_task(clients[1].get(f"{TOPIC}/segments/0/messages"))
        shown = asyncio.create_task(clients[1].get(TOPIC))
        done, _ = await asyncio.wait([*pulls, fetch, shown], timeout=0.5)
        assert not done
        go_on.set()
        inside.group_commit(one).wait_until_idle = quiet  # type: ignore[method-assign]
        async with asyncio.timeout(15):
            assert len((await asyncio.gather(*pulls))[0]) in (0, 40)
            assert len([m for found in await asyncio.gather(*pulls) for m in found]) == 40
            assert len((await fetch).json()["messages"]) == 40
            assert (await shown).json()["messages"] == 40


async def test_what_has_expired_holds_nothing_up(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        await create(clients[0])
        for number in (0, 1):
            messages = [{"value": n, "expires_in_s": 0.01} for n in range(3)]
            assert (await clients[0].post(f"{TOPIC}/messages", json={"messages": messages})).status_code == 200
            await replace(together, [number])
        ids = await publish(clients[1], 0)
        await asyncio.sleep(0.05)
        assert [message["id"] for message in await pull(clients[0])] == ids


async def test_what_was_acked_of_a_segment_that_is_done_stays_acked(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as (http, other):
        await make(together.brokers[0])
        await create(http)
        ids = await publish(http, 0)
        await ack(http, [message["id"] for message in await pull(http)])
        await replace(together, [0], 2)
        assert await pull(http) == []
        for broker in together.brokers:
            await inside.dispatcher(broker).checkpoint()
        await ack(other, ids)
        answer = await http.post(f"{SUBSCRIPTION}/ack", json={"ids": ["0-0", "0-40", "0-40", "1-0", "77-0"]})
        assert answer.json() == {"acked": 1, "late": 0, "unknown": ["0-40", "1-0", "77-0"]}


async def test_a_subscription_is_handed_on_amid_its_way(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)
        await create(clients[0])
        await publish(clients[0], 0)
        await replace(together, await replace(together, [0], 2), 3, [one, two, one])
        await publish(clients[1], 1)
        await ack(clients[0], [message["id"] for message in await pull(clients[0])])
        first = await pull(clients[0], 10)
        holder = next(b for b in together.brokers if inside.dispatcher(b).names())
        await inside.dispatcher(holder).hand_over(inside.topic(holder, "t"), "s")
        await ack(clients[1], [message["id"] for message in first])
        rest = await consume(clients, lambda: True)
        assert len({(m["key"], m["value"]) for m in first} | {(key, n) for _, _, key, n in rest}) == 40
        assert sum(one["messages"] for one in await lag(clients[1])) == 0
        holder = next(b for b in together.brokers if inside.dispatcher(b).names())
        subscription = await inside.dispatcher(holder).open(inside.topic(holder, "t"), "s")
        assert set(subscription.frontier.open) == set(opened(one))
        assert subscription.frontier.done == {n for n, r in records(one).items() if r.state == "sealed"}


async def test_what_is_done_is_not_looked_at_again(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)
        await create(clients[0])
        number = 0
        for n in range(5):
            await publish(clients[0], n)
            (number,) = await replace(together, [number], 1, [one])
        await consume(clients, lambda: True)
        holder = next(b for b in together.brokers if inside.dispatcher(b).names())
        await inside.dispatcher(holder).checkpoint()
        other = two if holder is one else one
        await inside.dispatcher(holder).hand_over(inside.topic(holder, "t"), "s")
        topic = inside.topic(other, "t")
        for sealed in [n for n in topic.opened if records(other)[n].state == "sealed"]:
            del topic.opened[sealed]
        subscription = await inside.dispatcher(other).open(topic, "s")
        assert await in_process.pull(inside.dispatcher(other), topic, "s", None, 10, 0) == []
        await inside.dispatcher(other).checkpoint()
        assert set(topic.opened) <= {number}
        assert set(subscription.cursors) <= {number}


async def test_successors_do_not_wait_for_their_predecessors(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as (http, other):
        await make(together.brokers[0])
        answer = await http.put(SUBSCRIPTION, json={"start": "earliest", "mode": "shared"})
        assert answer.status_code == 201, answer.text
        early = await publish(http, 0)
        assert len(await pull(http, count=10)) == 10
        await replace(together, [0], 2)
        late = await publish(other, 0)
        found: set[str] = set()
        while not found.issuperset(late):  # the end of a segment of another broker may not be known yet
            more = await pull(other, count=1000, wait_s=10)
            assert more, "those of the predecessor are not acked"
            found |= {message["id"] for message in more}
        await ack(http, late)
        for one in together.brokers:
            dispatcher = inside.dispatcher(one)
            await dispatcher.checkpoint()
            for topic, name in dispatcher.names():
                dispatcher.forget(topic, name)  # as a crash: leases are gone
        answer = await other.post(f"{SUBSCRIPTION}/pull", json={"max_messages": 1000})
        again = [message["id"] for message in answer.json()["messages"]]
        assert sorted(again) == sorted(early), "what was acked of the successors comes no more"
        await ack(other, again)
        assert sum(one["messages"] for one in await lag(http)) == 0


async def test_the_next_dispatcher_goes_on_where_the_acks_end(tmp_path: Path) -> None:
    async with in_loop(tmp_path, checkpoint_s=600, publish_timeout_s=20) as together:
        one, two = together.brokers
        await make(one)
        async with at(together, one) as http, at(together, two) as other:
            await create(http)
            before = await publish(http, 0)
            await pull(http)
            (dispatcher,) = [b for b in together.brokers if inside.dispatcher(b).names()]
            left, asks = (two, other) if dispatcher is one else (one, http)
            successors = await replace(together, [0], 2, [one, two])
            behind = await publish(asks, 1)
            await ack(asks, before)
            first = await pull(asks, 30)
            await ack(asks, [message["id"] for message in first])
            assert {message["segment"] for message in first} <= set(successors)
            await together.crash(dispatcher)
            await until(lambda: {r.owner for r in records(left).values() if r.state == "open"} == {left.id})
            found = [message["id"] for message in first]
            while len(found) < len(behind):
                came = await pull(asks, wait_s=10)
                assert came, "some are missing"
                found += [message["id"] for message in came]
            assert sorted(found) == sorted(behind)
            await ack(asks, found[len(first) :])
            assert await pull(asks) == []


Writes = Sequence[Put | Delete]


def before_the_first(together: InLoop, kind: str, work: Callable[[], Awaitable[Any]]) -> None:
    """Do this before the first write of that kind of key."""
    done = False

    async def before(writes: Writes) -> None:
        nonlocal done
        if not done and isinstance(writes[0], Put) and writes[0].key.startswith(kind):
            done = True
            await work()

    together.coordination.before = before


async def test_latest_begins_behind_all_that_is_there(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)
        await publish(clients[0], 0)
        await replace(together, await replace(together, [0], 2), 3, [one, two, one])
        await publish(clients[1], 1)
        await create(clients[1], "latest")
        assert await pull(clients[0]) == []
        assert sum(one["messages"] for one in await lag(clients[0])) == 0
        assert {one["segment"] for one in await lag(clients[0])} == set(opened(one))
        await publish(clients[0], 2)
        assert {n for _, _, _, n in await consume(clients, lambda: True)} == {2}


async def test_acks_by_id_come_first_behind_a_take_over(tmp_path: Path) -> None:
    """The new dispatcher knows no end of other brokers' segments, so it called those messages unknown. What the dead
    one had of its own is refused until it is there again."""
    async with in_loop(tmp_path, 3) as together:
        await make(together.brokers[0], 6)
        async with everywhere(together) as clients:
            assert (await clients[0].put(SUBSCRIPTION, json={"start": "earliest", "mode": "shared"})).status_code == 201
            published = await publish(clients[0], 0)
            ids: list[str] = []
            while len(ids) < len(published):
                ids += [message["id"] for message in await pull(clients[0])]
        (dispatcher,) = [one for one in together.brokers if one.subscribing.dispatcher.has(inside.topic(one, "t"), "s")]
        assert {record.owner for record in records(dispatcher).values()} > {dispatcher.id}
        await together.crash(dispatcher)
        living = [one for one in together.brokers if one is not dispatcher]
        await until(lambda: all(dispatcher.id not in inside.roster(one).brokers for one in living))
        async with at(together, living[0]) as http:
            answers = [await http.post(f"{SUBSCRIPTION}/ack", json={"ids": ids})]
            while answers[-1].status_code == 503:
                await asyncio.sleep(0.05)
                answers.append(await http.post(f"{SUBSCRIPTION}/ack", json={"ids": ids}))
            told = answers[-1].json()
            assert (told["acked"], told["unknown"]) == (len(published), [])
            unknown = await http.post(f"{SUBSCRIPTION}/ack", json={"ids": [f"{ids[0].partition('-')[0]}-1000"]})
            assert (unknown.json()["acked"], len(unknown.json()["unknown"])) == (0, 1)


async def test_acks_by_id_behind_a_take_over_wait_for_a_segment_that_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 3) as together, everywhere(together) as clients:
        await make(together.brokers[0], 3)
        assert (await clients[0].put(SUBSCRIPTION, json={"start": "earliest", "mode": "shared"})).status_code == 201
        published, ids = await publish(clients[0], 0), list[str]()
        while len(ids) < len(published):
            ids += [message["id"] for message in await pull(clients[0])]
        (dispatcher,) = [one for one in together.brokers if one.subscribing.dispatcher.has(inside.topic(one, "t"), "s")]
        await together.crash(dispatcher)
        living = [one for one in together.brokers if one is not dispatcher]
        ids_of_living = {one.id for one in living}
        await until(lambda: all({it.owner for it in records(one).values()} == ids_of_living for one in living))
        async with at(together, living[0]) as http:
            await lag(http)
            (mover,) = [one for one in living if one.subscribing.dispatcher.has(inside.topic(one, "t"), "s")]
            (other,) = [one for one in living if one is not mover]
            number = min(n for n, record in records(mover).items() if record.owner == mover.id)
            held = Gate()

            async def before(writes: Sequence[Put | Delete]) -> None:
                if any(keys.SEGMENTS.matches(write.key) for write in writes):
                    await held()

            together.coordination.before = before
            moving = asyncio.create_task(inside.mover(mover).move(inside.topic(mover, "t"), number, other.id))
            await held.reached.wait()
            with monkeypatch.context() as hurried:
                hurried.setattr(acking, "CALL_S", 0.0)
                refused = await http.post(f"{SUBSCRIPTION}/ack", json={"ids": ids})
            assert (refused.status_code, refused.json().get("segments")) == (503, [number])
            waiting = asyncio.create_task(http.post(f"{SUBSCRIPTION}/ack", json={"ids": ids}))
            await asyncio.wait([waiting], timeout=0.3)
            assert not waiting.done()
            held.open.set()
            assert await moving
            told = (await waiting).json()
            assert (told["acked"], told["unknown"]) == (len(published), [])


@pytest.mark.parametrize("creator", [0, 1])
async def test_latest_while_a_segment_gives_way_misses_no_publish_from_then_on(tmp_path: Path, creator: int) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        await publish(clients[0], 0)

        async def meanwhile() -> None:
            await publish(clients[0], 1)
            await replace(together, [0], 2, together.brokers)
            await publish(clients[1], 2)

        before_the_first(together, "cursors/", meanwhile)
        await create(clients[creator], "latest")
        await publish(clients[0], 3)
        rows = await consume(clients, lambda: True)
        for key in {key for _, _, key, _ in rows}:
            assert [n for _, _, of, n in rows if of == key] == [1, 2, 3]


@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_a_start_amid_changes_has_no_hole_in_any_key(tmp_path: Path, start: str) -> None:
    """Whatever of a key comes is all from one message on."""
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one = together.brokers[0]
        await make(one, 2)
        async with publishing(together) as published:
            for n in range(5):
                made = asyncio.create_task(create(clients[n % 2], start))
                await replace(together, opened(one)[n % 2 : n % 2 + 1 + n % 2], 1 + n % 3, together.brokers)
                await made
                at_least = dict(published.taken)
                await asyncio.sleep(0.02)
                taken = dict(published.taken)
                rows = await consume(clients, lambda: True)
                for key, end in taken.items():
                    found = [m for _, _, of, m in rows if of == key]
                    assert found == [*range(found[0], found[-1] + 1)] if found else start == "latest"
                    first = 0 if start == "earliest" else at_least.get(key, 0)  # 0: nothing of it was published yet
                    assert {*found} >= {*range(first, end)}
                assert (await clients[0].delete(SUBSCRIPTION)).status_code == 204


async def test_a_time_is_looked_for_in_every_segment(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)

        async def publish_at(n: int, minute: int) -> None:
            messages = [{"key": f"k{k}", "value": n, "timestamp": f"2020-01-01T00:{minute:02}:00Z"} for k in range(20)]
            answer = await clients[0].post(f"{TOPIC}/messages", json={"messages": messages})
            assert answer.status_code == 200

        await publish_at(0, 10)
        first = await replace(together, [0], 2, [one, two])
        await publish_at(1, 20)
        await publish_at(2, 30)
        await replace(together, first, 1, [two])
        await publish_at(3, 5)  # a straggler: it comes behind what has reached the time, so it counts
        await publish_at(4, 40)
        for minute, expected in [(1, 0), (15, 1), (30, 2), (31, 4), (50, 5)]:
            await create(clients[1], {"timestamp": f"2020-01-01T00:{minute:02}:00Z"})
            rows = await consume(clients, lambda: True)
            assert {n for _, _, _, n in rows} == {*range(expected, 5)}
            assert len(rows) == 20 * (5 - expected)
            assert (await clients[0].delete(SUBSCRIPTION)).status_code == 204


async def test_a_creation_that_was_cut_off_leaves_no_cursor_behind(tmp_path: Path) -> None:
    """A dead broker that had begun the subscription knew of segments that its next creator has not heard of."""
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one = together.brokers[0]
        topic = await make(one)
        await publish(clients[0], 0)
        stopped = Gate()
        before_the_first(together, "cursors/", stopped)
        made = asyncio.create_task(create(clients[0], "latest"))
        await stopped.reached.wait()
        made.cancel()
        await asyncio.wait([made])
        left = keys.CURSORS.key("t", topic.record.incarnation, "s", 1)
        await together.coordination.commit([], [Put(left, keys.CURSORS.encode(Versioned.new(CursorRecord(0, 7))))])
        dispatcher = next(b for b in together.brokers if b.id == inside.assignment(b).preferred(topic, "s"))
        async with at(together, dispatcher) as http:
            await create(http)
        await replace(together, [0], 1)
        await publish(clients[0], 1)
        assert len(await consume(clients, lambda: True)) == 80


@pytest.mark.parametrize("read_before", [False, True])
async def test_a_broker_whose_watch_is_behind_reads_what_the_others_read(
    tmp_path: Path, read_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dispatcher's long poll at the segment's owner hears of the seal, too, and has the record read again: not
    before the others have gone on."""
    async with in_loop(tmp_path) as together, everywhere(together) as clients:
        one, two = together.brokers
        topic = await make(one)
        deaf, hears = (one, two) if inside.assignment(one).preferred(topic, "s") == one.id else (two, one)
        if records(one)[0].owner == deaf.id:
            await inside.mover(deaf).move(inside.topic(deaf, "t"), 0, hears.id)
        await create(clients[0])
        await publish(clients[1], 0)
        await end_task(deaf, "catalog")
        refresh, gone_on = Catalog.refresh, asyncio.Event()

        async def late(catalog: Catalog, name: str, segment: int | None = None) -> None:
            if catalog is inside.catalog(deaf) and segment == 0:
                await gone_on.wait()
            await refresh(catalog, name, segment)

        monkeypatch.setattr(Catalog, "refresh", late)
        async with at(together, hears) as near, at(together, deaf) as far:
            before = await consume([far], lambda: True) if read_before else []
            await inside.planner(hears).plan(inside.topic(hears, "t"), [0], [1_000_000_000], [hears.id, deaf.id])
            await until(lambda: records(hears)[0].state == "sealed")
            await publish(near, 1)
            assert records(deaf)[0].state == "open"
            gone_on.set()
            rows = await consume([far], lambda: True)
            assert inside.dispatcher(deaf).names()
            check_all_once_in_order([*before, *rows], {key: 2 for _, _, key, _ in [*before, *rows]})
            await _same_answers(near, far)


@pytest.mark.parametrize("first", [f"{TOPIC}/segments/1/messages", f"{TOPIC}/segments", TOPIC])
async def test_whatever_is_asked_first_of_a_broker_that_is_behind_is_answered(tmp_path: Path, first: str) -> None:
    async with in_loop(tmp_path) as together:
        hears, deaf = together.brokers
        topic = await make(hears)
        async with at(together, hears) as near, at(together, deaf) as far:
            await publish(near, 0)
            await end_task(deaf, "catalog")
            await inside.planner(hears).plan(topic, [0], [1_000_000_000])
            await until(lambda: records(hears)[0].state == "sealed")
            await publish(near, 1)
            there, here = await near.get(first), await far.get(first)
            assert here.status_code == 200, here.text
            assert {**here.json(), "path": "", "now": ""} == {**there.json(), "path": "", "now": ""}
            await _same_answers(near, far)


async def _same_answers(near: httpx.AsyncClient, far: httpx.AsyncClient) -> None:
    for path in (
        f"{TOPIC}/segments/1/messages",
        f"{TOPIC}/segments/2/messages",
        f"{TOPIC}/segments/0/messages",
        f"{TOPIC}/segments",
        TOPIC,
    ):
        there, here = await near.get(path), await far.get(path)
        assert here.status_code == 200, here.text
        assert {**here.json(), "path": "", "now": ""} == {**there.json(), "path": "", "now": ""}
