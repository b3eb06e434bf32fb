"""The deadline of a stop: the process ends then, whatever hangs.

A call that never returns cannot be cancelled: a read of a dead file system, a thread that the interpreter waits for at
its exit. What is acknowledged is in the journal, so an end without the rest of a stop costs a recovery, and no message.

A thread waits at a pipe. It is there from the beginning, and `begin` only writes to the pipe, so that the handler of a
signal may call it at any place.
"""

import faulthandler
import logging
import math
import os
import select
import struct
import threading
import time
from collections.abc import Callable

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


def tell_what_hangs(goes_on: bool = False) -> None:
    """Logs that the stop is overdue, and whether a new start follows; prints the stacks of all threads. Returns in time
    also if nobody reads what this process prints."""
    words = threading.Thread(target=_say, args=(goes_on,), daemon=True)
    words.start()
    words.join(LAST_WORDS_S)


def _say(goes_on: bool) -> None:
    follows = "the program begins anew" if goes_on else "the process ends"
    logger.error("the stop is not complete in time: %s without the rest; the journal keeps all messages", follows)
    faulthandler.dump_traceback(all_threads=True)
