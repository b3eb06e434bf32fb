"""A terminal on which a program draws."""

import os
import select
import time
from collections.abc import Iterator

PATIENCE_S = 60.0


def shown(terminal: int) -> Iterator[bytes]:
    """All that a terminal has got so far, as more comes, until its program has closed it."""
    text, until_s = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                piece = os.read(terminal, 65_536)
            except OSError:  # as Linux says it
                return
            text += piece
            yield text
    raise AssertionError(text)
