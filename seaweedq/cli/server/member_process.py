"""One of several brokers on a machine: runs its process, and restarts it whenever it ends, until it is stopped.

The decisions come first in this file: how to start a broker, when to restart it, and what an exit code means. Except
for names in the data folder, they are pure. The broker's output is passed on line by line, with its number. The
greeting contains the broker's URL."""

import asyncio
import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import httpx

from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings

QUICK_S = 10.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 5.0
JOURNALS = "journals"


def check_folder(settings: Settings) -> None:
    """Raises InvalidRequest if a single broker left a journal in the data folder. Several brokers use one subfolder
    each, and would never recover such a journal."""
    folder = settings.data_dir / JOURNALS
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidRequest(
            f"{folder} contains messages of a broker that ran without the setting `brokers`, and these messages are "
            "not in Parquet files yet; start that broker once more without `brokers`, and stop it with SIGTERM",
            field="brokers",
        )


def homes(settings: Settings) -> list[Path]:
    """Returns the folders of all members that ever existed in this data folder."""
    return sorted(path for path in settings.home.parent.glob("*") if path.is_dir())


def member_command(program: Sequence[str], settings: Settings, member: int) -> list[str]:
    """Returns the command that starts a member: the parent's own command line, plus the parent's decisions, which
    override a config file that has changed since."""
    port = settings.port + member - 1 if settings.port else 0
    decided = {
        "--data-dir": settings.data_dir.absolute(),
        "--brokers": settings.brokers,
        "--member": member,
        "--port": port,
        "--peer-port": settings.peer_port + member - 1 if settings.peer_port else 0,
        "--grpc-port": settings.grpc_port + member - 1 if settings.grpc_port else 0,
    }
    return [*program, *(str(word) for option in decided.items() for word in option)]


def own_program() -> list[str]:
    """Returns the command line of this process, as a start with `python -m`."""
    return [sys.executable, "-m", "seaweedq", *sys.argv[1:]]


def quick_ends(before: int, lived_s: float) -> int:
    """Returns how many times in a row, including this time, a broker ended within QUICK_S."""
    return before + 1 if lived_s < QUICK_S else 0


def pause_s(quick: int) -> float:
    """Returns how long to wait before the next start: zero at first, then doubling up to LAST_PAUSE_S."""
    return min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(quick - 1, 16)) if quick else 0.0


def ended_in_order(code: int, greeted: bool) -> bool:
    """Returns whether a broker stopped as requested. A broker that has not printed its greeting may not handle the
    signal yet."""
    return code == 0 or (code == -signal.SIGTERM and not greeted)


def hopeless(code: int, was_ready: bool) -> bool:
    """Returns whether another start would fail in the same way: the broker ended by itself, and was never ready."""
    return code > 0 and not was_ready


def exit_words(code: int) -> str:
    """Describes an exit code."""
    if code >= 0:
        return f"ended with {code}"
    names = {known.value: known.name for known in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def wish_line(brokers: int, urls: Sequence[str]) -> str:
    """Returns the line with which the member that leads tells its parent how many brokers the load needs. `urls` are
    those of the running brokers, the least used one first."""
    return f"seaweedq wants {brokers} brokers, least used first: {' '.join(urls)}"


def wish_in(line: bytes) -> tuple[int, list[str]] | None:
    """Parses a line of `wish_line`; None for any other line."""
    found = re.fullmatch(rb"seaweedq wants (\d{1,9}) brokers, least used first: (.*)", line)
    return (int(found[1]), found[2].decode(errors="replace").split()) if found else None


GREETING = re.compile(rb"^seaweedq \S+ at (http\S+), ")
CHUNK_BYTES = 64 * 1024
POLL_S = 0.05
ANSWER_S = 5.0
LAST_WORDS_S = 1.0


class Lines:
    """Splits a pipe's output into lines. Lines longer than CHUNK_BYTES are split."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that are now complete, without line ends. Empty data means that the pipe has ended, and
        completes the last line."""
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > CHUNK_BYTES or not data:
            lines, rest = [*lines, rest] if rest else lines, b""
        self._rest = rest
        return lines


Wished = Callable[[int, list[str]], None]


class Life:
    """A started process. `ended` returns its exit code (negative for a signal) and sets `lived_s`. `wished` gets each
    wish that it prints."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, pastes: bool, wished: Wished) -> None:
        self.number = number
        self.url = ""
        self.lived_s = 0.0
        self.greeted = asyncio.Event()
        self.ended = asyncio.create_task(self._end())
        self._process = process
        self._wished = wished
        self._pastes = pastes  # whether the lines below its greeting are passed on
        self._began_s = time.monotonic()

    @classmethod
    async def begin(cls, number: int, command: Sequence[str], stdin: int, pastes: bool, wished: Wished) -> "Life":
        """Starts the process in its own session, so that Ctrl-C and a closed terminal reach only the parent. Raises
        OSError."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        return cls(number, process, pastes, wished)

    def signal(self, number: int) -> None:
        """Sends a signal, if the process is still running."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ready(self) -> bool:
        """Waits until the broker is ready. Returns False if the broker ends first."""
        greeted = asyncio.create_task(self.greeted.wait())
        await asyncio.wait([greeted, self.ended], return_when=asyncio.FIRST_COMPLETED)
        greeted.cancel()
        # Its certificate need not name a loopback address, and nothing but its status is asked.
        async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S, verify=False) as client:
            while not self.ended.done():
                with suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/readyz")).status_code == 200:
                        return True
                await asyncio.sleep(POLL_S)
        return False

    async def _end(self) -> int:
        pipes = {self._process.stdout: self._pass_output, self._process.stderr: self._pass_log}
        words = [asyncio.create_task(self._pass_on(pipe, line)) for pipe, line in pipes.items() if pipe]
        code = await self._process.wait()
        self.lived_s = time.monotonic() - self._began_s
        _, open_still = await asyncio.wait(words, timeout=LAST_WORDS_S)
        for task in open_still:  # a process that it started has them
            task.cancel()
        return code

    async def _pass_on(self, pipe: asyncio.StreamReader, line: Callable[[bytes], None]) -> None:
        lines = Lines()
        while True:
            data = await pipe.read(CHUNK_BYTES)
            for one in lines.feed(data):
                with suppress(OSError):  # nobody reads what the parent prints
                    line(one)
            if not data:
                return

    def _pass_output(self, line: bytes) -> None:
        if found := GREETING.match(line):
            self.url = found[1].decode()
            self.greeted.set()
        if wish := wish_in(line):
            self._wished(*wish)
            return
        if not line.startswith(b"  "):
            _write(sys.stdout.buffer, b"[%d] %b\n" % (self.number, line))
        elif self._pastes:
            _write(sys.stdout.buffer, b"%b\n" % line)

    def _pass_log(self, line: bytes) -> None:
        if line.startswith(b'{"'):  # a JSON document stays one
            _write(sys.stderr.buffer, b'{"number":%d,%b\n' % (self.number, line[1:]))
        else:
            _write(sys.stderr.buffer, b"[%d] %b\n" % (self.number, line))


def _write(stream: BinaryIO, line: bytes) -> None:
    stream.write(line)
    stream.flush()


logger = logging.getLogger("seaweedq")


class Member:
    """Broker `number`, started by `command`, with `lifeline` at its stdin. Create it in a running loop.

    `grace_s` is how long the broker may take to stop. `end_lease` is called with the number when a process has ended,
    and `wished` with each wish of a broker that leads.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        lifeline: int,
        grace_s: float,
        end_lease: Callable[[int], Awaitable[None]],
        wished: Wished,
    ) -> None:
        self.number = number
        self._wished = wished
        self._end_lease = end_lease
        self._command, self._lifeline, self._grace_s = command, lifeline, grace_s
        self._life: Life | None = None
        self._next: asyncio.Future[Life] = asyncio.get_running_loop().create_future()
        self._hurry = asyncio.Event()
        self._stopping = self._asked = self._was_ready = False

    async def keep(self) -> int:
        """Starts the broker, and restarts it whenever it ends. Returns 0 if it was stopped in order, 1 if not, or its
        exit code if another start would not help."""
        quick = 0
        while not self._stopping:
            life = await self._begin()
            code = await life.ended if life else 1
            greeted = life is not None and life.greeted.is_set()
            in_order = ended_in_order(code, greeted)
            if not (self._stopping and in_order):
                await self._end_lease(self.number)
            if self._stopping:
                return 0 if in_order else 1
            self._was_ready |= greeted
            if hopeless(code, self._was_ready):
                logger.error("broker %d %s before it was ready", self.number, exit_words(code))
                return code
            quick = 0 if self._asked else quick_ends(quick, life.lived_s if life else 0.0)
            if not self._asked:
                logger.warning(
                    "broker %d %s; restarting this broker in %.1f s", self.number, exit_words(code), pause_s(quick)
                )
            self._asked = False
            await self._pause(pause_s(quick))
        return 0

    async def restart(self) -> bool:
        """Stops the broker in order, and lets it start again. Returns whether it became ready."""
        born = self._next
        self._hurry.set()
        if self._life and not self._life.ended.done():
            self._asked = True
            self._life.signal(signal.SIGTERM)
            await asyncio.wait([self._life.ended], timeout=self._grace_s)
            if not self._life.ended.done():
                logger.error("broker %d did not stop within %.0f s; killing this broker", self.number, self._grace_s)
                self._life.signal(signal.SIGKILL)
        return await (await born).ready()

    def stop(self) -> None:
        """Stops the broker in order, for good."""
        self._stopping = True
        self._hurry.set()
        if self._life:
            self._life.signal(signal.SIGTERM)

    @property
    def url(self) -> str:
        """Returns the broker's URL, as it greeted; empty before."""
        return self._life.url if self._life else ""

    @property
    def stopping(self) -> bool:
        """Returns whether the broker was stopped for good."""
        return self._stopping

    def kill(self) -> None:
        """Kills the broker."""
        if self._life:
            self._life.signal(signal.SIGKILL)

    async def _begin(self) -> Life | None:
        pastes = self.number == 1 and not self._was_ready
        try:
            self._life = await Life.begin(self.number, self._command, self._lifeline, pastes, self._wished)
        except OSError as error:
            logger.error("cannot start broker %d: %s", self.number, error)
            return None
        if self._stopping:  # the signal found nobody
            self._life.signal(signal.SIGTERM)
        self._next.set_result(self._life)
        self._next = asyncio.get_running_loop().create_future()
        return self._life

    async def _pause(self, pause_s: float) -> None:
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()
