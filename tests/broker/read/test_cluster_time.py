"""Messages expire by the time on which brokers agree: a clock days ahead expires nothing, neither by itself nor where
another broker does not answer."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.broker.read.cluster_time import ANSWER_S, FRESH_S, ClusterTime
from seaweedq.broker.rpc.messages import Greeting
from seaweedq.clock import SystemClock
from seaweedq.errors import Unavailable
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import make
from tests.support.brokers.subscribing import create, everywhere, pull

TOPIC = "/v1/topics/t"
DAYS_US = 3 * 86_400 * 1_000_000
START_US = 1_000 * DAYS_US


class Shifted(SystemClock):
    """A wall clock that is ahead."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


class Clock:
    """Stands still, until it is moved."""

    def __init__(self) -> None:
        self.now = START_US
        self.seconds = 50.0

    def now_us(self) -> int:
        return self.now

    def monotonic_s(self) -> float:
        return self.seconds


class World:
    """The broker `me`, and others by name: their times, or None where they do not answer."""

    def __init__(self, **others: int | None) -> None:
        self.others = others
        self.clock = Clock()
        self.asked = 0
        brokers = {name: SimpleNamespace(record=SimpleNamespace(url=name)) for name in ("me", *others)}
        self.time = ClusterTime(self.clock, SimpleNamespace(brokers=brokers), "me", self)  # type: ignore[arg-type]

    async def call(self, url: str, path: str, asked: object, answer: type, timeout_s: float) -> Greeting:
        """As Peers."""
        assert (path, timeout_s) == ("greet", ANSWER_S)
        self.asked += 1
        told = self.others[url]
        if told is None:
            raise Unavailable("nobody answers")
        return Greeting(url, False, told)


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        (3, [], 3),  # it is alone
        (3, [0], 0),
        (0, [3], 0),
        (3, [0, 0], 0),
        (0, [3, 0], 0),
        (-3, [0, 0], 0),
        (0, [-3, 3], 0),
        (0, [0, None], 0),  # one that does not answer counts as before all others
        (3, [0, None], 0),
    ],
)
async def test_the_middle_clock_counts_and_of_two_the_earlier_one(own: int, others: list[Any], found: int) -> None:
    told = {f"b{n}": None if one is None else START_US + one * DAYS_US for n, one in enumerate(others)}
    world = World(**told)
    world.clock.now += own * DAYS_US
    assert await world.time.now_us() == START_US + found * DAYS_US


async def test_with_one_that_does_not_answer_nothing_of_two_expires() -> None:
    assert await World(b=None).time.now_us() == 0


async def test_an_earlier_version_that_tells_no_time_does_not_count() -> None:
    world = World(old=0, b=START_US - 7)
    assert await world.time.now_us() == START_US - 7


async def test_others_are_asked_seldom_and_their_times_go_on_meanwhile_also_if_they_do_not_answer() -> None:
    world = World(b=START_US)
    world.clock.now += DAYS_US
    for _ in range(3):
        assert await world.time.now_us() == START_US
    assert world.asked == 1
    world.clock.seconds += FRESH_S
    assert await world.time.now_us() == START_US + FRESH_S * 1e6
    world.others["b"] = None
    world.clock.seconds += 1
    assert await world.time.now_us() == START_US + (FRESH_S + 1) * 1e6
    assert world.asked == 2


@pytest.mark.parametrize("count", [2, 3])
async def test_a_dispatcher_three_days_ahead_expires_nothing(tmp_path: Path, count: int) -> None:
    """It acked what it was to deliver, for good."""
    async with in_loop(tmp_path, 0) as together, AsyncExitStack() as stack:
        clocks = [Shifted() for _ in range(count)]
        for clock in clocks:
            together.machine = replace(together.machine, clock=clock)
            stack.push_async_callback((await together.begin()).stop)
        await together.see()
        http = (await stack.enter_async_context(everywhere(together)))[0]
        await make(together.brokers[0])
        await create(http)
        messages = [{"value": n, "expires_in_s": 3600} for n in range(3)]
        assert (await http.post(f"{TOPIC}/messages", json={"messages": messages})).status_code == 200
        gone = [{"value": "gone", "expires_in_s": 0.001}]
        assert (await http.post(f"{TOPIC}/messages", json={"messages": gone})).status_code == 200
        assert await pull(http, 1)
        (at,) = [
            n for n, broker in enumerate(together.brokers) if broker.serving.subscribing.dispatcher.subscriptions()
        ]
        clocks[at].ahead_us = DAYS_US
        assert [message["value"] for message in await pull(http)] == [1, 2]
