"""A client of an event stream within the test's own loop, without a network: it takes what a test lets it take."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from seaweedq.api.request import CONNECTION
from tests.support.brokers.in_process_cluster import until


@dataclass
class Event:
    """A server-sent event, as EventSource has it."""

    kind: str
    data: str
    last_id: str


@dataclass
class Parsed:
    """What EventSource makes of bytes; `comments` counts lines that it leaves out."""

    events: list[Event] = field(default_factory=list)
    last_id: str = ""
    first_id: str = ""
    comments: int = 0
    retry_ms: int = 0
    _rest: str = ""

    def feed(self, content: bytes) -> None:
        """Take in more bytes."""
        *blocks, self._rest = (self._rest + content.decode()).split("\n\n")
        for block in blocks:
            self._block(block)

    def _block(self, block: str) -> None:
        kind, data = "message", []
        for line in block.splitlines():
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not name:
                self.comments += 1
            elif name == "data":
                data.append(value)
            elif name == "id":
                self.last_id = value
                self.first_id = self.first_id or value
            elif name == "event":
                kind = value
            elif name == "retry":
                self.retry_ms = int(value)
            else:
                raise AssertionError(f"no field of an event: {line!r}")
        if data:
            self.events.append(Event(kind, "\n".join(data), self.last_id))


@dataclass
class Listener:
    """One client. While `taking` is not set, its socket is full."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    parsed: Parsed = field(default_factory=Parsed)
    taking: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    complete: bool = False
    aborted: bool = False
    certificate: None = None
    ended: asyncio.Task[None] | None = None
    hear: Callable[[bytes], None] | None = None  # told of bytes as they come

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that came."""
        return [json.loads(event.data) for event in self.parsed.events if event.kind == "message"]

    @property
    def values(self) -> list[Any]:
        """Their values."""
        return [message["value"] for message in self.messages]

    @property
    def bye(self) -> dict[str, Any] | None:
        """The problem with which the stream was ended."""
        found = [json.loads(event.data) for event in self.parsed.events if event.kind == "bye"]
        return found[0] if found else None

    async def drained(self) -> None:
        """As the server's connection."""
        await self.taking.wait()

    def abort(self) -> None:
        """As the server's connection."""
        self.aborted = True
        self.gone.set()

    def stay(self) -> None:
        """As the server's connection."""

    def go(self) -> None:
        """As the server's connection."""

    def exempt(self) -> None:
        """As the server's connection."""

    async def receive(self) -> dict[str, Any]:
        """As ASGI: the request has no body, and then the client goes at some time."""
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """As ASGI; a full socket makes the sender wait."""
        await self.taking.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        content = bytes(message.get("body", b""))
        self.content += content
        if self.hear:
            self.hear(content)
        if self.status == 200:
            self.parsed.feed(content)
        self.complete = not message.get("more_body", False)

    async def until(self, count: int) -> None:
        """Wait for so many messages."""
        await until(lambda: len(self.messages) >= count or self.complete, f"{len(self.messages)} of {count}")
        assert len(self.messages) >= count, self.content[-500:]


def scope_of(path: str, headers: Mapping[str, str], listener: Listener) -> dict[str, Any]:
    """The scope of a GET."""
    plain, _, asked = path.partition("?")
    return {
        "type": "http",
        "method": "GET",
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": asked.encode(),
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"seaweedq-client", b"test"),
            *((k.lower().encode(), v.encode()) for k, v in headers.items()),
        ],
        "extensions": {CONNECTION: listener},
        "http_version": "1.1",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "root_path": "",
    }


@asynccontextmanager
async def listening(
    app: Any, path: str, headers: Mapping[str, str] | None = None, taking: bool = True
) -> AsyncIterator[Listener]:
    """A client that listens for as long as the block runs; its stream has begun, or was refused."""
    listener = Listener()
    listener.taking.set()
    scope = scope_of(path, headers or {}, listener)
    work = listener.ended = asyncio.create_task(app(scope, listener.receive, listener.send))
    try:
        await until(lambda: listener.content or work.done())
        if not taking:
            listener.taking.clear()
        yield listener
    finally:
        listener.gone.set()
        listener.taking.set()
        await asyncio.wait_for(work, 20)
