"""Fail points: named places between two steps of a protocol, where a test can kill or stop the process.

`SEAWEEDQ_FAIL_AT=flush.append:3` kills it with SIGKILL when that place is reached for the third time;
`flush.append:3:stop` stops it there with SIGSTOP, and `flush.append:3:term` asks it to end, with SIGTERM. Without the
variable a place costs a look-up and a comparison.

A test with several brokers in one process gives each its own fail points with `using`: tasks inherit them.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Reach = Callable[[str], None]
_SIGNALS = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}


class ProcessFailPoint:
    """The fail point of a process, as `place:count:action` says it; an empty text is none."""

    def __init__(self, text: str) -> None:
        self._place, count, action, *_ = [*text.split(":"), "", ""]
        self._left = int(count or 1)
        self._signal = _SIGNALS[action]

    def __call__(self, place: str) -> None:
        """Kills, stops or ends the process if this is the place and its turn."""
        if place == self._place:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._signal)


_of_process = ProcessFailPoint(os.environ.get("SEAWEEDQ_FAIL_AT", ""))
_reach: ContextVar[Reach] = ContextVar("reach", default=_of_process)


def reach(place: str) -> None:
    """Tells the fail points of this context that the place was reached."""
    _reach.get()(place)


@contextmanager
def using(points: Reach) -> Iterator[None]:
    """Lets these fail points stand for those of the process, in this context and the tasks that begin in it."""
    before = _reach.set(points)
    try:
        yield
    finally:
        _reach.reset(before)
