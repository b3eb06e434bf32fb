"""Stops threads: between two effects, and between two chunks of a body."""

import threading
import time
from typing import Optional

_LOOK_S = 0.05


class Stopped(Exception):
    """The work was cancelled."""


class Stop:
    """A flag that any thread may set once; it is also set with its `parent`."""

    def __init__(self, parent: Optional["Stop"] = None) -> None:
        self._parent, self._set = parent, threading.Event()

    def set(self) -> None:
        """Asks the work to stop."""
        self._set.set()

    def is_set(self) -> bool:
        """Tells whether to stop."""
        return self._set.is_set() or (self._parent is not None and self._parent.is_set())

    def check(self) -> None:
        """Raises Stopped if the flag is set."""
        if self.is_set():
            raise Stopped("stopped")

    def pause(self, seconds: float) -> None:
        """Sleeps, but not beyond a stop."""
        end_s = time.monotonic() + seconds
        while not self.is_set() and (left_s := end_s - time.monotonic()) > 0:
            self._set.wait(min(left_s, _LOOK_S))
