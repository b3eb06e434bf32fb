"""Says on stderr that no broker answers, and until when it is tried, where the client itself repeats requests."""

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from seaweedq.errors import RateLimited, SeaweedqError

SILENT_S = 2.0


class Outage:
    """The time since the first of the failures that follow each other. The client calls it (`OnRetry`)."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._told = False

    def __call__(self, error: SeaweedqError | None, left_s: float) -> None:
        """Notes a failure, or with None that a broker answers again."""
        now_s = self._monotonic_s()
        if error is None:
            if self._told and self._since_s is not None:
                _note(f"a broker answers again, after {now_s - self._since_s:.0f} s")
            self._since_s, self._told = None, False
        elif not isinstance(error, RateLimited):
            self._since_s = now_s if self._since_s is None else self._since_s
            if not self._told and now_s - self._since_s >= SILENT_S:
                until = datetime.now().astimezone() + timedelta(seconds=left_s)
                _note(f"no broker has answered for {now_s - self._since_s:.0f} s; trying until {until:%H:%M:%S}")
                self._told = True


def _note(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201
