"""Fail points: named places between two steps of a protocol, where a test can kill or stop the process.

`SEAWEEDQ_FAIL_AT=flush.append:3` kills it with SIGKILL when that place is reached for the third time;
`flush.append:3:stop` stops it there with SIGSTOP. Without the variable a place costs one comparison.
"""

import os
import signal

_PLACE, _COUNT, _ACTION, *_ = [*os.environ.get("SEAWEEDQ_FAIL_AT", "").split(":"), "", ""]
_SIGNAL = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}[_ACTION]
_left = int(_COUNT or 1)


def reach(place: str) -> None:
    """Die or stop here if this is the place and its turn."""
    global _left
    if place == _PLACE:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), _SIGNAL)
