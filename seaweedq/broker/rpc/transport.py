"""Requests to other brokers over HTTP, each sent once, on connections that are kept open. Nothing here knows who may
ask for what (broker/rpc/client)."""

import errno
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from seaweedq.errors import Unavailable

if TYPE_CHECKING:
    import aiohttp  # a tenth of the time of a start, and a broker that is alone never needs it

CONNECT_S = 2.0
_NOT_REPEATED = {"POST", "PATCH"}  # methods that aiohttp sends once
NOT_ADDED = ("Content-Type", "Accept", "Accept-Encoding", "User-Agent")  # headers that the client did not send
Headers = Mapping[str, str]


class Secured(NamedTuple):
    """TLS of a connection to a port for brokers: the context, and the name that the other side must show."""

    context: ssl.SSLContext
    name: str


@dataclass(frozen=True, slots=True)
class Relayed:
    """Another broker's answer to a client's request."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)


async def _once(request: "aiohttp.ClientRequest", send: "aiohttp.ClientHandlerType") -> "aiohttp.ClientResponse":
    """Sends a request once. Of methods that it takes for idempotent aiohttp repeats those that got no answer on a
    connection that was kept open; the repeat of a DELETE that worked is answered 404, and nobody could know why."""
    import aiohttp

    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # is not repeated
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientError(f"{type(error).__name__} {error}".rstrip()) from error


def is_refused(error: Unavailable) -> bool:
    """Tells whether a call got no answer because the other machine refused the connection: nobody listens there."""
    cause = error.__cause__
    inner = getattr(cause, "os_error", cause)  # of aiohttp's error, which may stand for several addresses
    return isinstance(inner, OSError) and inner.errno == errno.ECONNREFUSED


class Transport:
    """The connections of one broker. `trust` returns the context that checks brokers at https URLs."""

    def __init__(self, trust: Callable[[], ssl.SSLContext] | None) -> None:
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: str, headers: Headers, body: bytes, timeout_s: float, secured: Secured | None = None
    ) -> Relayed:
        """Sends a request. Raises Unavailable where no answer came."""
        import aiohttp
        from yarl import URL

        if self._session is not None and self._session.closed:
            raise Unavailable("the broker is stopping")
        total = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        try:
            async with self._client().request(
                method,
                URL(url, encoded=True),  # as it is: a stamp covers it
                data=body,
                headers=headers,
                timeout=total,
                allow_redirects=False,  # a redirect must not lead the request elsewhere
                ssl=secured.context if secured else self._trust() if self._trust else True,
                server_hostname=secured.name if secured else None,
                middlewares=() if method in _NOT_REPEATED else (_once,),
            ) as response:
                return Relayed(response.status, dict(response.headers), await response.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            said = f"{type(error).__name__} {error}".rstrip()
            raise Unavailable(
                "another broker does not answer; try again", inside=f"{url} does not answer: {said}"
            ) from error

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None:
            # No limit: long polls that are handed on must not keep acks waiting; clients' own connections bound them.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30, use_dns_cache=True)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, skip_auto_headers=NOT_ADDED
            )
        return self._session
