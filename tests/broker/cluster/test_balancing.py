"""A policy that is changed over HTTP holds at once, at the leader and at the owners, and nothing is restarted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from seaweedq.balancer.scaling import decide
from seaweedq.broker.broker import Broker
from tests.support.brokers.changing import TOPIC, at, records
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.looks import LEFT, RIGHT, Hand, in_hand, made

pytestmark = pytest.mark.brokers

COOL = {"cool_down_s": 1}


@pytest.fixture
async def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hand]:
    monkeypatch.setattr("seaweedq.broker.cluster.leadership.BALANCE_S", 0.05)
    monkeypatch.setattr("seaweedq.broker.cluster.leader.ROUND_S", 0.05)
    async with in_hand(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the leader decided, a list of plans for each round."""
    found: list[Any] = []

    def noted(*asked: Any) -> Any:
        found.append(decide(*asked))
        return found[-1]

    monkeypatch.setattr("seaweedq.broker.cluster.balancing.decide", noted)
    return found


async def change(hand: Hand, broker: Broker, **scaling: Any) -> Any:
    async with at(hand.together, broker) as http:
        return (await http.patch(TOPIC, json={"scaling": scaling})).raise_for_status().json()["scaling"]


async def flood(hand: Hand) -> None:
    """10 seconds of 1,000 messages a second, of 100 keys."""
    for _ in range(10):
        await hand.publish(hand.together.brokers[0], *LEFT[:50], *RIGHT[:50], each=10)
        hand.look(1)


async def rounds(hand: Hand, decided: list[Any]) -> None:
    """Some rounds of decisions on what has been observed by now."""
    goal = len(decided) + 5
    await until(lambda: len(decided) >= goal)


def opened(broker: Broker) -> int:
    return sum(record.state == "open" for record in records(broker).values())


async def test_targets_and_bounds(hand: Hand, decided: list[Any]) -> None:
    one, two = hand.together.brokers
    await made(hand.together, 1, **COOL)
    hand.look(1)
    await flood(hand)
    await rounds(hand, decided)
    assert opened(one) == 1
    assert (await change(hand, two, target_messages_per_s=10, max_segments=3))["max_segments"] == 3
    await until(lambda: opened(one) == opened(two) == 3)
    hand.look(1)
    await flood(hand)
    await rounds(hand, decided)
    assert opened(one) == 3
    await change(hand, two, max_segments=None)
    await until(lambda: opened(one) > 3)


async def test_off_and_on_again(hand: Hand, decided: list[Any]) -> None:
    one, two = hand.together.brokers
    await made(hand.together, 1, target_messages_per_s=10, enabled=False, **COOL)
    hand.look(1)
    await flood(hand)
    await rounds(hand, decided)
    assert opened(one) == 1
    await change(hand, two, enabled=True, max_segments=2)
    await until(lambda: opened(one) == 2)


async def test_merges(hand: Hand, decided: list[Any]) -> None:
    _, two = hand.together.brokers
    await made(hand.together, 3)
    hand.look(1)
    hand.look(500)
    await rounds(hand, decided)
    assert opened(two) == 3
    await change(hand, two, min_segments=2, **COOL)
    await until(lambda: opened(two) == 2)
    hand.look(1)
    hand.look(500)
    await rounds(hand, decided)
    assert opened(two) == 2
    await change(hand, two, min_segments=1)
    await until(lambda: opened(two) == 1)
