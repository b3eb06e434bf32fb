"""The program `seaweedq` as a fork of a process that has imported it.

A broker's start then takes a fifth of the CPU of a new interpreter, and a command a tenth.

The first start of a test session starts the server (`python -m tests.support.processes.fork_server`), which ends with
the session. It has one thread and no event loop, serves nothing itself, and forks for each request that comes over its
socket; the fork takes arguments, environment, folder and output from the request, and runs the program as
`python -m seaweedq` does. The exit status comes back through a pipe.
"""

import array
import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module

from tests.support.paths import ROOT

ENDS_S = 30.0
REQUEST_BYTES = 200_000
# What most brokers and commands import, those within functions included; the rest, each fork imports itself.
LOADED = (
    "seaweedq.cli.main",
    "seaweedq.cli.server.serve",
    "seaweedq.cli.server.broker_process",
    "seaweedq.storage.s3",
    "seaweedq.client.sync.client",
    "httpcore",
    "encodings.idna",
    "pydantic.v1",  # which FastAPI asks for at the first route
    "uvicorn.lifespan.off",
    "uvloop",
)
# The variables that are read after the fork. Python, the loader and Arrow have read theirs before.
FREE = ("SEAWEEDQ_", "AWS_", "COLUMNS", "PYTEST_CURRENT_TEST", "PYSPARK_", "SPARK_")


class Forked:
    """A process of the fork server's, as `subprocess.Popen` shows it."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._one = threading.Lock()
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None as long as it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        told = select.poll()
        told.register(self._status)
        if self.returncode is None and not told.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("seaweedq", timeout or 0)
        with self._one:
            if self.returncode is None:
                self.returncode = int(os.read(self._status, 16))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server of this process, with the socket to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one = threading.Lock()
        self._env = _fixed(os.environ)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def can_start(self, env: Mapping[str, str]) -> bool:
        """Whether a fork may have this environment: it has to be that of the server, but for what a fork can change."""
        return _fixed(env) == self._env

    def start(self, arguments: Sequence[str], env: Mapping[str, str], files: Sequence[int]) -> Forked:
        """Runs `seaweedq` with these arguments, in this environment and the caller's folder. `files` are its stdin,
        stdout and stderr."""
        sys.audit("subprocess.Popen", "seaweedq", list(arguments), os.getcwd(), dict(env))
        request = json.dumps({"arguments": list(arguments), "env": dict(env), "folder": os.getcwd()}).encode()
        ours, theirs = os.pipe()
        fds = array.array("i", [*files, theirs])
        with self._one:
            self._socket.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            os.close(theirs)
            pid = self._socket.recv(16)
        assert pid, "the fork server has ended"
        return Forked(int(pid), ours)

    def close(self) -> None:
        """Ends the server. What it has forked goes on."""
        self._socket.close()
        self._process.wait(ENDS_S)


def _fixed(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not name.startswith(FREE) and "proxy" not in name.lower()}


@cache
def fork_server() -> ForkServer | None:
    """The one of this process, where forks are safe."""
    if sys.platform != "linux":
        return None
    server = ForkServer()
    atexit.register(server.close)
    return server


class _Serving:
    """The server's side: the pipes of its children by process id."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pipes: dict[int, int] = {}
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)
        self._wake = wake
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def run(self) -> list[str] | None:
        """Serves until the test session has ended. In each fork it returns the arguments at once."""
        while True:
            readable, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in readable:
                self._woken.recv(4096)
                self._reap()
            if self._control in readable:
                request, fds, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, 4)
                if not request:
                    return None
                asked = json.loads(request)
                if (pid := os.fork()) == 0:
                    self._become(asked["env"], asked["folder"], fds)
                    return list(asked["arguments"])
                *files, self._pipes[pid] = fds
                for file in files:
                    os.close(file)
                self._control.send(str(pid).encode())

    def _reap(self) -> None:
        while self._pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = self._pipes.pop(pid)
            with suppress(BrokenPipeError):
                os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(pipe)

    def _become(self, env: dict[str, str], folder: str, fds: list[int]) -> None:
        """Makes the fork what a new process would be."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for own in (self._control, self._woken, self._wake):
            own.close()
        for number, file in enumerate(fds[:-1]):
            os.dup2(file, number)
        for fd in (*fds, *self._pipes.values()):
            os.close(fd)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        os.chdir(folder)


def _run(arguments: list[str]) -> None:
    """Runs the program as `python -m seaweedq` does."""
    from seaweedq import checks
    from seaweedq.__main__ import main

    checks._of_process.__init__(os.environ.get("SEAWEEDQ_FAIL_AT", ""))  # type: ignore[misc]
    sys.argv = [str(ROOT / "seaweedq" / "__main__.py"), *arguments]
    sys.orig_argv = [sys.executable, "-m", "seaweedq", *arguments]
    main()


if __name__ == "__main__":
    gc.disable()
    for module in LOADED:
        import_module(module)
    gc.freeze()
    gc.enable()
    arguments = _Serving(socket.socket(fileno=int(sys.argv[1]))).run()
    if arguments is not None:
        _run(arguments)
