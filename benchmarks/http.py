"""A lean HTTP client: prepared bytes out, status and body back, over keep-alive connections of one event loop."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
import uvloop

Connections = Sequence["Connection"]
NDJSON, ARROW = "application/x-ndjson", "application/vnd.apache.arrow.stream"


class Failed(Exception):
    """An answer that is none of 200 and 201."""


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._done: asyncio.Future[bytes] | None = None

    @staticmethod
    async def to(port: int, tls: ssl.SSLContext | None = None) -> "Connection":
        """Connect."""
        return (await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port, ssl=tls))[1]

    async def ask(self, prepared: bytes) -> bytes:
        """Send a prepared request: the body of the answer. Raises Failed."""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(prepared)
        return await self._done

    async def ask_json(self, method: str, path: str, document: Any = None) -> Any:
        """Send and read JSON."""
        body = b"" if document is None else msgspec.json.encode(document)
        answer = await self.ask(request(path, body, "application/json", method))
        return msgspec.json.decode(answer) if answer else None

    def close(self) -> None:
        """Close it."""
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        at = self._buffer.find(b"content-length: ", 0, head)
        if head < 0:
            return
        end = head + 4 + int(self._buffer[at + 16 : self._buffer.find(b"\r", at)])
        if len(self._buffer) < end:
            return
        status, body = self._buffer[9:12], bytes(self._buffer[head + 4 : end])
        del self._buffer[:end]
        assert self._done
        if status in (b"200", b"201"):
            self._done.set_result(body)
        else:
            self._done.set_exception(Failed(f"{status.decode()}: {body[:300].decode()}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._done and not self._done.done():
            self._done.set_exception(Failed(f"the connection was lost: {error}"))


def request(path: str, body: bytes, content_type: str, method: str = "POST", more: Sequence[str] = ()) -> bytes:
    """A request's bytes; `more` are further lines of its head."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join([*lines, *more, "", ""]).encode() + body


async def ask_all(connections: Connections, prepared: Iterable[bytes]) -> int:
    """Send all requests, each connection one after the other: how many there were."""
    left = iter(prepared)

    async def work(connection: Connection) -> int:
        sent = 0
        for one in left:
            await connection.ask(one)
            sent += 1
        return sent

    return sum(await asyncio.gather(*map(work, connections)))


async def per_s(connections: Connections, prepared: Sequence[bytes]) -> float:
    """Requests a second of all of them, once each connection has had one."""
    await ask_all(connections, prepared[: len(connections)])
    begun = time.perf_counter()
    return await ask_all(connections, prepared) / (time.perf_counter() - begun)


def run(
    port: int, connections: int, work: Callable[[Connections], Awaitable[Any]], tls: ssl.SSLContext | None = None
) -> Any:
    """Run `work` on open connections."""

    async def connected() -> Any:
        opened = [await Connection.to(port, tls) for _ in range(connections)]
        try:
            return await work(opened)
        finally:
            for connection in opened:
                connection.close()

    return uvloop.run(connected())
