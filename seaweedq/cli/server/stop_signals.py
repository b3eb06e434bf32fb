"""Handles SIGTERM and SIGINT of a broker's process, and the deadline for stopping.

One signal handler is installed from before the first await until the end of the process. Separate handlers for start-up
and serving would leave gaps in which a signal is lost. This handler only counts signals, and `wait` also returns for
signals that arrived earlier. Meanwhile the broker may start again, each time with its own event loop (`follow`).

The first signal sets the deadline to `delay_s` plus `stop_s`; the second signal ends the delay, so that only `stop_s`
remains. At the deadline the process ends, whatever hangs. A call that never returns cannot be cancelled, such as a read
of a dead file system, or a thread for which the interpreter waits at exit. Acknowledged messages are in the journal, so
an incomplete stop costs a recovery but loses no message. A thread, started at the beginning, waits on a pipe; `begin`
only writes to the pipe, so a signal handler may call it at any time.

If several brokers run on a machine, each has a pipe as its stdin whose other end only the parent process holds. The
pipe closes when the parent ends. Unlike PR_SET_PDEATHSIG, this does not depend on a thread of the parent, misses no
moment, and works on every Unix."""

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
    """Calls `overdue` in its own thread if a stop is not complete in time."""

    def __init__(self, overdue: Callable[[], None]) -> None:
        self._overdue = overdue
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="stop deadline", daemon=True)
        self._thread.start()

    def begin(self, within_s: float) -> None:
        """Sets the deadline. If there are several, the earliest counts."""
        os.write(self._write, ENTRY.pack(within_s))

    def clear(self) -> None:
        """Removes all deadlines, because the stop is complete and the broker starts again."""
        self.begin(math.inf)

    def close(self) -> None:
        """Ends the watch, because nothing is left that could hang."""
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
    """Logs that the stop is overdue and whether a restart follows, and prints the stacks of all threads. Returns in
    time even if nobody reads the output of this process."""
    words = threading.Thread(target=_say, args=(goes_on,), daemon=True)
    words.start()
    words.join(LAST_WORDS_S)


def _say(goes_on: bool) -> None:
    follows = "the program restarts" if goes_on else "the process ends"
    logger.error(
        "the broker did not stop in time, so %s without waiting any longer; the journal still contains all messages",
        follows,
    )
    faulthandler.dump_traceback(all_threads=True)


def end_with_parent(stdin: int = 0) -> None:
    """Sends SIGTERM to this process once `stdin` ends."""
    threading.Thread(target=_watch, args=(stdin,), name="lifeline", daemon=True).start()


def _watch(stdin: int) -> None:
    with suppress(OSError):
        while os.read(stdin, 4096):
            pass
    logger.warning("the parent process has ended; stopping this broker")
    os.kill(os.getpid(), signal.SIGTERM)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """A signal arrived while the thread was sleeping."""


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
        """Whether a signal has arrived."""
        return self.count > 0

    def handle(self) -> None:
        """Handles the signals from now until the process ends."""
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
        """Delivers signals to this event loop from now on."""
        self._loop, self._changed = loop, Signal()

    async def wait(self, count: int = 1) -> None:
        """Waits until this many signals have arrived since the process started."""
        while self.count < count:
            await self._changed.wait(None)

    def sleep(self, time_s: float) -> None:
        """Sleeps and blocks the thread. Raises Stopped if a signal arrived before or during the sleep."""
        time.sleep(time_s)
        if self.asked:
            raise Stopped

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.ask()
