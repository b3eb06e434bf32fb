"""The process of a command: its streams are open and take every character, a pipe that its reader has closed (as `head`
does) ends it quietly, and Ctrl-C ends it at once while modules are imported: raised amid an import it would print a
traceback."""

import atexit
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_HEARTBEAT_S = 0.2


def open_streams() -> None:
    """Opens the null device in place of each stream that was closed, as by `<&-`, and lets stdout show as escapes what
    its encoding has not."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def ending_quietly(code: int) -> Iterator[None]:
    """Ends the process with this exit code if the block was ended by a closed pipe. What stdout still holds is
    written before; if only that has no reader, the block's own end stands."""
    try:
        yield
    except SystemExit as end:  # Rich and Typer raise it for a closed pipe, too
        if isinstance(end.__context__, BrokenPipeError):
            _discard_output()
            sys.exit(code)
        raise
    except BrokenPipeError:
        _discard_output()
        sys.exit(code)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()


def _discard_output() -> None:
    """Discards what stdout still holds: Python would complain when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_process(number: int, frame: FrameType | None) -> None:
    """Ends the process at once, with a shell's exit code for the signal."""
    os._exit(128 + number)


def end_while_loading() -> None:
    """Lets Ctrl-C end the process, unless the process ignores it or somebody else handles it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_process)


def raise_when_loaded() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt again, for a command that reports its work."""
    if signal.getsignal(signal.SIGINT) is end_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def beat() -> None:
    """Sends SIGALRM five times a second, which does nothing else: a signal that comes just before a blocking call does
    not interrupt it, and its handler would wait for the call's end. No child process inherits the beat, and it ends
    ahead of the interpreter, which gives signals back their default: SIGALRM would then end the process."""
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    signal.setitimer(signal.ITIMER_REAL, _HEARTBEAT_S, _HEARTBEAT_S)


class Interrupts:
    """Lets SIGINT and SIGTERM end a wait at once, and other work when it is done: printed messages are also acked."""

    def __init__(self) -> None:
        self._waiting = False
        self._stopped = 0

    @property
    def stopped(self) -> int:
        """The signal that has come, 0 without one."""
        return self._stopped

    def __enter__(self) -> "Interrupts":
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        self._before[signal.SIGALRM] = signal.getsignal(signal.SIGALRM)
        beat()
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def until_stopped(self, messages: Iterator[T]) -> Iterator[T]:
        """Yields the items until a signal comes."""
        while not self._stopped:
            try:
                self._waiting = True
                if self._stopped:  # by a signal since the loop looked
                    return
                message = next(messages, None)
            except KeyboardInterrupt:
                return
            finally:
                self._waiting = False
            if message is None or self._stopped:
                return
            yield message

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = number
        if self._waiting:
            raise KeyboardInterrupt
