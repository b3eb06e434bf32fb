"""The program: the command `seaweedq`, and `python -m seaweedq`.

As process 1, as in a container, it gets no signal that it does not handle: the kernel drops those. So it handles
SIGTERM before it imports anything that takes long. A command that handles SIGTERM itself replaces this handler.
"""

import gc
import os
import signal
import sys

from seaweedq.cli.shared.process import end_process, end_while_loading


def main() -> None:
    """Runs a command of the command line."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, end_process)
    end_while_loading()
    _start_fast()
    from seaweedq.cli.main import main as run  # takes a tenth of a second, and a command's own imports more

    run()


def _start_fast() -> None:
    """Leaves out what imports would do for nothing: a quarter of the time of a short command."""
    gc.disable()  # imported objects stay; a command that is loaded enables it again
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else it reads the metadata of every package
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # httpx's program, with rich and pygments


if __name__ == "__main__":
    main()
