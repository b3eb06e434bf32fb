"""A proxy in front of an S3 server that understands HTTP: it carries requests byte for byte, so that their signatures
stay valid, and does by rule what networks and stores do to them.
"""

import asyncio
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.support.processes.tcp_proxy import LoopThread, Proxy

Action = Literal["delay", "error", "drop_answer", "twice", "late", "cut_read", "flip_read"]
CODES = {
    500: ("Internal Server Error", "InternalError"),
    503: ("Slow Down", "SlowDown"),
    409: ("Conflict", "ConditionalRequestConflict"),
    404: ("Not Found", "NoSuchKey"),
}


@dataclass(slots=True)
class Rule:
    """What is done to requests of this method whose path and query match `path`.

    `delay`: wait `seconds` first. `error`: answer `status`, nothing has happened; 404 of what is there is one, too.
    `drop_answer`: it happens, and the connection is reset. `twice`: it happens twice, the second answer is told.
    `late`: the connection is reset, and it happens after `seconds`, or at `deliver`. `cut_read`: half of the answer's
    body comes. `flip_read`: one of its bits is turned.
    """

    action: Action
    method: str = "PUT"
    path: str = ""
    count: int | None = None  # how often at most; None: always
    probability: float = 1.0
    seconds: float = 0.0
    status: int = 503


@dataclass(frozen=True, slots=True)
class Done:
    """A request that came through: what was done to it, and what the server said, 0 for nothing yet."""

    t: float
    method: str
    path: str
    action: Action | None
    status: int


class Request(NamedTuple):
    """A request: its bytes, and what the rules look at."""

    method: str
    path: str
    raw: bytes


class Answer(NamedTuple):
    """An answer: its bytes in two parts, its status; `whole` is False where the connection ends with it."""

    head: bytes
    body: bytes
    status: int
    whole: bool = True


@dataclass
class _Head:
    start: list[str]
    fields: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes) -> "_Head":
        start, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(start.split(" ", 2), {name.strip().lower(): value.strip() for name, _, value in pairs})


class S3Proxy(Proxy):
    """Carries HTTP/1.1 by `rules`: the first that matches and has a turn left is followed."""

    def __init__(self, thread: LoopThread, target: str, rng: random.Random) -> None:
        super().__init__(thread, target)
        self.log: list[Done] = []
        self._rng = rng
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._late: dict[asyncio.Task[None], asyncio.Event] = {}
        self._actions: dict[Action, Callable[[Request, Rule], Awaitable[Answer | None]]] = {
            "delay": self._delay,
            "error": self._error,
            "drop_answer": self._drop_answer,
            "twice": self._twice,
            "late": self._hold,
            "cut_read": self._cut_read,
            "flip_read": self._flip_read,
        }

    def add(self, rule: Rule) -> None:
        """From now on follow this rule."""
        with self._lock:
            self._rules.append(rule)

    def heal(self) -> None:
        """No rules any more; what is held for later stays held."""
        with self._lock:
            self._rules.clear()
        super().heal()

    def deliver(self) -> int:
        """Let all that is held happen now, and wait for it: how many requests that was."""
        return self.thread.run(self._deliver())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Request after request."""
        while request := await self._request(reader, writer):
            await self.passage("to")
            answer = await self._treat(request)
            await self.passage("from")
            if answer is None:
                self.end(writer, reset=True)
                return
            writer.write(answer.head + answer.body)
            await writer.drain()
            if not answer.whole:
                writer.close()
                await writer.wait_closed()
                return

    async def _treat(self, request: Request) -> Answer | None:
        rule = self._choose(request)
        if rule is None:
            return await self._forward(request, None)
        return await self._actions[rule.action](request, rule)

    def _choose(self, request: Request) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.method == request.method and re.search(rule.path, request.path) and rule.count != 0:
                    if self._rng.random() >= rule.probability:
                        continue
                    if rule.count is not None:
                        rule.count -= 1
                    return rule
        return None

    async def _delay(self, request: Request, rule: Rule) -> Answer | None:
        await asyncio.sleep(rule.seconds)
        return await self._forward(request, "delay")

    async def _error(self, request: Request, rule: Rule) -> Answer | None:
        self._note(request, "error", rule.status)
        reason, code = CODES[rule.status]
        body = f"<Error><Code>{code}</Code><Message>{reason}</Message></Error>".encode()
        head = (
            f"HTTP/1.1 {rule.status} {reason}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return Answer(head.encode(), body, rule.status)

    async def _drop_answer(self, request: Request, rule: Rule) -> Answer | None:
        await self._forward(request, "drop_answer")
        return None

    async def _twice(self, request: Request, rule: Rule) -> Answer | None:
        await self._forward(request, "twice")
        return await self._forward(request, "twice")

    async def _hold(self, request: Request, rule: Rule) -> Answer | None:
        self._note(request, "late", 0)
        now = asyncio.Event()
        task = asyncio.create_task(self._later(request, rule.seconds, now))
        self._late[task] = now
        task.add_done_callback(self._late.pop)
        return None

    async def _later(self, request: Request, seconds: float, now: asyncio.Event) -> None:
        try:
            await asyncio.wait_for(now.wait(), seconds)
        except TimeoutError:
            pass
        try:
            await self._forward(request, "late")
        except (OSError, EOFError):
            pass  # the server is down: it never happened

    async def _cut_read(self, request: Request, rule: Rule) -> Answer | None:
        answer = await self._forward(request, "cut_read")
        return answer and answer._replace(body=answer.body[: len(answer.body) // 2], whole=False)

    async def _flip_read(self, request: Request, rule: Rule) -> Answer | None:
        answer = await self._forward(request, "flip_read")
        if not answer or not answer.body:
            return answer
        body = bytearray(answer.body)
        body[self._rng.randrange(len(body))] ^= 1 << self._rng.randrange(8)
        return answer._replace(body=bytes(body))

    async def _deliver(self) -> int:
        tasks = [*self._late]
        for now in [*self._late.values()]:
            now.set()
        await asyncio.gather(*tasks)
        return len(tasks)

    def _note(self, request: Request, action: Action | None, status: int) -> None:
        self.log.append(Done(time.monotonic(), request.method, request.path, action, status))

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        head = _Head.parse(raw)
        if head.fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(head.start[0], head.start[1], raw + await _body(reader, head, to_end=False))

    async def _forward(self, request: Request, action: Action | None) -> Answer | None:
        """What the server answers, on a connection for this request alone."""
        reader, writer = await self.connect()
        try:
            writer.write(request.raw)
            await writer.drain()
            raw, head = b"", _Head(["", "100"])
            while head.start[1].startswith("1"):
                raw = await reader.readuntil(b"\r\n\r\n")
                head = _Head.parse(raw)
            status = int(head.start[1])
            bare = request.method == "HEAD" or status in (204, 304)
            body = b"" if bare else await _body(reader, head, to_end=True)
        finally:
            self.end(writer)
        self._note(request, action, status)
        ends = head.fields.get("connection", "").lower() == "close" or head.start[0] == "HTTP/1.0"
        return Answer(raw, body, status, whole=not ends)


async def _body(reader: asyncio.StreamReader, head: _Head, *, to_end: bool) -> bytes:
    """The bytes of a body as they stand; without a length an answer goes on to the end, and a request has none."""
    if "chunked" in head.fields.get("transfer-encoding", "").lower():
        return await _chunks(reader)
    if "content-length" in head.fields:
        return await reader.readexactly(int(head.fields["content-length"]))
    return await reader.read() if to_end else b""


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    found = []
    while True:
        line = await reader.readuntil(b"\r\n")
        found.append(line)
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        found.append(await reader.readexactly(size + 2))
    while found[-1] != b"\r\n":  # trailers
        found.append(await reader.readuntil(b"\r\n"))
    return b"".join(found)
