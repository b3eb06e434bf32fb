"""Brokers that dispatch, or own segments, die or leave: what is acked does not come again, all else comes."""

import signal
import threading
import time

import pytest

from tests.support.processes.together import BROKERS, LEASE_S, NAME, TOPIC, Together, until
from tests.support.tiers import later

pytestmark = pytest.mark.process

WITHIN_S = LEASE_S + 26


def others(broker: int) -> list[int]:
    return [n for n in range(BROKERS) if n != broker]


def drain(together: Together, brokers: list[int], within_s: float) -> None:
    """Pull and ack until everything is acked."""
    end_s = time.monotonic() + within_s
    step = 0
    while len(together.acked) < together.sent:
        assert time.monotonic() < end_s, f"{len(together.acked)} of {together.sent} are acked"
        step += 1
        together.ack(brokers[step % len(brokers)], together.pull(brokers[(step + 1) % len(brokers)], wait_s=1))


def test_a_dispatcher_is_killed(together: Together) -> None:
    together.subscribe(0)
    together.publish(1, 90)
    together.ack(1, together.pull(0, max_messages=40))
    held = together.pull(2, max_messages=20)
    acked = set(together.acked)
    dispatcher = together.dispatcher()
    assert dispatcher is not None
    together.signal(dispatcher)
    drain(together, others(dispatcher), WITHIN_S)
    assert all(together.delivered[value] == 1 for value in acked)
    assert {m["value"] for m in held if together.delivered[m["value"]] < 2} == set()
    together.publish(others(dispatcher)[0], 30)
    drain(together, others(dispatcher), WITHIN_S)


@pytest.mark.long
def test_an_owner_that_does_not_dispatch_is_killed(together: Together) -> None:
    together.subscribe(0)
    dispatcher = together.settled()
    together.publish(dispatcher, 90)
    together.ack(dispatcher, together.pull(dispatcher, max_messages=20))
    together.signal(others(dispatcher)[0])
    living = [dispatcher, others(dispatcher)[1]]
    drain(together, living, WITHIN_S)
    assert together.delivered == dict.fromkeys(range(90), 1)


@pytest.mark.long
def test_a_pull_says_that_nothing_is_there_only_if_all_owners_were_asked(together: Together) -> None:
    together.subscribe(0)
    dispatcher = together.settled()
    owner = others(dispatcher)[0]
    theirs = [
        s["id"] for s in together.get(0, f"{TOPIC}/segments")["segments"] if s["owner_url"] == together.urls[owner]
    ]
    together.publish(dispatcher, 60)
    with together.stopped(owner):  # its journal can not be had as long as it is not dead
        while (answer := together.ask("POST", dispatcher, f"{NAME}/pull", json={})).status_code == 200:
            found = answer.json()["messages"]
            assert found, "nothing, and not all owners were asked"
            together.ack(dispatcher, found)
    assert (answer.status_code, answer.json()["segments"]) == (503, theirs)
    assert answer.headers["retry-after"]
    drain(together, [dispatcher], 30)


@pytest.mark.long
@pytest.mark.parametrize("through", ["dispatcher", later("another")])
def test_a_dispatcher_leaves_under_pulls_without_an_error_or_a_repeat(together: Together, through: str) -> None:
    together.subscribe(0)
    together.publish(0, 30)
    dispatcher = together.settled()
    held = together.pull(dispatcher, max_messages=10)
    threading.Timer(0.5, together.signal, [dispatcher, signal.SIGTERM]).start()
    pulling = dispatcher if through == "dispatcher" else others(dispatcher)[0]
    end_s = time.monotonic() + 1
    while time.monotonic() < end_s and together.dispatcher() == dispatcher:
        held += together.pull(pulling, wait_s=0.2, max_messages=1)
    until(lambda: together.dispatcher() != dispatcher)
    assert together.ack(others(dispatcher)[0], held) == []
    drain(together, others(dispatcher), WITHIN_S)
    assert not {message["value"] for message in held if together.delivered[message["value"]] > 1}


@pytest.mark.long
def test_an_heir_that_comes_back_gets_its_subscription_and_nothing_twice(together: Together) -> None:
    together.subscribe(0)
    together.publish(0, 60)
    heir = together.settled()
    together.signal(heir)
    drain(together, others(heir), WITHIN_S)
    together.publish(others(heir)[0], 30)
    held = together.pull(others(heir)[0], max_messages=1000)
    together.wait_ready()
    together.settled()
    assert together.ack(others(heir)[0], held) == []
    assert not {message["value"] for message in held if together.delivered[message["value"]] > 1}
