"""Ctrl-C while modules are imported: it ends the process at once. Raised amid an import it would print a traceback."""

import os
import signal
from types import FrameType


def end_process(number: int, frame: FrameType | None) -> None:
    """Ends the process at once, with a shell's exit code for the signal."""
    os._exit(128 + number)


def end_while_loading() -> None:
    """Lets Ctrl-C end the process, unless the process ignores it or somebody else handles it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_process)


def raise_when_loaded() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt again, for a command that says what it has done."""
    if signal.getsignal(signal.SIGINT) is end_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)
