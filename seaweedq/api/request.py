"""A request as one object, with the findings of the steps of its way (app); bare answers; and the counts of answers by
route and status, with the durations of the hot routes, for metrics.

Each step writes its own members: `sender` the look at peers, `route`, `resource` and `names` the match, `caller`
and `is_relayed` the authentication, `meter` the limits, `outcome`, `has_created` and `issued` the handlers.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl

from seaweedq.access.limits import Account
from seaweedq.access.rights import NOBODY, Caller
from seaweedq.api.routes import NO_RESOURCE, NO_ROUTE, SOCKET, Route
from seaweedq.broker.access import ClientCertificate
from seaweedq.clock import Clock, Durations, by_outcome
from seaweedq.errors import InvalidRequest, UnreadableBody

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON_HEADERS = {"content-type": "application/json"}
MAX_PARAMETERS = 100
SHOWN = 100  # characters of a name that an error shows
CONNECTION = "seaweedq.connection"  # among the extensions of a scope
ANONYMOUS_KEY = "anonymous"
OK, WAITED, EMPTY = "ok", "waited", "empty"  # outcomes of a request that is answered with a status below 400
_WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


class Connection(Protocol):
    """The connection of a request, for streams, which send as fast as their client reads. `account` is that of the
    principal to whose limit of connections it counts."""

    account: Account | None
    certificate: ClientCertificate | None  # that the client has shown in its handshake

    def end_after_answer(self) -> None:
        """Has the answer to the request of now be the last one."""

    async def drained(self) -> None:
        """Returns once the client has taken nearly all that was sent, or has gone."""

    def abort(self) -> None:
        """Ends the connection, whatever was not taken."""

    def stay(self) -> None:
        """Begins a request that lasts for as long as its client likes. Raises Overloaded if there are too many."""

    def go(self) -> None:
        """Ends such a request."""

    def exempt(self) -> None:
        """Counts for its address no more: a broker of this cluster is at its other end."""


class Meter(Protocol):
    """Counts the use of limits by a request (access/rates)."""

    def spend(self, limit: str, amount: float) -> None:
        """Takes a cost of a request that was let in."""

    def take_now(self, limit: str, amount: float) -> None:
        """Takes a cost of a request beyond those of its route. Raises RateLimited."""

    def waiting(self) -> AbstractContextManager[None]:
        """Counts a pull that waits. Raises RateLimited."""

    async def sent(self, message: MutableMapping[str, Any]) -> None:
        """Counts a part that was sent, and waits until it is paid for if more follow."""


class ClientGone(Exception):
    """Raised if the client went away before its request was complete: nobody is there to answer."""


class Request:
    """One request, of HTTP or for a WebSocket, whose `method` is SOCKET then."""

    __slots__ = (
        "_query",
        "at_peer_port",
        "caller",
        "connection",
        "denied_for",
        "has_created",
        "headers",
        "is_relayed",
        "is_socket",
        "is_watched",
        "issued",
        "meter",
        "method",
        "names",
        "outcome",
        "path",
        "query_string",
        "raw_path",
        "receive",
        "resource",
        "route",
        "scope",
        "sender",
    )

    def __init__(self, scope: Scope, receive: Receive, at_peer_port: bool = False) -> None:
        self.scope = scope
        self.receive = receive
        self.is_socket: bool = scope["type"] == "websocket"
        self.method: str = SOCKET if self.is_socket else scope["method"]
        self.path: str = scope["path"]  # decoded
        self.raw_path: bytes = scope.get("raw_path") or b""  # as it was sent, before percent-decoding
        self.query_string: bytes = scope.get("query_string", b"")  # as it was sent
        # By (lower-case) name, joined if one is repeated (RFC 9110, 5.3). The parser leaves blanks behind a value.
        self.headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            value = value.strip(b" \t")
            self.headers[name] = self.headers[name] + b", " + value if name in self.headers else value
        extensions = scope.get("extensions")
        self.connection: Connection | None = extensions.get(CONNECTION) if extensions else None
        self.at_peer_port = at_peer_port
        self.sender: str | None = None  # the broker that has sent it, empty: none; None: nobody has looked yet
        self.route: Route = NO_ROUTE
        self.resource = NO_RESOURCE  # of the route's action
        self.names: tuple[str, ...] = ()  # in its path
        self.caller: Caller = NOBODY
        self.is_relayed = False  # by another broker, which has judged and counted it
        self.meter: Meter | None = None  # if its caller, or its topic, has limits
        self.outcome = OK
        self.has_created = False  # a topic, by a publish or an upload
        self.issued: str | None = None  # the id of a new token
        self.is_watched = False  # by the audit, which is told of it at its end
        self.denied_for: str | None = None  # the error with which a change was denied
        self._query: dict[str, str] | None = None

    def derived(self, method: str, path: str, headers: bool = True) -> "Request":
        """Returns a request of the same caller for another path, as if it had come so."""
        scope = {**self.scope, "type": "http", "method": method, "path": path, "raw_path": path.encode()}
        scope["query_string"] = b""
        if not headers:
            scope["headers"] = ()
        made = Request(scope, self.receive, self.at_peer_port)
        made.caller, made.sender, made.is_relayed = self.caller, self.sender, self.is_relayed
        return made

    @property
    def key(self) -> str:
        """The name under which the caller's use is counted: a principal's uid, which no namesake has."""
        return self.caller.uid or self.caller.principal or ANONYMOUS_KEY

    def header(self, name: bytes) -> str | None:
        """Returns the header of that (lower-case) name, as latin-1."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def content_length(self) -> int | None:
        """The stated length, if there is one (the server has checked that it is a number)."""
        value = self.headers.get(b"content-length")
        return int(value) if value is not None and value.isdigit() else None

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters. Raises UnreadableBody if the bytes are not UTF-8."""
        if self._query is None:
            self._query = dict(_pairs(self.query_string)) if self.query_string else {}
        return self._query

    def check_query(self) -> None:
        """Raises InvalidRequest if a parameter is repeated: clients, proxies and brokers would take different ones for
        the one that counts."""
        if b"&" not in self.query_string:
            return
        names = [name for name, _ in _pairs(self.query_string)]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise InvalidRequest(
                f"the parameter {repeated[:SHOWN]!r} appears {names.count(repeated)} times; send it once",
                field=repeated[:SHOWN],
            )

    def accepts(self, media: str) -> bool:
        """Returns whether a client takes a media type (RFC 9110, 12.5.1). One that states nothing takes any."""
        stated = self.header(b"accept")
        if stated is None or not stated.strip():
            return True
        return _weight(stated, (media, f"{media.partition('/')[0]}/*", "*/*")) > 0

    def asks_for(self, media: str) -> bool:
        """Returns whether a client asks for a media type by its name."""
        return _weight(self.header(b"accept") or "", (media,)) > 0

    def spend(self, limit: str, amount: float) -> None:
        """Takes a cost of the request after it was let in."""
        if self.meter is not None:
            self.meter.spend(limit, amount)

    def take(self, limit: str, amount: float) -> None:
        """Takes a cost of the request beyond those of its route. Raises RateLimited."""
        if self.meter is not None:
            self.meter.take_now(limit, amount)

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Runs a request that lasts for as long as its client likes. Raises Overloaded if too many do."""
        if self.connection is None:
            yield
            return
        self.connection.stay()
        try:
            yield
        finally:
            self.connection.go()

    async def until_gone(self) -> None:
        """Returns once the client has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`, which is cancelled if the client disconnects, so that nothing is leased to a
        disconnected client. Raises ClientGone."""
        working, gone = asyncio.create_task(work), asyncio.create_task(self.until_gone())
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ClientGone
        finally:
            working.cancel()
            gone.cancel()
            del working, gone  # an error refers to this frame, and its task to the error


class Answer(NamedTuple):
    """An answer that is sent in one piece."""

    status: int
    body: bytes | memoryview = b""
    headers: Mapping[str, str] = JSON_HEADERS


def release_connection(connection: Connection) -> None:
    """Has a connection that has ended, or is another principal's now, count no more to the limit of its account."""
    if connection.account is not None:
        connection.account.connections -= 1
        connection.account = None


async def send(answer: Answer, out: Send) -> None:
    """Sends an answer."""
    await out(start_of(answer))
    await out({"type": "http.response.body", "body": answer.body})


def start_of(answer: Answer) -> MutableMapping[str, Any]:
    """Returns the first message of an answer."""
    length = b"content-length", b"%d" % len(answer.body)
    if answer.headers is JSON_HEADERS:
        headers = [(b"content-type", b"application/json"), length]
    else:
        headers = [*(_encoded(name, value) for name, value in answer.headers.items()), length]
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


def headers_of(message: MutableMapping[str, Any]) -> dict[str, str]:
    """Returns the headers of the start of an answer."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}


@lru_cache(1000)
def _encoded(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode("latin-1"), value.encode("latin-1")


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise UnreadableBody(f"the query string is not valid: {error}") from None


def _weight(stated: str, ranges: tuple[str, ...]) -> float:
    """Returns the weight of the first of the ranges that is stated; 0 if none is. A weight that cannot be read is 1, as
    if there were none."""
    weights: dict[str, float] = {}
    for one in stated.split(","):
        named, *parameters = (part.strip().lower() for part in one.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        weights[named] = max(weights.get(named, 0.0), float(weight) if _WEIGHT.fullmatch(weight) else 1.0)
    return next((weights[one] for one in ranges if one in weights), 0.0)


REFUSED, FAILED = "refused", "failed"
SWITCHED = 101  # the status of a request that became a WebSocket


class Traffic:
    """The counts of one broker."""

    def __init__(self, clock: Clock, routes: Iterable[Route]) -> None:
        self.responses: Counter[tuple[str, str, int]] = Counter()
        self._clock = clock
        self._timed = {one: by_outcome(OK, *one.outcomes, REFUSED, FAILED) for one in routes if one.timed}
        self.durations: dict[str, dict[str, Durations]] = {one.timed: found for one, found in self._timed.items()}

    def note(self, request: Request, status: int, began_s: float) -> None:
        """Counts an answer."""
        if request.is_relayed:
            return
        route = request.route
        self.responses["other" if route is NO_ROUTE else request.method, route.path, status] += 1
        timed = self._timed.get(route)
        if timed is not None:
            outcome = request.outcome if status < 400 else REFUSED if status < 500 else FAILED
            timed[outcome].add(self._clock.monotonic_s() - began_s)
