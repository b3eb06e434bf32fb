"""An HTTP proxy in front of an S3 server that does, for the requests it is told to, what networks and stores do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

Fault = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request on its way: `method`, `head` and `body`, and the two ends."""

    def __init__(self, head: bytes, body: bytes, client: asyncio.StreamWriter, upstream: tuple[str, int]) -> None:
        self.method = head.split(b" ")[0].decode()
        self.head, self.body, self.client, self._upstream = head, body, client, upstream

    async def forward(self) -> tuple[bytes, bytes]:
        """The server's answer: head and body."""
        reader, writer = await asyncio.open_connection(*self._upstream)
        writer.write(self.head + self.body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0 if self.method == "HEAD" else _length(head)
        body = await reader.readexactly(length)
        writer.close()
        return head.replace(b"Connection: close\r\n", b""), body  # a connection that is kept has more ways to fail

    def reset(self) -> None:
        """Break the connection to the client."""
        self.client.transport.abort()


class Proxy:
    """`methods` lists what came. While `times` is above 0, requests with `method` get `fault`."""

    def __init__(self, endpoint: str) -> None:
        target = urlsplit(endpoint)
        self._upstream = str(target.hostname), int(target.port or 80)
        self.methods: list[str] = []
        self.endpoint = ""
        self._fault: Fault | None = None
        self._times = 0

    def inject(self, fault: Fault, times: int = 1000) -> None:
        """The next `times` requests get this."""
        self.methods.clear()
        self._fault, self._times = fault, times

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                exchange = Exchange(head, await reader.readexactly(_length(head)), writer, self._upstream)
                self.methods.append(exchange.method)
                self._times -= 1
                await (self._fault if self._fault and self._times >= 0 else through)(exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def proxy_of(endpoint: str) -> AsyncIterator[Proxy]:
    """A proxy at `proxy.endpoint`, gone afterwards."""
    proxy = Proxy(endpoint)
    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(proxy.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield proxy
    server.close()
    for connection in connections:
        connection.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


async def through(exchange: Exchange) -> None:
    """No fault."""
    exchange.client.write(b"".join(await exchange.forward()))


def answers(status: int, code: str) -> Fault:
    """An error of the store's, before anything happened."""
    body = f"<Error><Code>{code}</Code><Message>so says the test</Message></Error>".encode()

    async def fault(exchange: Exchange) -> None:
        head = f"HTTP/1.1 {status} Is\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        exchange.client.write(head if exchange.method == "HEAD" else head + body)

    return fault


async def reset_before(exchange: Exchange) -> None:
    """The connection breaks before the store has seen anything."""
    exchange.reset()


async def reset_after(exchange: Exchange) -> None:
    """The store has done it, and the answer is lost."""
    await exchange.forward()
    exchange.reset()


async def silence_after(exchange: Exchange) -> None:
    """The store has done it, and no answer comes."""
    await exchange.forward()
    await asyncio.Event().wait()


async def cut(exchange: Exchange) -> None:
    """The last three bytes of the body do not come."""
    head, body = await exchange.forward()
    exchange.client.write(head + body[:-3])
    exchange.client.close()


async def shortened(exchange: Exchange) -> None:
    """As `cut`, but the head says that this is all."""
    head, body = await exchange.forward()
    stated = f"Content-Length: {len(body)}".encode()
    assert stated in head
    exchange.client.write(head.replace(stated, f"Content-Length: {len(body) - 3}".encode()) + body[:-3])


async def flipped(exchange: Exchange) -> None:
    """One bit of the body is another."""
    head, body = await exchange.forward()
    exchange.client.write(head + bytes([body[0] ^ 1]) + body[1:])


async def without_range(exchange: Exchange) -> None:
    """The store ignores the range that is asked for."""
    lines = exchange.head.split(b"\r\n")
    exchange.head = b"\r\n".join(line for line in lines if not line.lower().startswith(b"range:"))
    await through(exchange)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
