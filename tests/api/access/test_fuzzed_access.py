"""Tokens, paths and hosts as strangers write them: however one is changed, nobody gets further by it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from seaweedq.api.routes import SOCKET, Kind
from seaweedq.errors import MethodNotAllowed, RouteNotFound
from tests.support.brokers import inside
from tests.support.http.requests import every, find
from tests.support.http.with_tokens import Http, access

pytestmark = pytest.mark.brokers

NAMES = {
    "topic": "t",
    "subscription": "s",
    "segment": "0",
    "schema": "0",
    "offset": "0",
    "upload": "u",
    "principal": "p",
    "token": "0",
    "denial": "sub-0",
    "writer": "w",
    "number": "0",
}
KEPT = [
    (method, path.format(**NAMES).replace("*", "status"))
    for method, path, rule in every()
    if method != SOCKET and rule.kind is not Kind.OPEN
]
REFUSED = {400, 401, 403, 404, 405, 411, 421, 422}
PLACES = 2  # of each path in which each change is made
Ask = Callable[..., Awaitable[int]]
CHANGES: list[Callable[[str, int], str]] = [
    lambda path, at: path[:at] + "/" + path[at:],
    lambda path, at: path[:at] + f"%{ord(path[at]):02x}" + path[at + 1 :],
    lambda path, at: path[:at] + f"%25{ord(path[at]):02x}" + path[at + 1 :],
    lambda path, at: path[:at] + path[at].swapcase() + path[at + 1 :],
    lambda path, at: path[:at] + "/./" + path[at:],
    lambda path, at: path[:at] + "/x/../" + path[at:],
    lambda path, at: path[:at] + "%2f" + path[at:],
    lambda path, at: path[:at] + "%5c" + path[at:],
    lambda path, at: path[:at] + "%00" + path[at:],
    lambda path, at: path[:at] + ";x=1" + path[at:],
    lambda path, at: path[:at] + "%c0%af" + path[at:],
    lambda path, at: path[:at] + "\u2215" + path[at:],
    lambda path, at: f"http://localhost{path}",
    lambda path, at: f"//localhost{path}",
    lambda path, at: f"/console/..{path}",
    lambda path, at: f"/static-offline-docs/../..{path}",
    lambda path, at: f"/healthz{path}",
    lambda path, at: path + "/",
    lambda path, at: path + "%20",
]


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Http]:
    async with access(tmp_path, audit="none") as found:
        await found.principal("nothing", [])
        yield found


def asking(http: Http) -> Ask:
    """Sends a request as it stands on the wire, past all clients that would mend it. Returns the status."""

    async def ask(method: str, raw: str, token: str | None = None, host: bytes = b"localhost") -> int:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", host), (b"content-type", b"application/json"), (b"content-length", b"2")]
        if token is not None:
            headers.append((b"authorization", b"Bearer " + token.encode("utf-8", "surrogatepass")))
        wire, _, query = raw.partition("?")
        path = unquote(wire)
        scope = {"type": "http", "method": method, "path": path, "raw_path": wire.encode(), "http_version": "1.1"}
        more = {"query_string": query.encode(), "headers": headers, "extensions": {}, "scheme": "http"}
        await asyncio.wait_for(http.together.apps["http://b0"]({**scope, **more}, receive, send), 10)
        status: int = sent[0]["status"]
        return status

    return ask


def kind_of(method: str, path: str) -> Kind | None:
    """The kind of right that a route asks for, None if there is no route."""
    try:
        return find(method, path).route.kind
    except (RouteNotFound, MethodNotAllowed):
        return None


async def test_no_other_spelling_of_a_path_gets_further(http: Http) -> None:
    ask, drawn, tried = asking(http), random.Random(15), 0
    token = await http.token(principal="nothing")
    for method, path in KEPT:
        for change in CHANGES:
            for _ in range(PLACES):
                raw = change(path, drawn.randrange(1, len(path)))
                kind = kind_of(method, unquote(raw))
                for shown in (None, token):
                    status, tried = await ask(method, raw, shown), tried + 1
                    is_open = kind is Kind.OPEN
                    may_know = kind is Kind.KNOWN and shown is not None
                    assert status in REFUSED or ((is_open or may_know) and status < 500), (method, raw, status)
                    assert is_open or may_know or status != 200, (method, raw, shown is None)
    assert tried > 3000
    assert not inside.catalog(http.together.brokers[0]).names()
    assert inside.budget(http.together.brokers[0]).in_flight == 0


async def test_no_token_but_the_very_one_counts(http: Http) -> None:
    ask, drawn = asking(http), random.Random(16)
    token = http.admin
    assert await ask("GET", "/v1/principals", token) == 200
    made = [token[:at] for at in range(0, len(token), 7)]
    made += [token + more for more in ("0", " x", "\x00", ",", "=", token, "\u00e9")]
    made += [token.upper(), token.swapcase(), token[::-1], "sq1_" * 20, "sq1_" + "0" * 8000, "", " ", "*", "null"]
    for _ in range(300):
        at = drawn.randrange(len(token))
        other = chr(drawn.randrange(33, 0x250))
        if other != token[at]:
            made.append(token[:at] + other + token[at + 1 :])
    found = {await ask("GET", "/v1/principals", one) for one in made}
    assert found == {401}


async def test_no_other_host_gets_further(http: Http) -> None:
    ask = asking(http)
    hosts = [
        b"evil.example",
        b"b0.evil.example",
        b"b0@evil.example",
        b"b0/",
        b"b0:x",
        b"[::1",
        b"b0,b0",
        b"\xff",
        b"b 0",
    ]
    for host in hosts:
        for path in ("/v1/whoami", "/v1/principals", "/internal/status", "/", "/console/index.html"):
            assert await ask("GET", path, http.admin, host) in {400, 405, 421}, (host, path)
