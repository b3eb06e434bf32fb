"""Tokens, rules and limits: their CPU for a request, singles and batches beside the same with auth off, and 10,000
tokens in memory and at the start."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks import server
from benchmarks.http import per_s, request, run
from benchmarks.result import Result
from seaweedq.access.limits import NO_LIMITS, Accounts, Limits
from seaweedq.access.rights import Action, Grant
from seaweedq.access.tokens import digest_of, draw
from seaweedq.api.access.authentication import Authentication
from seaweedq.api.access.rates import Rates
from seaweedq.api.app import route_table
from seaweedq.api.request import Request
from seaweedq.broker.access.callers import AdminToken, Callers
from seaweedq.broker.access.view import AccessView
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import PrincipalRecord, TokenRecord
from seaweedq.coordination.versioned import Versioned

ROUNDS, REQUESTS = 15, 10_000
TURNS, SINGLES, BATCHES, ROWS, CONNECTIONS = 5, 6_000, 120, 1_000, 32
TOKENS = 10_000
LARGE = {"requests": 1e9, "messages": 1e9, "bytes_in": 1e12, "bytes_out": 1e12}
GRANT = Grant((Action.PUBLISH, Action.DESCRIBE, Action.CREATE), ("bench*",))


def measure(folder: Path) -> Iterator[Result]:
    """All of it."""
    yield cpu()
    yield from beside_none(folder)
    yield from tokens()


def cpu() -> Result:
    """The CPU of what a token, its rule and four limits cost a request, above one without a token and auth off."""
    clock, text = SystemClock(), draw(SystemIds())
    callers = Callers(MemoryCoordination(clock), clock, AdminToken(None))
    callers.view.take([_principal(), _token(text, 2)])
    callers.view.loaded = True
    coordination = MemoryCoordination(clock)
    catalog = Catalog(coordination, lambda topic: None)
    rates = Rates(clock, Accounts(clock.monotonic_s()), callers, catalog, 2**28)
    ways = {
        name: (Authentication(callers, name == "on", lambda request: False), _headers(text if name == "on" else None))
        for name in ("on", "off")
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, (authentication, headers) in ways.items():
            best[name] = min(best[name], _admitted_us(authentication, rates, headers))
    return Result(
        name="access, CPU of a request",
        figure=best["on"] - best["off"],
        unit="µs",
        target=4.0,
        better="lower",
        note=f"a token, its rule, and limits of requests, messages and bytes, less the same with auth off; best of "
        f"{ROUNDS}",
    )


def _admitted_us(authentication: Authentication, rates: Rates, headers: list[tuple[bytes, bytes]]) -> float:
    common = {"type": "http", "method": "POST", "path": "/v1/topics/bench/messages", "query_string": b""}
    scopes: list[dict[str, Any]] = [{**common, "headers": headers} for _ in range(REQUESTS)]
    find = route_table().find
    begun = time.process_time()
    for scope in scopes:
        request = Request(scope, _no_body)
        request.route, request.resource, request.names = find(request.method, request.path)
        with suppress(StopIteration):  # it need not wait: only the look-up of a new token does
            authentication.authenticate(request).send(None)
        authentication.authorise(request)
        if request.caller.limits is not NO_LIMITS:
            rates.admit(request)
    return (time.process_time() - begun) / REQUESTS * 1e6


async def _no_body() -> Any:
    raise AssertionError


def _headers(token: str | None) -> list[tuple[bytes, bytes]]:
    usual = [(b"host", b"127.0.0.1:8080"), (b"content-type", b"application/json"), (b"content-length", b"120")]
    return usual + ([(b"authorization", f"Bearer {token}".encode())] if token else [])


def beside_none(folder: Path) -> Iterator[Result]:
    """Singles and batches with a token that has limits, in turns with auth off."""
    with server.broker(folder / "on", "--auth", "required") as on, server.broker(folder / "off") as off:
        token = _issued(on.port, (folder / "on" / "admin-token").read_text())
        run(off.port, 1, lambda opened: opened[0].ask_json("PUT", "/v1/topics/bench", {}))
        yield from _turns("singles", on.port, off.port, token, [single(n) for n in range(SINGLES)], 0.95)
        yield from _turns("batches", on.port, off.port, token, [_batch(n) for n in range(BATCHES)], 0.99)


def _turns(name: str, on: int, off: int, token: str, bodies: list[bytes], target: float) -> Iterator[Result]:
    found: list[tuple[float, float]] = []
    for turn in range(2 * TURNS):
        ways = [(on, token), (off, "")]
        rates = {port: _per_s(port, given, bodies) for port, given in (ways if turn % 2 else reversed(ways))}
        found.append((rates[on], rates[off]))
    figure, limit = (max(column) for column in zip(*found, strict=True))
    yield Result(
        name=f"access, {name}",
        figure=figure,
        unit="requests/s",
        limit=limit,
        limit_is="the same with auth off, in turns",
        target=target,
        target_of="ratio",
        note=f"{CONNECTIONS} connections; best of {2 * TURNS} turns",
    )


def _per_s(port: int, token: str, bodies: list[bytes]) -> float:
    shown = [f"authorization: Bearer {token}"] if token else []
    path = "/v1/topics/bench/messages"
    prepared = [request(path, body, "application/json", more=shown) for body in bodies]
    return float(run(port, CONNECTIONS, lambda opened: per_s(opened, prepared)))


def _issued(port: int, admin: str) -> str:
    """A token of a principal with limits that are never reached."""
    grants = [{"actions": list(GRANT.actions), "topics": list(GRANT.topics)}]
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {admin.strip()}"}
    ) as http:
        http.put("/v1/principals/bench", json={"grants": grants, "limits": LARGE}).raise_for_status()
        http.put("/v1/topics/bench", json={}).raise_for_status()
        return str(http.post("/v1/tokens", json={"principal": "bench"}).raise_for_status().json()["token"])


def single(number: int) -> bytes:
    return b'{"key":"key-%08d","value":{"n":%d,"noise":"%b"}}' % (number, number, os.urandom(16).hex().encode())


def _batch(number: int) -> bytes:
    return b'{"messages":[' + b",".join(single(number * ROWS + n) for n in range(ROWS)) + b"]}"


def tokens() -> Iterator[Result]:
    """What 10,000 tokens cost a broker in memory, and at its start."""
    changes = [_principal(), *(_token(draw(SystemIds()), 2 + n) for n in range(TOKENS))]
    view = AccessView(MemoryCoordination(SystemClock()))
    before, begun = _memory_bytes(), time.process_time()
    view.take(changes)
    took_s, after = time.process_time() - begun, _memory_bytes()
    assert len(view.tokens) == TOKENS
    yield Result(
        name="access, 10,000 tokens, memory",
        figure=(after - before) / 2**20,
        unit="MiB",
        target=20,
        better="lower",
        note="resident memory of the view",
    )
    yield Result(
        name="access, 10,000 tokens, start",
        figure=took_s,
        unit="s",
        target=0.2,
        better="lower",
        note="CPU to decode and index their records",
    )


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _principal() -> Change:
    record = PrincipalRecord("u" * 32, (GRANT,), 0, False, Limits(**LARGE))
    return Change(keys.PRINCIPALS.key("p"), keys.PRINCIPALS.encode(Versioned.new(record)), 1)


def _token(text: str, revision: int) -> Change:
    record = TokenRecord(digest_of(text.encode()).hex(), "p", "u" * 32, 0, "admin", 2**60, note="nightly run")
    return Change(keys.TOKENS.key(text.split("_")[1]), keys.TOKENS.encode(Versioned.new(record)), revision)
