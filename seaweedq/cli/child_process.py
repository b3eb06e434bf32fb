"""A broker as a child process: start, wait, kill, stop. The process ends with its `with` block at the latest."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from seaweedq.cli.shared.process import beat
from seaweedq.errors import ClientError

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_START_S = 60.0
_STOP_S = 20.0
_GREETING = re.compile(rb"^seaweedq \S+ at \S+, store ", re.MULTILINE)


def free_port() -> int:
    """Returns a free port on the loopback address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Broker:
    """Runs `seaweedq serve` on a folder, and writes its output to `log`."""

    def __init__(self, folder: Path, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        self._command = [sys.executable, "-m", "seaweedq", "serve", "--data-dir", str(folder), "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Returns the process id; 0 while there is no process."""
        return self._process.pid if self._process else 0

    def start(self) -> float:
        """Starts the broker, and waits for its greeting. Returns the seconds that this took. Raises ClientError with
        the broker's last output. An answer at the port would prove nothing, because another program may have taken the
        port first."""
        began = time.monotonic()
        with self._log.open("ab") as log, _signals_wait():
            begin = log.tell()
            # A session of its own, so that Ctrl-C is this process's to handle, and the broker is stopped in order.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while not self._has_greeted(begin):
            if self._process.poll() is not None or time.monotonic() - began > _START_S:
                raise ClientError(f"the broker did not start: {self.last_words()}")
            time.sleep(0.02)
        return time.monotonic() - began

    def kill(self) -> None:
        """Sends SIGKILL, and waits until the process has ended."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Sends SIGTERM, and SIGKILL if the stop takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def last_words(self) -> str:
        """Returns the last lines of the process's output, joined into one line."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-5:]) or "it printed nothing"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.kill()

    def _has_greeted(self, begin: int) -> bool:
        """Returns whether the process has printed its greeting after this number of bytes of the log."""
        return bool(_GREETING.search(self._log.read_bytes()[begin:]))


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Delays signals until the end of the block. A signal in the middle of a start would leave a process behind that
    nobody knows."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for caught in came:
        signal.raise_signal(caught)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP unwind the stack of the block like Ctrl-C, even while the main thread waits, so that no
    child process is left behind. The interpreter drops an exception that a signal's handler raises in a destructor, or
    in a callback of an import; so each beat raises the exception again, unless the stack is unwinding already."""
    under_way: SystemExit | None = None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal under_way
        under_way = SystemExit(128 + number)
        raise under_way

    def end_again(number: int, frame: FrameType | None) -> None:
        if under_way and under_way not in _handled():
            raise under_way

    with ExitStack() as stack:
        beat()
        for caught, handler in ((signal.SIGTERM, end), (signal.SIGHUP, end), (signal.SIGALRM, end_again)):
            stack.callback(signal.signal, caught, signal.signal(caught, handler))
        yield


def _handled() -> Iterator[BaseException]:
    """Yields the exceptions that the callers are handling."""
    error = sys.exc_info()[1]
    while error:
        yield error
        error = error.__context__
