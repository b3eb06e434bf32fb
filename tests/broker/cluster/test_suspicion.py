"""Brokers of one loop on simulated time: a death is noticed by refused connections, and nothing else is a death."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.suspecting import OwnRevocations
from seaweedq.broker.cluster.suspicion_rules import EXEMPT_S, HELD_S
from seaweedq.broker.uploads.payloads import Payloads
from seaweedq.coordination import keys
from seaweedq.coordination.records import TopicConfig
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import running
from tests.support.brokers.machine import simulated_machine
from tests.support.brokers.simulated_loop import clock, simulate
from tests.support.reshape.lives import Lives, lives

LEASE_S = 30.0  # longer than all that a test waits for, but for the lease itself
NAME = "/v1/topics/t/subscriptions/s"


def scene(folder: Path, work: Callable[[Lives], Any], count: int = 3, lease_s: float = LEASE_S) -> None:
    """Brokers with a topic of six segments, on simulated time."""

    async def run() -> None:
        machine = simulated_machine(clock(), 1)
        async with lives(folder, count, machine=machine, lease_s=lease_s, publish_timeout_s=60) as together:
            await inside.topic_admin(together.brokers[0]).create("t", TopicConfig(initial_segments=6))
            await asyncio.sleep(3)  # all have greeted all, and segments are spread
            await work(together)

    simulate(run())


def alive(at: Broker, broker: Broker) -> bool:
    return inside.roster(at).alive(broker.id)


async def until_s(condition: Callable[[], Any], within_s: float) -> float:
    """The seconds until it holds."""
    began_s = clock().time()
    while not condition():
        assert clock().time() - began_s < within_s, "it did not come about"
        await asyncio.sleep(0.01)
    return clock().time() - began_s


def leader(together: Lives) -> Broker:
    (found,) = [broker for broker in together.living if inside.election(broker).is_leader]
    return found


def follower(together: Lives) -> Broker:
    return next(broker for broker in together.living if not inside.election(broker).is_leader)


async def marks(together: Lives) -> list[str]:
    page = await together.coordination.range(keys.REVOCATIONS.prefix())
    return [entry.key for entry in page.entries]


@pytest.mark.brokers
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("who", [leader, follower])
def test_a_broker_that_is_killed_loses_its_ranges_within_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, who: Callable[[Lives], Broker], count: int
) -> None:
    async def work(together: Lives) -> None:
        dead = who(together)
        assert list(inside.catalog(dead).owned_by(dead.id))
        await together.vanish(dead)
        rest = together.living
        noticed_s = await until_s(lambda: not any(alive(one, dead) for one in rest), 1.0)
        assert noticed_s >= 0.4  # three refused connections, 200 ms apart
        await until_s(lambda: not any(list(inside.catalog(one).owned_by(dead.id)) for one in rest), 3.0)
        assert await marks(together) == [keys.REVOCATIONS.key(dead.id)]
        assert sum(inside.revoker(one).revocations for one in rest) == 1
        assert sum(inside.prober(one).suspicions for one in rest) == min(2, count - 1)
        await asyncio.sleep(LEASE_S + 3)
        assert await marks(together) == []
        assert (await together.coordination.range(keys.SUSPICIONS.prefix())).entries == ()

    with caplog.at_level(logging.INFO):
        scene(tmp_path, work, count)
    assert "refuses connections at" in caplog.text
    assert "the lease of broker" in caplog.text


@pytest.mark.brokers
@pytest.mark.long
def test_a_broker_that_falls_silent_keeps_its_lease(tmp_path: Path) -> None:
    async def work(together: Lives) -> None:
        dead = follower(together)
        together.silent.add(dead.process.url)
        await asyncio.sleep(HELD_S + LEASE_S)
        assert all(alive(one, dead) for one in together.living)
        await together.vanish(dead)
        await asyncio.sleep(LEASE_S - 3)
        assert all(alive(one, dead) for one in together.living)
        await until_s(lambda: not any(alive(one, dead) for one in together.living), 5)
        assert await marks(together) == []

    scene(tmp_path, work)


@pytest.mark.brokers
@pytest.mark.long
def test_a_broker_that_refuses_from_the_beginning_is_not_suspected(tmp_path: Path) -> None:
    """A wrong advertise_url, or a rule of a firewall."""

    async def work(together: Lives) -> None:
        together.refusing.add("http://b3")
        late = await together.begin()
        assert late.process.url == "http://b3"
        await asyncio.sleep(120)
        assert all(alive(one, late) for one in together.living)
        assert not any(inside.prober(one).suspicions for one in together.living)

    scene(tmp_path, work)


@pytest.mark.brokers
@pytest.mark.long
def test_a_living_one_that_begins_to_refuse_is_revoked_once_then_spared(tmp_path: Path) -> None:
    async def work(together: Lives) -> None:
        victim = follower(together)
        together.refusing.add(victim.process.url)
        await until_s(victim.lost.is_set, HELD_S + 3)
        assert not inside.membership(victim).valid()
        assert victim.process.revoked.count == 1
        await together.vanish(victim)
        for _ in range(2):  # lives
            together.refusing.clear()
            again = await together.begin_again(victim)
            await asyncio.sleep(5)  # all have greeted it
            together.refusing.add(victim.process.url)
            await asyncio.sleep(HELD_S + 60)
            assert not again.lost.is_set()
            assert all(inside.roster(one).brokers[again.id].record.suspicion_exempt for one in together.living)
            await together.crash(again)
        together.refusing.clear()
        again = await together.begin_again(victim)
        await asyncio.sleep(EXEMPT_S)
        assert not any(inside.roster(one).brokers[again.id].record.suspicion_exempt for one in together.living)
        together.refusing.add(victim.process.url)
        await until_s(again.lost.is_set, HELD_S + 3)

    scene(tmp_path, work)


@pytest.mark.brokers
@pytest.mark.long
def test_one_that_stops_in_order_is_not_suspected(tmp_path: Path) -> None:
    async def work(together: Lives) -> None:
        leaving = follower(together)
        leaving.readiness.draining = True
        inside.responder(leaving).leave()
        await asyncio.sleep(1)
        together.refusing.add(leaving.process.url)
        await asyncio.sleep(HELD_S + 10)
        assert all(alive(one, leaving) for one in together.living)

    scene(tmp_path, work)


@pytest.mark.brokers
def test_one_reporter_of_three_is_not_enough(tmp_path: Path) -> None:
    async def work(together: Lives) -> None:
        victim = follower(together)
        (other,) = [one for one in together.living if one is not victim and not inside.election(one).is_leader]
        prober = inside.prober(other)
        url = victim.process.url
        privates.reported(prober)[victim.id] = False
        await prober._report(victim.id, url)
        assert prober.suspicions == 1
        await asyncio.sleep(HELD_S + 10)
        assert all(alive(one, victim) for one in together.living)
        assert victim.id not in privates.reported(prober)  # it answered, so that was taken back

    scene(tmp_path, work)


@pytest.mark.brokers
def test_one_revoked_while_it_lives_answers_nothing_from_then_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(together: Lives) -> None:
        victim = follower(together)
        await together.coordination.leases.revoke(inside.membership(victim).lease)
        took_s = await until_s(victim.lost.is_set, 1.0)
        assert took_s < 0.5  # by the watch: its renewals are a second apart
        assert not inside.membership(victim).valid()
        assert victim.process.revoked.count == 1
        async with together.client(victim) as http:
            assert (await http.post(f"{NAME}/pull", json={})).status_code == 503
        await together.vanish(victim)
        again = await together.begin_again(victim)
        await asyncio.sleep(1)
        assert all(inside.roster(one).brokers[again.id].record.suspicion_exempt for one in together.living)

    scene(tmp_path, work, lease_s=5.0)
    assert (
        "other brokers revoked the lease while this broker was running, so for 600 s this broker cannot be suspected"
        in caplog.text
    )


@pytest.mark.brokers
def test_messages_about_to_be_answered_are_not_once_the_key_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(together: Lives) -> None:
        async with together.client(together.brokers[0]) as http:
            assert (await http.put(NAME, json={"start": "earliest"})).status_code == 201
            body = {"messages": [{"key": f"k{n}", "value": n} for n in range(20)]}
            assert (await http.post("/v1/topics/t/messages", json=body)).status_code == 200
            assert (await http.post(f"{NAME}/pull", json={"max_messages": 1})).status_code == 200
        (dispatcher,) = [one for one in together.living if inside.dispatcher(one).has(topic_of(one), "s")]
        slow, goes_on = asyncio.Event(), asyncio.Event()

        async def links_of(*arguments: Any) -> Any:
            slow.set()
            await goes_on.wait()
            return await known(*arguments)

        known = Payloads.links_of
        monkeypatch.setattr(Payloads, "links_of", links_of)
        async with together.client(dispatcher) as http:
            pull = asyncio.create_task(http.post(f"{NAME}/pull", json={}))
            await slow.wait()
            await together.coordination.leases.revoke(inside.membership(dispatcher).lease)
            await until_s(dispatcher.lost.is_set, 1.0)
            goes_on.set()
            assert (await pull).status_code == 503

    scene(tmp_path, work)


@pytest.mark.brokers
def test_others_dispatch_a_lease_after_a_revocation_on_suspicion(tmp_path: Path) -> None:
    async def work(together: Lives) -> None:
        async with together.client(together.brokers[0]) as http:
            assert (await http.put(NAME, json={"start": "earliest"})).status_code == 201
            body = {"messages": [{"key": f"k{n}", "value": n} for n in range(20)]}
            assert (await http.post("/v1/topics/t/messages", json=body)).status_code == 200
            assert (await http.post(f"{NAME}/pull", json={})).status_code == 200
        (dispatcher,) = [one for one in together.living if inside.dispatcher(one).has(topic_of(one), "s")]
        await together.vanish(dispatcher)
        other = together.living[0]
        await until_s(lambda: not list(inside.catalog(other).owned_by(dispatcher.id)), 3.0)
        ended_s = clock().time()
        async with together.client(other) as http:
            answer = await http.post(f"{NAME}/pull", json={"wait_s": 1})
            while answer.status_code == 503:
                answer = await http.post(f"{NAME}/pull", json={"wait_s": 1})
        assert len(answer.json()["messages"]) > 0
        assert LEASE_S - 3 < clock().time() - ended_s < LEASE_S + 3

    scene(tmp_path, work)


def topic_of(broker: Broker) -> Any:
    return inside.topic(broker, "t")


async def test_a_start_that_takes_longer_than_it_is_spared_ends_that_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said at its beginning that it was suspicion_exempt, and never that it was no more."""
    left_s = iter([1.0])
    monkeypatch.setattr(OwnRevocations, "exempt_s", property(lambda self: next(left_s, 0.0)))
    async with running(tmp_path) as broker:
        async with asyncio.timeout(20):
            while inside.membership(broker).is_exempt:
                await asyncio.sleep(0.01)
        assert next(left_s, None) is None
