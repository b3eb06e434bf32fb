"""The pulls of a subscription that wait until there is something for them: at its dispatcher, and at other brokers.

An *event* is whatever may make messages available: rows, acks, nacks, deadlines, segments, settings. It wakes as many
pulls as it can feed, the longest waiting first. A *lane* holds the pulls that may get the same messages: all of the
subscription, in `ordered` those of one consumer. At most one pull of a lane has the *turn*: it looks.

- A pull that got messages hands the turn to the one that waits longest, since there may be more for that one. So does
  one that goes for another reason: it was cancelled, its time was over, it got an error.
- A pull that found nothing ends the turn, unless an event came since its look began: then it looks again.
- Any pull looks before it waits, and again if an event came meanwhile, with or without a turn.
- A pull that asks another broker for ends waits here meanwhile (`beside`): that one may be silent for seconds.

So after each event some pull looks, and no wake-up is lost. In `ordered` an event gives a turn to each consumer that
has a share of the segments; if none of these waits, to the first lane, whose look may open further segments. A timer
is an event: it is set for the next deadline. If the subscription goes to another broker all wake, and are told.

Pulls that queue at other brokers (subscribing) are no pulls here, so the dispatcher would count none of them. Those
brokers tell how many there are. That is soft: it is replaced by the next report of the same broker, and forgotten after
KEPT_S without one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from seaweedq.concurrency.futures import Signal

ALL = 0  # the lane of a subscription whose messages are for any consumer
T = TypeVar("T")
Shares = Callable[[], Collection[int] | None]
KEPT_S = 5.0


class Waiter:
    """One pull in a queue. It is a signal to that pull: `count` rises with each event, and `wait` returns
    when it is the pull's turn. `fed` says that it got messages."""

    __slots__ = ("_lane", "_queue", "_woken", "fed")

    def __init__(self, queue: "PullQueue", lane: int) -> None:
        self.fed = False
        self._queue = queue
        self._lane = lane
        self._woken: asyncio.Future[None] | None = None

    @property
    def count(self) -> int:
        """How many events there were in the queue."""
        return self._queue.count

    async def wait(self, timeout_s: float | None) -> None:
        """Ends the turn, and returns with the next one, or after `timeout_s` seconds. The caller has looked, and no
        event came since."""
        loop = asyncio.get_running_loop()
        is_first = self._woken is None
        woken = self._woken = loop.create_future()
        self._queue.park(self, is_first)
        timer = None if timeout_s is None else loop.call_later(timeout_s, self.wake)
        try:
            await woken
        finally:
            if timer:
                timer.cancel()
            self._queue.unpark(self)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T | None:
        """As `wait`, while `work` runs; returns its result. Returns None if the turn comes before: then `work` is
        cancelled."""

        def ended(_: asyncio.Task[T]) -> None:
            self.wake()

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        try:
            await self.wait(None)
        finally:
            task.remove_done_callback(ended)  # it must not end the next wait
            task.cancel()
        return task.result() if task.done() else None

    def wake(self) -> None:
        """Ends the wait."""
        if self._woken and not self._woken.done():
            self._woken.set_result(None)


class PullQueue:
    """The waiting pulls of a subscription. `shares` gives the consumers that have segments in `ordered`, else None."""

    def __init__(self, shares: Shares) -> None:
        self.count = 0
        self._shares = shares
        self._waiters = 0
        self._asleep: dict[int, OrderedDict[Waiter, None]] = {}  # by lane, the longest waiting first
        self._turns: dict[int, Waiter] = {}  # by lane
        self._named: dict[str, list[Waiter]] = {}
        self._feeding: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._waiters

    @contextmanager
    def join(self, signal: Signal, lane: int, name: str | None) -> Iterator[Waiter]:
        """Lets a pull wait in the block. As long as there are any, each wake of `signal` is an event."""
        waiter = Waiter(self, lane)
        if not self._waiters:
            signal.listen(self.event)
        self._waiters += 1
        if name:
            self._named.setdefault(name, []).append(waiter)
        try:
            yield waiter
        finally:
            self._waiters -= 1
            if name:
                self._named[name].remove(waiter)
                if not self._named[name]:
                    del self._named[name]
            if self._turns.get(lane) is waiter:
                del self._turns[lane]
                if lane in self._asleep:
                    self._give(lane)
                elif not waiter.fed and self._asleep and not self._feeding:  # nobody has looked in its stead
                    self._feeding = asyncio.get_running_loop().call_soon(self._feed)
            if not self._waiters:
                signal.unlisten(self.event)
                if self._timer:
                    self._timer.cancel()
                    self._timer = None

    def event(self) -> None:
        """Gives turns to the pulls that may be fed now."""
        self.count += 1
        if self._asleep and not self._feeding:
            self._feeding = asyncio.get_running_loop().call_soon(self._feed)

    def wake_all(self) -> None:
        """Lets everybody look."""
        self.count += 1
        for lane in list(self._asleep.values()):
            for waiter in lane:
                waiter.wake()

    def rearm(self, name: str) -> None:
        """Lets the pulls look that wait under a name: that of a lease that has messages now, so that they get the same
        ones, or that of a stream's connection that has left."""
        for waiter in self._named.get(name, ()):
            waiter.wake()

    def arm(self, after_s: float) -> None:
        """Makes an event after so many seconds, unless there is one before."""
        if not self._waiters:
            return
        loop = asyncio.get_running_loop()
        if self._timer:
            if self._timer.when() <= loop.time() + after_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(after_s, self._ring)

    # Of waiters

    def park(self, waiter: Waiter, is_first: bool) -> None:
        """Lets a pull wait: behind all others the first time, else where it was."""
        if self._turns.get(waiter._lane) is waiter:
            del self._turns[waiter._lane]
        lane = self._asleep.setdefault(waiter._lane, OrderedDict())
        lane[waiter] = None
        if not is_first:
            lane.move_to_end(waiter, last=False)

    def unpark(self, waiter: Waiter) -> None:
        """Takes a pull from those that wait."""
        lane = self._asleep.get(waiter._lane)
        if lane is not None:
            lane.pop(waiter, None)
            if not lane:
                del self._asleep[waiter._lane]

    # Turns

    def _feed(self) -> None:
        self._feeding = None
        if len(self._asleep) == 1:  # whatever the shares are, it is the lane of the look
            self._give(next(iter(self._asleep)))
            return
        shares = self._shares()
        lanes = [ALL] if shares is None else [lane for lane in shares if lane in self._asleep]
        for lane in lanes or list(self._asleep)[:1]:
            self._give(lane)

    def _give(self, lane: int) -> None:
        """Gives the turn to the one that waits longest; the pull that has it looks again, since `count` has risen."""
        if lane in self._turns or lane not in self._asleep:
            return
        waiter = next(iter(self._asleep[lane]))
        self._turns[lane] = waiter
        self.unpark(waiter)
        waiter.wake()

    def _ring(self) -> None:
        self._timer = None
        self.event()


class _Report(NamedTuple):
    pulls: int
    consumers: frozenset[str]
    until_s: float


class RemotePulls:
    """How many pulls queue at other brokers, and for which consumers; "" stands for those without a name."""

    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}

    def update(self, broker: str, pulls: int, consumers: Collection[str], now_s: float) -> None:
        """Takes in the report of a broker."""
        if pulls:
            self._reports[broker] = _Report(pulls, frozenset(consumers), now_s + KEPT_S)
        else:
            self._reports.pop(broker, None)

    def pulls(self, now_s: float) -> int:
        """Returns how many pulls queue at other brokers."""
        return sum(one.pulls for one in self._current(now_s))

    def consumers(self, now_s: float) -> set[str]:
        """Returns the names of their consumers."""
        return set[str]().union(*(one.consumers for one in self._current(now_s)))

    def _current(self, now_s: float) -> Collection[_Report]:
        self._reports = {broker: one for broker, one in self._reports.items() if now_s < one.until_s}
        return self._reports.values()
