"""SIGTERM and SIGINT of a broker's process: one handler, from before the first await to the last step of the process.

A handler that belongs to a phase of a life (a start, the serving) leaves gaps between two phases, in which a signal is
lost. So this one only counts, and `wait` also returns for signals that came before it. Lives begin and end meanwhile,
each with a loop of its own (`follow`).

A stop has a deadline, which the first signal begins (`stop_deadline`): `delay_s` and `stop_s`, and `stop_s` alone
from the second signal on, as that ends the delay.
"""

import asyncio
import signal
import time
from contextlib import suppress
from types import FrameType

from seaweedq.cli.server.process.stop_deadline import StopDeadline
from seaweedq.concurrency.signal import Signal

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """A signal came while the thread slept."""


class StopSignals:
    """Counts the signals that ask this process to stop."""

    def __init__(self, deadline: StopDeadline, delay_s: float, stop_s: float) -> None:
        self.count = 0
        self._deadline = deadline
        self._delay_s, self._stop_s = delay_s, stop_s
        self._changed = Signal()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.count > 0

    def handle(self) -> None:
        """Handles the signals from now to the end of the process."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def ask(self) -> None:
        """Counts a signal. Takes no lock and logs nothing, as a handler must not."""
        self.count += 1
        self._deadline.begin(self._stop_s + (self._delay_s if self.count == 1 else 0))
        if self._loop:
            with suppress(RuntimeError):  # that life is over
                self._loop.call_soon_threadsafe(self._changed.wake)

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wakes who waits in this loop from now on; those of an earlier one are gone."""
        self._loop, self._changed = loop, Signal()

    async def wait(self, count: int = 1) -> None:
        """Waits until as many signals have come, since the process began."""
        while self.count < count:
            await self._changed.wait(None)

    def sleep(self, time_s: float) -> None:
        """Sleeps, and blocks the thread. Raises Stopped if a signal has come, before or meanwhile."""
        time.sleep(time_s)
        if self.asked:
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.ask()
