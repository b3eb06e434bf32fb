"""SIGTERM and SIGINT of a broker's process, and the deadline of its stop.

One handler is there from before the first await to the last step of the process. A handler that belongs to a phase of a
life (a start, the serving) leaves gaps between two phases, in which a signal is lost. So this one only counts, and
`wait` also returns for signals that came before it. Lives begin and end meanwhile, each with a loop of its own
(`follow`).

The first signal begins the deadline: `delay_s` and `stop_s`, and `stop_s` alone from the second signal on, as that ends
the delay. The process ends at the deadline, whatever hangs. A call that never returns cannot be cancelled: a read of a
dead file system, a thread that the interpreter waits for at its exit. What is acknowledged is in the journal, so an end
without the rest of a stop costs a recovery, and no message. A thread waits at a pipe. It is there from the beginning,
and `begin` only writes to the pipe, so that the handler of a signal may call it at any place.

A broker of several is tied to its parent by a pipe at its stdin, of which only the parent holds the other end, as long
as it lives. Unlike PR_SET_PDEATHSIG this does not depend on a thread of the parent, leaves no moment in which the
parent's end goes unnoticed, and works on every Unix.
"""

import asyncio
import faulthandler
import logging
import math
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from seaweedq.concurrency.futures import Signal

logger = logging.getLogger("seaweedq")
ENTRY = struct.Struct("d")
LAST_WORDS_S = 1.0


class StopDeadline:
    """Calls `overdue` in a thread of its own if a stop that has begun is not complete in time."""

    def __init__(self, overdue: Callable[[], None]) -> None:
        self._overdue = overdue
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="stop deadline", daemon=True)
        self._thread.start()

    def begin(self, within_s: float) -> None:
        """Sets the deadline; of several the earliest counts."""
        os.write(self._write, ENTRY.pack(within_s))

    def clear(self) -> None:
        """Takes back all deadlines: the stop is complete, and another life follows."""
        self.begin(math.inf)

    def close(self) -> None:
        """Ends the watch: nothing is left that could hang."""
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def _watch(self) -> None:
        end_s = math.inf
        while True:
            left_s = None if math.isinf(end_s) else max(0.0, end_s - time.monotonic())
            if not select.select([self._read], [], [], left_s)[0]:
                self._overdue()
                return
            entry = os.read(self._read, ENTRY.size)
            if not entry:
                return
            (within_s,) = ENTRY.unpack(entry)
            end_s = math.inf if math.isinf(within_s) else min(end_s, time.monotonic() + within_s)


def log_hanging(goes_on: bool = False) -> None:
    """Logs that the stop is overdue, and whether a new start follows; prints the stacks of all threads. Returns in time
    also if nobody reads what this process prints."""
    words = threading.Thread(target=_say, args=(goes_on,), daemon=True)
    words.start()
    words.join(LAST_WORDS_S)


def _say(goes_on: bool) -> None:
    follows = "the program restarts" if goes_on else "the process ends"
    logger.error("the stop is not complete in time: %s without finishing it; the journal keeps all messages", follows)
    faulthandler.dump_traceback(all_threads=True)


def end_with_parent(stdin: int = 0) -> None:
    """Sends SIGTERM to this process once `stdin` ends."""
    threading.Thread(target=_watch, args=(stdin,), name="lifeline", daemon=True).start()


def _watch(stdin: int) -> None:
    with suppress(OSError):
        while os.read(stdin, 4096):
            pass
    logger.warning("the parent process has ended: stopping")
    os.kill(os.getpid(), signal.SIGTERM)


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
