"""Requests to other brokers over HTTP/1.1, on connections that are kept open, with one request at a time on each.

A request takes a fraction of the CPU that aiohttp takes for it, and each commit of a mirrored journal waits for two:
httptools parses answers, as it parses the server's requests. There is no limit: long polls that are handed on must not
keep acks waiting, and clients' own connections bound them. Each request is sent once, whatever becomes of its
connection: the repeat of a DELETE that worked would be answered 404, and nobody could know why.

States of a connection: idle --request--> asking --whole answer--> idle; any of them --end, error, time-out,
cancellation, an answer that closes--> gone. An idle one goes, too, if anything comes, or it is wanted behind IDLE_S.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast
from urllib.parse import SplitResult as Url
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from seaweedq.broker.rpc.peer_keys import Secured
from seaweedq.broker.rpc.peer_sessions import Covered
from seaweedq.concurrency.futures import fail, resolve
from seaweedq.errors import Unavailable

CONNECT_S, TLS_S = 2.0, 10.0  # for one address, and with a handshake
IDLE_S = 30.0  # below the server's own
Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Relayed:
    """Another broker's answer to a client's request."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to another broker, without its stamp. `path` has the query, too."""

    method: str
    path: str
    headers: Headers
    body: bytes = field(repr=False)
    timeout_s: float

    def covered(self) -> Covered:
        """Returns the parts that a stamp covers."""
        path, _, query = self.path.encode().partition(b"?")
        named = ((name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items())
        return Covered.from_request(self.method, path, query, named)

    def head(self, base: Url, shown: Headers) -> bytes:
        """Returns the head for the broker at `base`, with further headers."""
        lines = [f"{self.method} {base.path}{self.path} HTTP/1.1", f"Host: {base.netloc}"]
        lines += [f"{name}: {value}" for name, value in (*self.headers.items(), *shown.items())]
        return "\r\n".join([*lines, f"Content-Length: {len(self.body)}", "", ""]).encode("latin-1")


class _Place(NamedTuple):
    """The other end of connections. With a `context`, the other side must show a certificate for `name`."""

    host: str
    port: int
    context: ssl.SSLContext | None
    name: str | None


class _Connection(asyncio.Protocol):
    """One connection. `is_open` tells whether a request may be sent; `lost` is called once the connection is gone."""

    def __init__(self, lost: "Callable[[_Connection], None]") -> None:
        self._lost = lost
        self.is_open = True
        self.idle_from_s = 0.0
        self._parser = HttpResponseParser(self)
        self._asked: asyncio.Future[Relayed] | None = None
        self._is_head = False
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []

    async def ask(self, request: Request, head: bytes) -> Relayed:
        """Sends a request, and returns its answer. Raises OSError if none came."""
        asked: asyncio.Future[Relayed] = asyncio.get_running_loop().create_future()
        self._asked = asked
        self._is_head = request.method == "HEAD"
        self._transport.writelines((head, request.body))
        return await asked

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> None:
        self.is_open = False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._lost(self)
        if self._asked:
            fail(self._asked, error or ConnectionResetError("the connection was closed before the answer was complete"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self._asked:
                fail(self._asked, ConnectionError(f"the answer is not HTTP/1.1: {error}"))
            self.close()

    # what httptools calls

    def on_message_begin(self) -> None:
        self._headers, self._parts = {}, []
        if self._asked is None:
            self.close()  # nothing was asked

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._is_head:
            self.is_open = False  # the parser waits for a body
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if (status := self._parser.get_status_code()) < 200:
            return
        self.is_open = self.is_open and self._parser.should_keep_alive()
        asked, self._asked, body, self._parts = self._asked, None, b"".join(self._parts), []
        if asked:
            resolve(asked, Relayed(status, self._headers, body))


class PeerConnections:
    """The connections of one broker. `tls_context` returns the context that checks brokers at https URLs; None: the
    authorities of the system are asked."""

    def __init__(self, tls_context: Callable[[], ssl.SSLContext] | None) -> None:
        self._tls_context = tls_context
        self._idle: dict[_Place, list[_Connection]] = {}
        self._asking: dict[_Connection, None] = {}
        self._is_closed = False

    @property
    def idle(self) -> int:
        """Returns how many connections wait for a request."""
        return sum(map(len, self._idle.values()))

    async def send(self, base: str, request: Request, shown: Headers, secured: Secured | None = None) -> Relayed:
        """Sends a request to the broker at `base`, with further headers. Raises Unavailable if no answer came."""
        if self._is_closed:
            raise Unavailable("the broker is stopping")
        try:
            async with asyncio.timeout(request.timeout_s):
                url = urlsplit(base)
                place = self._place(url, secured)
                connection = self._take(place) or await self._connect(place)
                return await self._ask(place, connection, request, request.head(url, shown))
        except (TimeoutError, OSError, ValueError) as error:  # of an address that is none, too
            said = f"{type(error).__name__} {error}".rstrip()
            inside = f"{base}{request.path} does not answer: {said}"
            raise Unavailable("another broker does not answer; try again", inside=inside) from error

    async def close(self) -> None:
        """Closes the connections."""
        self._is_closed = True
        for one in [*self._asking, *(one for idle in self._idle.values() for one in idle)]:
            one.close()
        await asyncio.sleep(0)  # so that they are told

    async def _ask(self, place: _Place, connection: _Connection, request: Request, head: bytes) -> Relayed:
        self._asking[connection] = None
        is_answered = False
        try:
            answer = await connection.ask(request, head)
            is_answered = True
            return answer
        finally:
            del self._asking[connection]
            if is_answered and connection.is_open:
                connection.idle_from_s = asyncio.get_running_loop().time()
                self._idle.setdefault(place, []).append(connection)
            else:
                connection.close()

    def _place(self, url: Url, secured: Secured | None) -> _Place:
        host = url.hostname or ""
        if url.scheme != "https":
            return _Place(host, url.port or 80, None, None)
        if secured:
            return _Place(host, url.port or 443, secured.context, secured.name)
        if self._tls_context is None:
            context = ssl.create_default_context()
            self._tls_context = lambda: context
        return _Place(host, url.port or 443, self._tls_context(), host)

    def _take(self, place: _Place) -> _Connection | None:
        """Returns the idle connection that was used last."""
        idle, now_s = self._idle.get(place), asyncio.get_running_loop().time()
        while idle:
            one = idle.pop()
            if one.is_open and now_s - one.idle_from_s < IDLE_S:
                return one
            one.close()
        return None

    def _forget(self, place: _Place, lost: _Connection) -> None:
        """Forgets a connection that is gone, and a place to which there is none."""
        idle = self._idle.get(place, [])
        if lost in idle:
            idle.remove(lost)
        if not idle:
            self._idle.pop(place, None)

    async def _connect(self, place: _Place) -> _Connection:
        """Connects to the first address that accepts. Raises OSError, which says if the last one has refused."""
        still_open = {known: [one for one in idle if one.is_open] for known, idle in self._idle.items()}
        self._idle = {known: idle for known, idle in still_open.items() if idle}
        loop = asyncio.get_running_loop()
        addresses = dict.fromkeys(str(info[4][0]) for info in await loop.getaddrinfo(place.host, place.port))
        failed: OSError = ConnectionError(f"{place.host} has no address")
        for address in addresses:
            try:
                async with asyncio.timeout(TLS_S if place.context else CONNECT_S):
                    _, connection = await loop.create_connection(
                        partial(_Connection, partial(self._forget, place)),
                        address,
                        place.port,
                        ssl=place.context,
                        server_hostname=place.name,
                    )
            except OSError as error:
                failed = error
            else:
                if self._is_closed:
                    connection.close()
                return connection
        raise failed
