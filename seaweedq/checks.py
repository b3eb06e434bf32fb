"""Checks at the steps of a protocol: invariants, which must hold there, and fail points, where a test breaks it off.

An invariant is checked where a write would break it for good. A failed check is a defect of the program. The write is
refused, nothing acknowledged is lost, the log names the facts. The error is one of the tree: loops log it and go on,
calls between brokers carry it, and requests are told. A violation that nobody can go on after (a commit that is
durable, and does not fit its segment) ends the life of the broker.

A fail point is a named place between two steps, where a test can kill or stop the process.
`SEAWEEDQ_FAIL_AT=flush.append:3` kills it with SIGKILL when that place is reached for the third time;
`flush.append:3:stop` stops it there with SIGSTOP, and `flush.append:3:term` asks it to end, with SIGTERM. Without the
variable a place costs a look-up and a comparison.

A test with several brokers in one process gives each its own fail points with `using`: tasks inherit them.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seaweedq.errors import SeaweedqError

Reach = Callable[[str], None]
_SIGNALS = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
_reach: ContextVar[Reach | None] = ContextVar("reach", default=None)
logger = logging.getLogger(__name__)


class InvariantViolated(SeaweedqError):
    """A rule does not hold. Clients get the problem `internal`: they have done nothing wrong."""


def require(holds: bool, rule: str, *facts: object) -> None:
    """Logs and raises InvariantViolated unless `rule` holds; the `facts` are formatted into it, and only then."""
    if not holds:
        logger.error("invariant violated: " + rule, *facts)
        raise InvariantViolated(
            "the broker found that an invariant was broken; see the broker's log for details", inside=rule % facts
        )


class ProcessFailPoint:
    """The fail point of a process, as `place:count:action` says it; an empty text is none."""

    def __init__(self, text: str) -> None:
        self.place, count, action, *_ = [*text.split(":"), "", ""]
        self._left = int(count or 1)
        self._signal = _SIGNALS[action]

    def pass_by(self) -> None:
        """Kills, stops or ends the process if it is the turn."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._signal)


_of_process = ProcessFailPoint(os.environ.get("SEAWEEDQ_FAIL_AT", ""))


def reach(place: str) -> None:
    """Tells the fail points of this context, or that of the process, that the place was reached."""
    points = _reach.get()
    if points is not None:
        points(place)
    elif place == _of_process.place:
        _of_process.pass_by()


@contextmanager
def using(points: Reach) -> Iterator[None]:
    """Lets these fail points stand for those of the process, in this context and the tasks that begin in it."""
    before = _reach.set(points)
    try:
        yield
    finally:
        _reach.reset(before)
