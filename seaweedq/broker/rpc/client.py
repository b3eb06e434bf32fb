"""Calls to other brokers over HTTP: below /internal, and whole requests of clients that are handed on (relayed).

Every one carries the cluster's secret; there is no other way in. A broker that does not answer is Unavailable, and the
outcome of the request is unknown: the caller decides whether it may be repeated.

Brokers of several versions call each other. A message travels as an array: a version adds members at its end, which
have a default where they are absent, and which others ignore. A call that the other broker does not know is PeerTooOld.
An error travels with the slug of its nearest class that every version knows, and its own beside. Whatever an earlier
version would take wrongly is sent only at a level of the cluster that all brokers read.
"""

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import PeerTooOld, SeaweedqError, Unavailable, by_slug

if TYPE_CHECKING:
    import aiohttp  # a tenth of the time of a start, and a broker that is alone never needs it

SECRET_HEADER = "Seaweedq-Secret"
CONNECT_S = 2.0
_NOT_REPEATED = {"POST", "PATCH"}  # methods that aiohttp sends once
LOOK_S = 0.5
NOT_ADDED = ("Content-Type", "Accept", "Accept-Encoding", "User-Agent")  # headers that the client did not send
FORBIDDEN, NOT_FOUND = 403, 404
_FIRST_SLUGS = """
bad-request chain-damaged client-error connection-failed coordination-unavailable damaged data-folder-in-use fenced
forbidden internal invalid-import invalid-messages invalid-name invalid-request invalid-upload journal-damaged
journal-unavailable message-too-large method-not-allowed not-found not-owner not-ready offset-out-of-range
overloaded partly-taken payload-not-found payload-too-large request-timeout request-too-large segment-conflict
segment-not-found sequence-out-of-order server-problem store-unavailable subscription-exists subscription-not-found
too-many-uploads topic-being-deleted topic-exists topic-not-found unavailable unfit-store unreadable-body
unreadable-request unsupported-content-type unsupported-encoding upload-conflict upload-expired upload-incomplete
upload-mismatch upload-not-found
"""
KNOWN_TO_ALL = frozenset(_FIRST_SLUGS.split())  # the slugs of level 1
T = TypeVar("T")
Headers = Mapping[str, str]


class ErrorMessage(msgspec.Struct, array_like=True):
    """An error between brokers. `slug` is known to all versions; the error's own one is `exact`."""

    slug: str
    detail: str
    fields: dict[str, Any]
    inside: str = ""
    exact: str = ""

    @staticmethod
    def of(error: SeaweedqError) -> "ErrorMessage":
        """Returns the message for an error."""
        kinds = [kind for kind in type(error).__mro__ if issubclass(kind, SeaweedqError)]
        known = next(kind.slug for kind in kinds if kind.slug in KNOWN_TO_ALL)
        return ErrorMessage(known, error.detail, dict(error.fields), error.inside, error.slug)

    def error(self) -> SeaweedqError:
        """Returns the error of the message."""
        known = by_slug()
        kind = known.get(self.exact) or known.get(self.slug, Unavailable)
        return kind(self.detail, inside=self.inside, **self.fields)


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


def wrong_secret(url: str) -> Unavailable:
    """Returns the error for a broker that refuses this one."""
    return Unavailable("another broker refused this one: their cluster_secret settings differ", inside=url)


async def ask_while(check: Callable[[], None], call: Awaitable[T], deadline: Deadline | None = None) -> T:
    """Returns the answer of a call to another broker, unless `check` raises meanwhile, which is called every LOOK_S:
    a broker that has gone, or hangs, does not answer.

    Raises what `check` and the call do, and TimeoutError once the deadline is over. In each of these cases, and when
    this is cancelled, the call is cancelled too.
    """
    asking = asyncio.ensure_future(call)
    try:
        while not (await asyncio.wait([asking], timeout=min(LOOK_S, deadline.left_s) if deadline else LOOK_S))[0]:
            check()
            if deadline and deadline.is_over:
                raise TimeoutError
        return asking.result()
    finally:
        asking.cancel()


class Peers:
    """Connections to the other brokers, kept open. `trust` returns the context that checks those at https URLs; None:
    the authorities of the system are asked."""

    def __init__(self, secret: str, trust: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._secret = secret
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def call(self, url: str, path: str, request: Any, answer: type[T], timeout_s: float) -> T:
        """Posts a request as msgpack to `/internal/{path}`, and returns the decoded answer. Raises Unavailable where no
        answer came, PeerTooOld for a call that is not known there, else the error that the other broker raised."""
        body = await self.post(url, path, msgspec.msgpack.encode(request), timeout_s)
        try:
            return msgspec.msgpack.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise Unavailable(
                "unexpected response from another broker; does it run a different version?",
                inside=f"{url}, {path}: {error}",
            ) from error

    async def post(self, url: str, path: str, body: bytes, timeout_s: float) -> bytes:
        """Posts bytes as `call` does, and returns bytes."""
        found = await self.relay("POST", f"{url}/internal/{path}", {}, body, timeout_s)
        if found.status == 200:
            return found.body
        if found.status == FORBIDDEN:
            raise wrong_secret(url)
        if found.status == NOT_FOUND:
            raise PeerTooOld("another broker is too old for this request", inside=f"{url} does not know {path}")
        try:
            raise msgspec.msgpack.decode(found.body, type=ErrorMessage).error()
        except msgspec.DecodeError:
            raise Unavailable(f"another broker answered with status {found.status}", inside=f"{url}, {path}") from None

    async def refused(self, url: str, timeout_s: float) -> bool:
        """Whether the broker at `url` has another secret. Raises Unavailable where no answer came."""
        return (await self.relay("POST", f"{url}/internal/status", {}, b"", timeout_s)).status == FORBIDDEN

    async def relay(self, method: str, url: str, headers: Headers, body: bytes, timeout_s: float) -> Relayed:
        """Sends a request on. Raises Unavailable where no answer came."""
        import aiohttp

        if self._session is not None and self._session.closed:
            raise Unavailable("the broker is stopping")
        total = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        secret = {**headers, SECRET_HEADER: self._secret}
        try:
            async with self._client().request(
                method,
                url,
                data=body,
                headers=secret,
                timeout=total,
                allow_redirects=False,  # a redirect must not lead the secret elsewhere
                ssl=self._trust() if self._trust else True,
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
