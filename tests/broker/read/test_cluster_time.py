"""Messages expire, and their lifetimes begin, by the time on which brokers agree. A clock days ahead expires nothing,
neither by itself nor where another broker does not answer; one that is behind shortens no lifetime."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.broker.read import cluster_time
from seaweedq.broker.read.cluster_time import ANSWER_S, FRESH_S, ClusterTime
from seaweedq.broker.rpc.messages import Heartbeat
from seaweedq.clock import SystemClock
from seaweedq.errors import Unavailable
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
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


@dataclass
class Record:
    """What the roster knows of a broker."""

    url: str
    starting: bool = False


class World:
    """The broker `me`, and others by name: their times, or None where they do not answer. `brokers` is the roster."""

    def __init__(self, **others: int | None) -> None:
        self.others = others
        self.clock = Clock()
        self.asked = 0
        self.named: dict[str, str] = {}  # who answers in place of whom
        self.brokers = {name: SimpleNamespace(record=Record(name)) for name in ("me", *others)}
        roster = SimpleNamespace(brokers=self.brokers)
        self.time = ClusterTime(self.clock, roster, "me", self)  # type: ignore[arg-type]

    def lifetime_from_us(self) -> int | None:
        """Of a message that comes now."""
        return self.time.lifetime_from_us(self.clock.now)

    async def call(self, url: str, path: str, asked: object, answer: type, timeout_s: float) -> Heartbeat:
        """As Peers."""
        assert (path, timeout_s) == ("greet", ANSWER_S)
        self.asked += 1
        told = self.others[url]
        if told is None:
            raise Unavailable("nobody answers")
        return Heartbeat(self.named.get(url, url), False, told)


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


async def test_others_are_asked_seldom_and_their_times_go_on_also_if_silent() -> None:
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


@pytest.mark.parametrize(
    ("own", "others", "found"),
    [
        (-3, [], -3),  # it is alone
        (-3, [0], 0),
        (0, [-3], 0),
        (3, [0], 3),  # of two the later one: nothing is lost by it
        (0, [3], 3),
        (-3, [0, 0], 0),
        (3, [0, 0], 0),
        (0, [-3, 3], 0),
        (-3, [-2, 0], -2),
        (-3, [0, None], 0),  # one that does not answer does not count
        (-3, [-3, 0, 0], 0),  # of four as of two
        (3, [3, 0, 0], 3),
        (-3, [-3, 0, 0, 0], 0),
        (3, [3, 0, 0, 0], 0),
    ],
)
async def test_lifetimes_count_from_the_middle_clock_of_two_from_the_later(
    own: int, others: list[Any], found: int
) -> None:
    told = {f"b{n}": None if one is None else START_US + one * DAYS_US for n, one in enumerate(others)}
    world = World(**told)
    world.clock.now += own * DAYS_US
    assert await world.time.learn() == START_US + found * DAYS_US
    assert world.lifetime_from_us() == START_US + found * DAYS_US
    world.clock.seconds += 7
    world.clock.now += 7_000_000
    asked = world.asked
    assert world.lifetime_from_us() == await world.time.learn() == START_US + found * DAYS_US + 7_000_000
    assert world.asked == asked  # nobody, where a time is known


async def test_a_clock_that_jumps_moves_no_lifetime() -> None:
    world = World(b0=START_US, b1=START_US)
    await world.time.learn()
    for jump in (-DAYS_US, 2 * DAYS_US):
        world.clock.now += jump
        assert world.lifetime_from_us() == START_US


async def test_what_was_told_late_counts_from_when_it_was_asked() -> None:
    """The answer waited for a loop that was busy: a lifetime may be longer by that, and never shorter."""
    world = World(b0=START_US, b1=START_US)
    asked_s, world.clock.seconds = world.clock.seconds, world.clock.seconds + 5
    world.clock.now += 5_000_000
    for broker in world.others:
        world.time.record(broker, START_US + 1_000_000, asked_s)
    assert world.lifetime_from_us() == START_US + 6_000_000


async def test_while_none_of_the_others_has_told_its_time_lifetimes_wait() -> None:
    world = World(b0=None, b1=None)
    assert world.lifetime_from_us() is None
    with pytest.raises(Unavailable, match="none of the 2 other brokers"):
        await world.time.learn()
    world.others["b1"] = START_US + 7
    world.clock.seconds += 1
    assert await world.time.learn() == START_US + 7


async def test_nobody_waits_for_brokers_that_start_or_tell_no_time() -> None:
    world = World(starts=None, old=0)
    world.brokers["starts"].record.starting = True
    assert world.lifetime_from_us() is None  # for the old one
    assert await world.time.learn() == START_US
    world.brokers["starts"].record.starting = False
    assert world.lifetime_from_us() is None


async def test_an_earlier_life_at_the_same_address_is_no_other_clock() -> None:
    world = World(b=START_US - DAYS_US, former=START_US - DAYS_US)
    world.clock.now -= DAYS_US
    world.named["former"] = "me"
    world.others["b"] = None
    with pytest.raises(Unavailable):
        await world.time.learn()
    world.clock.seconds += 1
    world.others["b"] = START_US
    assert await world.time.learn() == START_US


async def test_what_was_told_stays_where_the_others_have_gone() -> None:
    world = World(b0=START_US, b1=START_US)
    world.clock.now -= DAYS_US
    await world.time.learn()
    del world.brokers["b0"], world.brokers["b1"]
    world.clock.seconds += 60
    assert world.lifetime_from_us() == START_US + 60_000_000
    world.brokers["b2"] = SimpleNamespace(record=Record("b2"))
    world.time.record("b2", START_US + DAYS_US, world.clock.seconds)
    assert world.lifetime_from_us() == START_US + DAYS_US


async def begin(together: InLoop, stack: AsyncExitStack, clocks: Sequence[Shifted]) -> None:
    """Starts a broker with each of these clocks; they know each other when this returns."""
    for clock in clocks:
        together.machine = replace(together.machine, clock=clock)
        stack.push_async_callback((await together.begin()).stop)
    await together.see()


async def tell_times(together: InLoop, past_us: int) -> None:
    """Has all others' clocks told to each broker, and past a time: nothing expires by one that took too long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_time, "FRESH_S", 0)
        for broker in together.brokers:
            while await inside.readables(broker).time.now_us() <= past_us:
                pass


@pytest.mark.brokers
@pytest.mark.parametrize("ahead_us", [-DAYS_US, DAYS_US])
@pytest.mark.parametrize("count", [2, 3])
async def test_what_a_broker_with_a_wrong_clock_takes_is_delivered(tmp_path: Path, count: int, ahead_us: int) -> None:
    """The others found it over at once, and counted it as acked."""
    async with in_loop(tmp_path, 0) as together, AsyncExitStack() as stack:
        clocks = [Shifted() for _ in range(count)]
        clocks[1].ahead_us = ahead_us
        await begin(together, stack, clocks)
        clients = await stack.enter_async_context(everywhere(together))
        await make(together.brokers[0], 3)
        await create(clients[0])
        messages = [{"key": f"k{n}", "value": n, "expires_in_s": 3600} for n in range(12)]
        body = {"messages": messages}
        assert (await clients[1].post(f"{TOPIC}/messages", json=body)).status_code == 200
        lines = "\n".join(json.dumps(one) for one in messages)
        ndjson = {"content-type": "application/x-ndjson"}
        assert (await clients[1].post(f"{TOPIC}/messages", content=lines, headers=ndjson)).status_code == 200
        assert (await clients[1].post(f"{TOPIC}/messages", json=messages[0])).status_code == 200
        found = [message["value"] for _ in range(3) for message in await pull(clients[0])]
        assert sorted(found) == sorted([0, *range(12), *range(12)])
        if count == 3:
            time = inside.readables(together.brokers[1]).time
            await until(lambda: abs(time.lifetime_from_us(clocks[1].now_us()) - clocks[0].now_us()) < 600 * 1_000_000)


@pytest.mark.brokers
async def test_a_segment_map_has_the_time_of_the_cluster(tmp_path: Path) -> None:
    """By the clock of the broker that is asked a reader of files would miss rows that have time to live."""
    async with in_loop(tmp_path, 0) as together, AsyncExitStack() as stack:
        clocks = [Shifted(), Shifted()]
        clocks[1].ahead_us = DAYS_US
        await begin(together, stack, clocks)
        clients = await stack.enter_async_context(everywhere(together))
        await make(together.brokers[0])
        for client in clients:
            now = datetime.fromisoformat((await client.get(f"{TOPIC}/segments")).json()["now"])
            assert abs(now.timestamp() - clocks[0].now_us() / 1e6) < 600


@pytest.mark.brokers
async def test_unless_others_answer_only_messages_with_a_lifetime_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 2, publish_timeout_s=2.5) as together, everywhere(together) as clients:
        await make(together.brokers[0])
        owner = next(n for n, one in enumerate(together.brokers) if list(inside.catalog(one).owned_by(one.id)))
        http, time = clients[owner], inside.readables(together.brokers[owner]).time
        for name, value in (("_is_told", False), ("_told_us", {})):  # as of one that has just started
            monkeypatch.setattr(time, name, value)
        together.silent.add(together.brokers[1 - owner].process.url)
        assert (await http.post(f"{TOPIC}/messages", json={"value": 1})).status_code == 200
        answer = await http.post(f"{TOPIC}/messages", json={"value": 2, "expires_in_s": 60})
        assert (answer.status_code, "expires_in_s" in answer.json()["detail"]) == (503, True)
        asked_s = privates.asked_s(time)
        again = asyncio.create_task(http.post(f"{TOPIC}/messages", json={"value": 3, "expires_in_s": 60}))
        await until(lambda: privates.asked_s(time) > asked_s)
        together.silent.clear()
        assert (await again).status_code == 200
        await create(http)
        assert [message["value"] for message in await pull(http)] == [1, 3]


@pytest.mark.brokers
@pytest.mark.parametrize("count", [2, 3])
async def test_a_dispatcher_three_days_ahead_expires_nothing(tmp_path: Path, count: int) -> None:
    """It acked what it was to deliver, for good."""
    async with in_loop(tmp_path, 0) as together, AsyncExitStack() as stack:
        clocks = [Shifted() for _ in range(count)]
        await begin(together, stack, clocks)
        http = (await stack.enter_async_context(everywhere(together)))[0]
        await make(together.brokers[0])
        await create(http)
        messages = [{"value": n, "expires_in_s": 3600} for n in range(3)]
        assert (await http.post(f"{TOPIC}/messages", json={"messages": messages})).status_code == 200
        gone = [{"value": "gone", "expires_in_s": 0.001}]
        assert (await http.post(f"{TOPIC}/messages", json={"messages": gone})).status_code == 200
        await tell_times(together, past_us=clocks[0].now_us() + 1000)
        assert await pull(http, 1)
        (at,) = [n for n, broker in enumerate(together.brokers) if inside.dispatcher(broker).subscriptions()]
        clocks[at].ahead_us = DAYS_US
        assert [message["value"] for message in await pull(http)] == [1, 2]


@pytest.mark.brokers
@pytest.mark.parametrize("count", [2, 3])
async def test_a_reader_three_days_ahead_passes_over_nothing(tmp_path: Path, count: int) -> None:
    """A fetch at its broker left out what had an hour to live."""
    async with in_loop(tmp_path, 0) as together, AsyncExitStack() as stack:
        clocks = [Shifted() for _ in range(count)]
        await begin(together, stack, clocks)
        clients = await stack.enter_async_context(everywhere(together))
        await make(together.brokers[0])
        messages = [{"value": 0}, {"value": 1, "expires_in_s": 3600}, {"value": "gone", "expires_in_s": 0.001}]
        assert (await clients[0].post(f"{TOPIC}/messages", json={"messages": messages})).status_code == 200
        await tell_times(together, past_us=clocks[0].now_us() + 1000)
        for clock, http in zip(clocks, clients, strict=True):
            clock.ahead_us = DAYS_US
            page = (await http.get(f"{TOPIC}/segments/0/messages?offset=0")).json()
            assert [message["value"] for message in page["messages"]] == [0, 1]
            clock.ahead_us = 0
