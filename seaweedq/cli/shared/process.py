"""The process of a command. Its streams are open and accept every character. If the reader of a pipe closes it, as
`head` does, the process ends quietly. While modules are imported, Ctrl-C ends the process immediately, because an
exception during an import would print a traceback."""

import atexit
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
_HEARTBEAT_S = 0.2
PATIENCE_S = 10.0  # after a signal, for the work under way


def open_streams() -> None:
    """Opens the null device in place of each closed stream (such as with `<&-`), and makes stdout escape characters
    that its encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def ending_quietly(code: int) -> Iterator[None]:
    """Ends the process with this exit code if a closed pipe ended the block. Buffered output is written first; if only
    that write finds the pipe closed, the block's own result stands."""
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
    """Discards buffered output, because Python would complain when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_process(number: int, frame: FrameType | None) -> None:
    """Ends the process immediately, with the exit code that a shell uses for the signal."""
    os._exit(128 + number)


def end_while_loading() -> None:
    """Lets Ctrl-C end the process, unless SIGINT is ignored or already has another handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_process)


def raise_when_loaded() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt again, for a command that reports its work."""
    if signal.getsignal(signal.SIGINT) is end_process:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM raise KeyboardInterrupt in the block, with the signal's number, for a command that reports its work.
    One that the block does not catch ends the command with status 143. Only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt as raised:
        if not raised.args:
            raise
        raise SystemExit(128 + raised.args[0]) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def beat() -> None:
    """Sends SIGALRM five times per second, only to wake the process: a signal that arrives just before a blocking call
    does not interrupt the call, and its handler would wait until the call ends. Child processes do not inherit the
    timer. The timer stops before the interpreter restores default signal handlers, because SIGALRM would then end the
    process."""
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    signal.setitimer(signal.ITIMER_REAL, _HEARTBEAT_S, _HEARTBEAT_S)


class Interrupts:
    """Lets SIGINT and SIGTERM end a wait immediately, but other work only when it is done, so that printed messages are
    also acked. A second signal ends the process at once, and so do PATIENCE_S behind the first one: nobody may read the
    pipe that a print waits for."""

    def __init__(self) -> None:
        self._waiting = False
        self._stopped = 0
        self._beats_left = round(PATIENCE_S / _HEARTBEAT_S)

    @property
    def stopped(self) -> int:
        """The signal that arrived; 0 if none did."""
        return self._stopped

    def __enter__(self) -> "Interrupts":
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        self._before[signal.SIGALRM] = signal.getsignal(signal.SIGALRM)
        beat()
        signal.signal(signal.SIGALRM, self._beat)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def until_stopped(self, messages: Iterator[T]) -> Iterator[T]:
        """Yields the items until a signal arrives."""
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

    def _beat(self, number: int, frame: FrameType | None) -> None:
        self._beats_left -= bool(self._stopped)
        if self._beats_left < 0:
            end_process(self._stopped, frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._stopped:
            end_process(number, frame)
        self._stopped = number
        if self._waiting:
            raise KeyboardInterrupt
