"""How threads are told to stop: between two effects, and between two chunks of a body."""

import threading
import time
from typing import Optional

_LOOK_S = 0.05


class Stopped(Exception):
    """Whoever asked for it wants it no more."""


class Stop:
    """Set once, by any thread; one that has a `parent` is set with it."""

    def __init__(self, parent: Optional["Stop"] = None) -> None:
        self._parent, self._set = parent, threading.Event()

    def set(self) -> None:
        """Ask for it."""
        self._set.set()

    def is_set(self) -> bool:
        """Whether to stop."""
        return self._set.is_set() or (self._parent is not None and self._parent.is_set())

    def check(self) -> None:
        """Raises Stopped."""
        if self.is_set():
            raise Stopped("stopped")

    def pause(self, seconds: float) -> None:
        """Sleep, but not over a stop."""
        end_s = time.monotonic() + seconds
        while not self.is_set() and (left_s := end_s - time.monotonic()) > 0:
            self._set.wait(min(left_s, _LOOK_S))
