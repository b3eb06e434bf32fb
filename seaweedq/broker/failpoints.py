"""Fail points: named places between two steps of a protocol, where a test can kill the process.

`SEAWEEDQ_FAIL_AT=flush.append:3` kills it with SIGKILL when that place is reached for the third time. Without the
variable a place costs one comparison.
"""

import os
import signal

_PLACE, _, _COUNT = os.environ.get("SEAWEEDQ_FAIL_AT", "").partition(":")
_left = int(_COUNT or 1)


def reach(place: str) -> None:
    """Die here if this is the place and its turn."""
    global _left
    if place == _PLACE:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
