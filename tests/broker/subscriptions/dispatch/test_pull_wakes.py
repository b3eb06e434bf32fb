"""A pull that looks through segments does not sleep over what came to one that it had looked at already."""

import asyncio
from types import SimpleNamespace
from typing import Any

from seaweedq.broker.subscriptions.leases import Leases
from seaweedq.broker.subscriptions.pull_queue import ALL, PullQueue
from seaweedq.broker.subscriptions.pulling import Pull, Pulling, PullResult, RoundResult
from seaweedq.clock import SystemClock
from seaweedq.concurrency.signal import Signal


class ATopic:
    def __init__(self) -> None:
        self.signal = Signal()


class Looking(Pulling):
    """Finds nothing at first; a message comes while it looks."""

    def __init__(self) -> None:
        none: Any = None
        view: Any = SimpleNamespace(catalog=none, clock=SystemClock())
        opened: Any = SimpleNamespace(open=lambda topic, name: self.open(topic, name))
        readables: Any = SimpleNamespace(refresh=self._refresh)
        super().__init__(view, opened, none, readables, 1)
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
    async with asyncio.timeout(5):
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
    async with asyncio.timeout(5):
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
