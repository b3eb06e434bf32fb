"""One process of a member, for its parent, from its start to its end. It makes no decisions.

Its output is passed on line by line, with its number. Its greeting contains its URL.
"""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO

import httpx

GREETING = re.compile(rb"^seaweedq \S+ at (http\S+), ")
CHUNK_BYTES = 64 * 1024
POLL_S = 0.05
ANSWER_S = 5.0
LAST_WORDS_S = 1.0


class Lines:
    """Cuts the output of a pipe into lines; a line longer than CHUNK_BYTES is cut there."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that are complete now, without their ends. Empty data means the end: the rest is the last
        line."""
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > CHUNK_BYTES or not data:
            lines, rest = [*lines, rest] if rest else lines, b""
        self._rest = rest
        return lines


class Life:
    """A started process. `ended` returns its exit code, negative for a signal; then `lived_s` is set."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, pastes: bool) -> None:
        self.number = number
        self.url = ""
        self.lived_s = 0.0
        self.greeted = asyncio.Event()
        self.ended = asyncio.create_task(self._end())
        self._process = process
        self._pastes = pastes  # whether the lines below its greeting are passed on
        self._began_s = time.monotonic()

    @classmethod
    async def begin(cls, number: int, command: Sequence[str], stdin: int, pastes: bool) -> "Life":
        """Starts the process, in a session of its own: Ctrl-C and a closed terminal concern the parent. Raises
        OSError."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        return cls(number, process, pastes)

    def signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def ready(self) -> bool:
        """Waits until the broker is ready; returns False if it ends before."""
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
        pipes = {self._process.stdout: self._said, self._process.stderr: self._logged}
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

    def _said(self, line: bytes) -> None:
        if found := GREETING.match(line):
            self.url = found[1].decode()
            self.greeted.set()
        if not line.startswith(b"  "):
            _write(sys.stdout.buffer, b"[%d] %b\n" % (self.number, line))
        elif self._pastes:
            _write(sys.stdout.buffer, b"%b\n" % line)

    def _logged(self, line: bytes) -> None:
        _write(sys.stderr.buffer, b"[%d] %b\n" % (self.number, line))


def _write(stream: BinaryIO, line: bytes) -> None:
    stream.write(line)
    stream.flush()
