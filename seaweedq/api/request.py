"""Bare HTTP on ASGI: headers, parameters and answers of bytes. The hot routes stand on this directly.

Reads the Accept header (RFC 9110, 12.5.1): whether a client takes a media type.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl

from seaweedq.access.accounts import Account
from seaweedq.errors import InvalidRequest, UnreadableBody

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_HEADERS = "seaweedq.headers"  # the key in a scope of what was read of its headers
JSON_HEADERS = {"content-type": "application/json"}
MAX_PARAMETERS = 100
SHOWN = 100  # characters of a name that an error shows


CONNECTION = "seaweedq.connection"  # among the extensions of a scope


class Connection(Protocol):
    """The connection of a request, for those who send for as long as their client takes it. `account` is that of the
    principal to whose limit of connections it counts."""

    account: Account | None

    async def drained(self) -> None:
        """Returns once the client has taken nearly all that was sent, or has gone."""

    def abort(self) -> None:
        """Ends the connection, whatever was not taken."""

    def stay(self) -> None:
        """Begins a request that lasts for as long as its client likes. Raises Overloaded where there are too many."""

    def go(self) -> None:
        """Ends such a request."""

    def exempt(self) -> None:
        """Counts for its address no more: a broker of this cluster is at its other end."""


class ClientGone(Exception):
    """Raised where the client went away before its request was complete: nobody is there to answer."""


@dataclass(slots=True)
class Answer:
    """An answer that is sent in one piece."""

    status: int
    body: bytes | memoryview = b""
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_HEADERS)


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """Returns a request's headers by their (lower-case) names, joined where one is repeated (RFC 9110, 5.3), without
    blanks around them: the parser leaves those behind a value. They are read once a request: trailers, which come
    later, are no headers."""
    found: dict[bytes, bytes] | None = scope.get(_HEADERS)
    if found is None:
        found = scope[_HEADERS] = {}
        for name, value in scope["headers"]:
            value = value.strip(b" \t")
            found[name] = found[name] + b", " + value if name in found else value
    return found


def header(scope: Scope, name: bytes) -> str | None:
    """Returns the header of that (lower-case) name, as latin-1."""
    value = headers_of(scope).get(name)
    return None if value is None else value.decode("latin-1")


def query(scope: Scope) -> dict[str, str]:
    """Returns the query's parameters. Raises UnreadableBody where the bytes are not UTF-8."""
    return dict(_pairs(scope))


def check_query(scope: Scope) -> None:
    """Raises InvalidRequest where a parameter is repeated: clients, proxies and brokers would take different ones for
    the one that counts."""
    if b"&" not in scope["query_string"]:
        return
    names = [name for name, _ in _pairs(scope)]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(
            f"the parameter {repeated[:SHOWN]!r} is given {names.count(repeated)} times; give it once",
            field=repeated[:SHOWN],
        )


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    raw = scope["query_string"]
    if not raw:
        return []
    try:
        return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise UnreadableBody(f"the query string is not valid: {error}") from None


def release_connection(connection: Connection) -> None:
    """Has a connection that has ended, or is another principal's now, count no more to the limit of its account."""
    if connection.account is not None:
        connection.account.connections -= 1
        connection.account = None


def connection_of(scope: Scope) -> Connection | None:
    """Returns the connection of a request; None where no server is between it and its client."""
    found: Connection | None = (scope.get("extensions") or {}).get(CONNECTION)
    return found


@contextmanager
def staying(scope: Scope) -> Iterator[None]:
    """Runs what may last for as long as a client likes. Raises Overloaded where too many connections have such."""
    connection = connection_of(scope)
    if connection is None:
        yield
        return
    connection.stay()
    try:
        yield
    finally:
        connection.go()


async def send(answer: Answer, out: Send) -> None:
    """Sends an answer."""
    await out(start_of(answer))
    await out({"type": "http.response.body", "body": answer.body})


def start_of(answer: Answer) -> MutableMapping[str, Any]:
    """Returns the first message of an answer."""
    headers = [_encoded(name, value) for name, value in answer.headers.items()]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


@lru_cache(1000)
def _encoded(name: str, value: str) -> tuple[bytes, bytes]:
    return name.encode("latin-1"), value.encode("latin-1")


async def until_gone(receive: Receive) -> None:
    """Returns once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def content_length(scope: Scope) -> int | None:
    """Returns the stated length, if there is one (the server has checked that it is a number)."""
    value = headers_of(scope).get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None


_WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")


def accepts(scope: Scope, media: str) -> bool:
    """Returns whether a client takes a media type. One that states nothing takes any."""
    stated = header(scope, b"accept")
    if stated is None or not stated.strip():
        return True
    return _weight(stated, (media, f"{media.partition('/')[0]}/*", "*/*")) > 0


def names(scope: Scope, media: str) -> bool:
    """Returns whether a client asks for a media type by its name."""
    return _weight(header(scope, b"accept") or "", (media,)) > 0


def _weight(stated: str, ranges: tuple[str, ...]) -> float:
    """Returns the weight of the first of the ranges that is stated; 0 where none is. A weight that cannot be read is
    1, as if there were none."""
    weights: dict[str, float] = {}
    for one in stated.split(","):
        named, *parameters = (part.strip().lower() for part in one.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        weights[named] = max(weights.get(named, 0.0), float(weight) if _WEIGHT.fullmatch(weight) else 1.0)
    return next((weights[one] for one in ranges if one in weights), 0.0)
