"""Fail points: named places between two steps of a protocol, where a test can kill or stop the process.

`SEAWEEDQ_FAIL_AT=flush.append:3` kills the process with SIGKILL when it reaches that fail point for the third time;
`flush.append:3:stop` stops it there with SIGSTOP. Without the variable a fail point costs one comparison.
"""

import os
import signal

_POINT, _COUNT, _ACTION, *_ = [*os.environ.get("SEAWEEDQ_FAIL_AT", "").split(":"), "", ""]
_SIGNAL = {"": signal.SIGKILL, "kill": signal.SIGKILL, "stop": signal.SIGSTOP}[_ACTION]
_left = int(_COUNT or 1)


def reach(point: str) -> None:
    """Kills or stops the process if `point` is the armed fail point and its count is reached."""
    global _left
    if point == _POINT:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), _SIGNAL)
