"""A bound on log lines that strangers can cause: uvicorn writes one for each request that it cannot read."""

import logging
import time
from collections.abc import Callable

EACH_S = 10.0


class OnceInAWhile(logging.Filter):
    """Lets a line of this text pass once each EACH_S, and says how many others there were."""

    def __init__(self, text: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._text = text
        self._now = now
        self._passed_s = float("-inf")
        self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether a line passes."""
        if record.msg != self._text:
            return True
        now_s = self._now()
        if now_s - self._passed_s < EACH_S:
            self._held_back += 1
            return False
        if self._held_back:
            record.msg = f"{self._text} {self._held_back} more since the last such line."
        self._passed_s, self._held_back = now_s, 0
        return True
