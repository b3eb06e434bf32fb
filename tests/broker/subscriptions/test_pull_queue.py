"""The pulls that wait: an event wakes as many as it can feed, the longest waiting first, and none is forgotten. A
pull does not sleep over messages of a segment that it had read already. Reports of other brokers count for a while.
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.broker.subscriptions.leases import Leases
from seaweedq.broker.subscriptions.pull_queue import ALL, KEPT_S, PullQueue, RemotePulls
from seaweedq.broker.subscriptions.pull_rounds import Pull, PullResult, RoundResult
from seaweedq.broker.subscriptions.pulling import Pulling
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import SystemClock
from seaweedq.concurrency.futures import Signal
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, offsets, publish, running, subscribe
from tests.support.brokers.in_process_cluster import until

WAITING = 50


class Stock:
    """Some messages, and pulls that wait for one each."""

    def __init__(self) -> None:
        self.signal, self.queue = Signal(), PullQueue(lambda: None)
        self.left = 0
        self.looks = 0
        self.fed: list[int] = []

    def put(self, count: int) -> None:
        self.left += count
        self.signal.wake()

    async def take(self, number: int, lock: asyncio.Lock) -> None:
        with self.queue.join(self.signal, ALL, None) as place:
            while not place.fed:
                seen = place.count
                async with lock:
                    await asyncio.sleep(0)
                    self.looks += 1
                    if self.left:
                        self.left -= 1
                        place.fed = True
                        self.fed.append(number)
                if not place.fed and place.count == seen:
                    await place.wait(None)


async def settle() -> None:
    for _ in range(WAITING * 10):
        await asyncio.sleep(0)


@pytest.fixture
def stock() -> Stock:
    return Stock()


async def test_an_event_feeds_the_longest_waiting_and_wakes_one_more(stock: Stock) -> None:
    lock = asyncio.Lock()
    tasks = [asyncio.create_task(stock.take(n, lock)) for n in range(WAITING)]
    await settle()
    stock.looks = 0
    stock.put(3)
    await settle()
    assert (stock.fed, stock.looks) == ([0, 1, 2], 4)
    for _ in range(5):
        stock.put(1)
    await settle()
    assert stock.fed == list(range(8))
    assert stock.looks <= 4 + 5 + 5
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not len(stock.queue)
    stock.put(1)
    assert stock.queue.count < 20, "an empty room hears nothing"


@pytest.mark.parametrize("after", range(6))
async def test_one_that_goes_after_it_was_woken_hands_its_turn_on(stock: Stock, after: int) -> None:
    lock = asyncio.Lock()
    tasks = [asyncio.create_task(stock.take(n, lock)) for n in range(WAITING)]
    await settle()
    stock.put(1)
    for _ in range(after):
        await asyncio.sleep(0)
    tasks[0].cancel()
    await settle()
    assert len(stock.fed) == 1
    assert not stock.left
    stock.put(WAITING)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(stock.fed)[-1] == WAITING - 1


async def test_those_who_find_nothing_stay_where_they_were(stock: Stock) -> None:
    lock = asyncio.Lock()
    tasks = [asyncio.create_task(stock.take(n, lock)) for n in range(3)]
    await settle()
    stock.signal.wake()
    await settle()
    stock.put(3)
    await asyncio.gather(*tasks)
    assert stock.fed == [0, 1, 2]


async def test_who_waits_under_a_lease_that_another_one_got_looks_too() -> None:
    queue, signal, woken = PullQueue(lambda: None), Signal(), []

    async def wait(lease: str) -> None:
        with queue.join(signal, ALL, lease) as place:
            await place.wait(None)
            woken.append(lease)

    tasks = [asyncio.create_task(wait(name)) for name in ("a", "b", "a")]
    await settle()
    queue.rearm("a")
    await settle()
    assert woken == ["a", "a"]
    queue.wake_all()
    await asyncio.gather(*tasks)


class Counted:
    """Counts the looks of a dispatcher."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        look = Pulling.round

        async def counted(pulling: Pulling, topic: Topic, name: str, wanted: Pull) -> RoundResult:
            self.looks += 1
            return await look(pulling, topic, name, wanted)

        monkeypatch.setattr(Pulling, "round", counted)


async def test_a_publish_wakes_no_more_pulls_than_it_feeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each publish woke all that waited: 5,000 of them took 0.2 to 1.4 s."""
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        counted = Counted(monkeypatch)
        pulls = [asyncio.create_task(dispatcher.pull(topic, "s", Pull(1, 30))) for _ in range(WAITING)]
        await until(lambda: counted.looks >= WAITING)
        await settle()
        for n in range(5):
            counted.looks = 0
            await publish(broker, topic, "1")
            await until(lambda done=n + 1: sum(one.done() for one in pulls) == done)
            await settle()
            assert counted.looks <= 6, "not all of those who wait"
        assert [offsets((await one).messages) for one in pulls[:5]] == [[0], [1], [2], [3], [4]]
        for one in pulls:
            one.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)


async def test_pulls_that_wait_hear_of_a_subscription_that_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        pulls = [asyncio.create_task(dispatcher.pull(topic, "s", Pull(1, 30))) for _ in range(3)]
        await settle()
        dispatcher.forget(topic, "s")  # and opened again, with another room
        await settle()
        await publish(broker, topic, "1", "2", "3")
        async with asyncio.timeout(15):
            assert sorted(offsets([m for one in pulls for m in (await one).messages])) == [0, 1, 2]


def test_the_last_report_of_each_broker_counts_for_a_while() -> None:
    elsewhere = RemotePulls()
    elsewhere.update("a", 3, ["x", "y"], 0.0)
    elsewhere.update("b", 2, ["y", ""], 1.0)
    assert (elsewhere.pulls(1.0), elsewhere.consumers(1.0)) == (5, {"x", "y", ""})
    elsewhere.update("a", 1, ["z"], 2.0)
    assert (elsewhere.pulls(2.0), elsewhere.consumers(2.0)) == (3, {"z", "y", ""})
    assert (elsewhere.pulls(1.0 + KEPT_S), elsewhere.consumers(1.0 + KEPT_S)) == (1, {"z"}), "b has died"
    elsewhere.update("a", 0, [], 3.0)
    assert (elsewhere.pulls(3.0), elsewhere.consumers(3.0)) == (0, set())


class ATopic:
    def __init__(self) -> None:
        self.signal = Signal()


class Looking(Pulling):
    """Finds nothing at first; a message comes while it looks."""

    def __init__(self) -> None:
        none: Any = None
        view: Any = SimpleNamespace(catalog=none, clock=SystemClock(), traces=None)
        opened: Any = SimpleNamespace(open=lambda topic, name: self.open(topic, name))
        readables: Any = SimpleNamespace(refresh=self._refresh)
        super().__init__(view, opened, readables, 1)
        self.looks = 0

    async def open(self, topic: Any, name: str) -> Any:
        queue = PullQueue(lambda: None)
        waiting = lambda consumer, lease: queue.join(topic.signal, ALL, lease)  # noqa: E731
        return SimpleNamespace(topic=topic, name=name, closed=None, queue=queue, leases=Leases(), waiting=waiting)

    async def _refresh(self, topic: Any, numbers: Any) -> set[int]:
        return set()

    async def round(self, topic: Any, name: str, wanted: Pull) -> Any:
        self.looks += 1
        if self.looks > 1:
            return RoundResult(PullResult("l", ["a message"]))  # type: ignore[list-item]
        topic.signal.wake()
        await asyncio.sleep(0)
        return RoundResult(PullResult())


async def test_what_comes_during_the_look_is_looked_for() -> None:
    topic: Any = ATopic()
    async with asyncio.timeout(15):
        assert (await Looking().pull(topic, "s", Pull(1, 60))).messages == ["a message"]


class Unheard(Looking):
    """Asks an owner that does not answer, and nothing comes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.has_come = False
        self.ended = 0
        self.opened: Any = None

    async def open(self, topic: Any, name: str) -> Any:
        self.opened = self.opened or await super().open(topic, name)
        return self.opened

    async def _refresh(self, topic: Any, numbers: Any) -> set[int]:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1
        return set()

    async def round(self, topic: Any, name: str, wanted: Pull) -> Any:
        self.looks += 1
        return RoundResult(PullResult("l", ["a message"])) if self.has_come else RoundResult(PullResult(), missing={1})  # type: ignore[list-item]


async def test_what_comes_while_an_owner_does_not_answer_is_looked_for() -> None:
    """Pulls that waited got nothing of any segment until the call to an owner that was silent ended, after 5 to 10 s;
    then the first of them alone looked."""
    topic: Any = ATopic()
    looking = Unheard()
    async with asyncio.timeout(15):
        pulls = [asyncio.create_task(looking.pull(topic, "s", Pull(1, 60))) for _ in range(3)]
        await looking.asked.wait()
        topic.signal.wake()
        for _ in range(100):
            await asyncio.sleep(0)
        assert looking.looks == 4, "the first one looks once more, and waits"
        looking.has_come = True
        topic.signal.wake()
        assert [(await one).messages for one in pulls] == [["a message"]] * 3
    await asyncio.sleep(0)
    assert (looking.looks, looking.ended) == (7, 4), "nothing is left"
