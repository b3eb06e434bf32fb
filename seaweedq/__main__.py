"""The program: the command `seaweedq`, and `python -m seaweedq`.

As process 1, as in a container, it gets no signal that it does not handle: the kernel drops those. So it handles
SIGTERM before it imports anything that takes long. A command that handles SIGTERM itself replaces this handler.
"""

import os
import signal
from types import FrameType


def main() -> None:
    """Runs a command of the command line."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
    from seaweedq.cli.main import main as run  # takes most of a second

    run()


def _end(number: int, frame: FrameType | None) -> None:
    """Ends the process at once, as the signal ends any other process that does not handle it."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
