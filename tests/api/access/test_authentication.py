"""The matrix of routes and callers: every route that can be reached has a rule, which lets in whom it should. A
remembered token loses its right with the change that takes it, as one that is shown first. Requests of
brokers are told from those of clients."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from seaweedq.access.rights import ANONYMOUS, EVERYTHING, OF_THE_CLUSTER, Action, Caller, Grant, Resource, Rights
from seaweedq.access.tokens import digest_of, draw
from seaweedq.api.access import authentication
from seaweedq.api.access.authentication import Authentication, PeerRequests, header_of
from seaweedq.api.app import Application
from seaweedq.api.openapi import check_rights
from seaweedq.api.problems import Refusals
from seaweedq.api.request import CONNECTION, Request
from seaweedq.api.routes import OPEN, SOCKET, Kind, Router, RouteTable
from seaweedq.broker.access.callers import AdminToken, Callers
from seaweedq.broker.rpc.peer_sessions import STAMP_HEADER, Refusal
from seaweedq.broker.rpc.peer_sessions import refused as refused_stamp
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import PrincipalRecord, TokenRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    Forbidden,
    MethodNotAllowed,
    NotReady,
    PeerRefused,
    RouteNotFound,
    SeaweedqError,
    Unauthenticated,
    UnreadableRequest,
)
from tests.broker.access.test_callers import Time
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.http.requests import TABLE, every, find, matched, request_of

FROM_A_BROKER = STAMP_HEADER.lower().encode()
NAMES = {
    "topic": "t1",
    "subscription": "s1",
    "segment": "0",
    "schema": "0",
    "offset": "0",
    "upload": "u",
    "principal": "p",
}
NAMES |= {"writer": "w", "number": "0", "denial": "sub-0"}
ALWAYS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FOO")


def filled(path: str, **names: str) -> str:
    return path.format(**{**NAMES, "token": "0" * 16, **names}).replace("*", "x")


ROUTES = [(method, filled(path), rule) for method, path, rule in every()]


def scope_of(method: str, path: str, *headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    kind = "websocket" if method == SOCKET else "http"
    return {"type": kind, "method": method, "path": path, "query_string": b"", "headers": list(headers), **more}


class NoLookups(Callers):
    """Callers that look up no token."""

    async def learn(self, text: bytes) -> bool:
        return False


class SomeCallers(NoLookups):
    """Callers that a test has made up, by their tokens."""

    def __init__(self, known: dict[str, Caller]) -> None:
        self.known = {digest_of(text.encode()): caller for text, caller in known.items()}

    def on_change(self, listener: object) -> None:
        pass

    def find(self, digest: bytes) -> Caller | None:
        return self.known.get(digest)

    @property
    def view(self) -> Any:
        return type("Loaded", (), {"loaded": True, "anonymous": ANONYMOUS})

    @view.setter
    def view(self, view: object) -> None:
        raise AssertionError


def made(needs_token: bool = True, **known: Caller) -> Authentication:
    return Authentication(SomeCallers(known), needs_token, lambda request: request.headers.get(FROM_A_BROKER) == b"1")


def admitted(judging: Authentication, request: Request) -> Request:
    """The request behind its match, authentication and authorisation."""
    with pytest.raises(StopIteration):  # without a wait
        judging.authenticate(matched(request)).send(None)
    judging.authorise(request)
    return request


def verdict(judging: Authentication, method: str, path: str, token: str | None = None) -> int:
    """The status of a refusal; 200 for none."""
    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    try:
        admitted(judging, request_of(method, path, *headers))
    except Unauthenticated:
        return 401
    except Forbidden:
        return 403
    return 200


def with_rights(*grants: Grant) -> Caller:
    return Caller("p", "t", (Rights(grants),))


@pytest.mark.parametrize(("method", "path", "rule"), ROUTES, ids=[f"{m} {p}" for m, p, _ in ROUTES])
def test_each_route_and_each_caller(method: str, path: str, rule: Any) -> None:
    alone = {str(one): with_rights(Grant((one,), ("t*",), ("s*",))) for one in Action}
    elsewhere = {f"{one}2": with_rights(Grant((one,), ("other",), ("s*",))) for one in Action}
    judging = made(**alone, **elsewhere, admin=Caller("admin", "t", (EVERYTHING,)), none=with_rights())
    if rule.kind in (Kind.OPEN, Kind.OWN_RIGHT):
        assert {verdict(judging, method, path, token) for token in (None, "wrong", "none", "admin")} == {200}
        return
    assert verdict(judging, method, path) == 401
    assert {verdict(judging, method, path, token) for token in ("wrong", "sq1_wrong")} == {401}
    assert verdict(judging, method, path, "admin") == 200
    assert verdict(judging, method, path, "none") == (200 if rule.kind is Kind.KNOWN else 403)
    for one in Action:
        allowed = rule.kind is Kind.KNOWN or rule.action == one
        assert verdict(judging, method, path, str(one)) == (200 if allowed else 403), one
        there = allowed and (rule.kind is Kind.KNOWN or one in OF_THE_CLUSTER)
        assert verdict(judging, method, path, f"{one}2") == (200 if there else 403), one
    assert verdict(made(needs_token=False), method, path) == 200
    assert verdict(made(needs_token=False), method, path, "sq1_wrong") == 401, "a wrong token is never taken for none"
    assert verdict(made(needs_token=False), method, path, "mine") == 200, "a proxy's token is none of ours"


def test_every_action_has_a_route() -> None:
    assert {rule.action for _, _, rule in ROUTES if rule.action} == set(Action)


@pytest.mark.parametrize("action", [Action.CONSUME, Action.SUBSCRIBE, Action.DESCRIBE])
def test_another_subscription(action: Action) -> None:
    judging = made(p=with_rights(Grant((action,), ("t1",), ("other",))))
    named = [(m, p, r) for m, p, r in ROUTES if r.action == action and r.has_subscription]
    assert named
    assert {verdict(judging, method, path, "p") for method, path, _ in named} == {403}


def test_names_are_judged_decoded_and_are_no_others() -> None:
    judging = made(p=with_rights(Grant((Action.PUBLISH,), ("a b",)), Grant((Action.READ,), ("é*",))))
    assert verdict(judging, "POST", "/v1/topics/a b/messages", "p") == 200
    assert verdict(judging, "GET", "/v1/topics/été/stream", "p") == 200
    for path in ("/v1/topics/a%20b/messages", "/v1/topics/A B/messages", "/v1/topics/a b /messages"):
        assert verdict(judging, "POST", path, "p") == 403
    for path in (
        "//v1/topics/a b/messages",
        "/v1/topics/a b/messages/",
        "/v1//topics/a b/messages",
        "/v1/topics//messages",
        "/V1/topics/a b/messages",
        "/v1/topics/x/../a b/messages",
        "http://h/v1/topics/a b/messages",
        "",
    ):
        with pytest.raises(RouteNotFound):
            admitted(judging, request_of("POST", path))


def test_what_has_no_rule_has_no_route_for_nobody() -> None:
    judging = made(admin=Caller("admin", "t", (EVERYTHING,)))
    for _, path, _ in every():
        allowed = {method for method, one, _ in every() if one == path}
        for method in {*ALWAYS, SOCKET} - allowed:
            with pytest.raises(RouteNotFound if allowed == {SOCKET} or method == SOCKET else MethodNotAllowed):
                admitted(judging, request_of(method, filled(path), (b"authorization", b"Bearer admin")))


def test_where_tokens_are_taken() -> None:
    caller = Caller("p", "t", (EVERYTHING,))
    judging = made(t=caller, other=caller)

    def found(*headers: tuple[bytes, bytes], method: str = "GET", **more: Any) -> str | None:
        return admitted(judging, request_of(method, "/v1/topics/t1/stream", *headers, **more)).caller.principal

    for shown in (b"Bearer t", b"bearer t", b"BEARER   t ", b"Bearer t\t"):
        assert found((b"authorization", shown)) == "p"
    assert found(method=SOCKET, subprotocols=["seaweedq.v1", "bearer.t"]) == "p"
    assert found((b"authorization", b"Bearer t"), method=SOCKET, subprotocols=[]) == "p"
    for strange in (
        [(b"authorization", b"Basic t")],
        [(b"authorization", b"t")],
        [(b"x-authorization", b"Bearer t")],
        [(b"authorization", b"Bearer t, Bearer t")],
        [(b"authorization", b"Bearer ")],
        [(b"cookie", b"token=t")],
    ):
        with pytest.raises(Unauthenticated):
            found(*strange)
    with pytest.raises(Unauthenticated):
        found(query_string=b"token=t&access_token=t")
    with pytest.raises(Unauthenticated):
        found(subprotocols=["bearer.t"])  # of a request that is no WebSocket
    for twice in (b"Bearer t", b"Bearer other", b"Basic x"):
        with pytest.raises(UnreadableRequest):
            found((b"authorization", b"Bearer t"), (b"authorization", twice))
    with pytest.raises(UnreadableRequest):
        found(method=SOCKET, subprotocols=["bearer.t", "bearer.t"])
    for one, another in (("t", "other"), ("other", "t"), ("t", "t"), ("t", "sq1_wrong"), ("sq1_wrong", "t")):
        shown = (b"authorization", f"Bearer {one}".encode())
        with pytest.raises(UnreadableRequest):
            found(shown, method=SOCKET, subprotocols=["seaweedq.v1", f"bearer.{another}"])
    proxys = (b"authorization", b"Basic t")
    assert found(proxys, method=SOCKET, subprotocols=["bearer.t"]) == "p", "a proxy's is no credential of ours"


def test_who_a_relay_names_counts_from_brokers_alone() -> None:
    named = (b"seaweedq-caller", b'{"principal":"admin"}')
    judging = made(p=with_rights(Grant((Action.READ,), ("t1",))))
    with pytest.raises(Unauthenticated):
        admitted(judging, request_of("GET", "/v1/topics/t1", named))
    with pytest.raises(Forbidden):
        admitted(judging, request_of("GET", "/v1/topics/t1", named, (b"authorization", b"Bearer p")))
    request = admitted(judging, request_of("GET", "/v1/topics/t1", named, (FROM_A_BROKER, b"1")))
    assert request.caller.principal == "admin"
    caller = Caller("p", "t", (EVERYTHING,), 7, uid="u")
    (said,) = header_of(caller).values()
    request = admitted(judging, request_of("GET", "/v1/topics/t1", (named[0], said.encode()), (FROM_A_BROKER, b"1")))
    assert request.caller == caller
    with pytest.raises(Forbidden):
        admitted(judging, request_of("GET", "/v1/topics/t1", (b"seaweedq-caller", b"{"), (FROM_A_BROKER, b"1")))


def test_a_refusal_says_neither_why_nor_what_exists() -> None:
    judging = made(p=with_rights())
    said = set()
    for text in ("zz-9", draw(SystemIds()), "sq1_"):
        with pytest.raises(Unauthenticated) as refused:
            admitted(judging, request_of("GET", "/v1/topics/t1", (b"authorization", f"Bearer {text}".encode())))
        said.add(str(refused.value))
        assert text == "sq1_" or text not in repr(refused.value)
    assert len(said) == 1


@asynccontextmanager
async def application(tmp_path: Path) -> AsyncIterator[tuple[Application, str]]:
    """A broker that needs tokens, and its admin's one."""
    file = tmp_path / "admin"
    file.write_text(token := draw(SystemIds()))
    async with in_loop(tmp_path, 1, auth="required", admin_token_file=str(file)) as together:
        (app,) = together.apps.values()
        yield app, token


@pytest.mark.brokers
async def test_every_route_is_reached_by_whom_it_lets_in(tmp_path: Path) -> None:
    async with (
        application(tmp_path) as (app, token),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://b0") as http,
    ):
        for method, path, rule in ROUTES:
            if method == SOCKET:
                continue
            answer = await http.request(method, path)
            if rule.kind is Kind.OPEN:
                assert answer.status_code in ((308,) if path == "/console" else (200, 404)), path
            elif rule.kind is Kind.OWN_RIGHT:
                assert answer.status_code in (403, 404, 411, 422), path
            else:
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == 'Bearer realm="seaweedq"'
        me = (await http.get("/v1/whoami", headers={"authorization": f"Bearer {token}"})).json()
        assert me["principal"] == "admin"


def test_a_route_without_an_action_is_refused_at_start() -> None:
    app = FastAPI(openapi_url=None)

    @app.post("/v1/toys/{toy}")
    async def play(toy: str) -> str:
        return toy

    with pytest.raises(ValueError, match=r"POST.*/v1/toys/{toy}"):
        check_rights(app, RouteTable([]))
    with pytest.raises(TypeError, match="right"):
        Router("topics").route("POST", "/v1/toys/{toy}")(play)  # type: ignore[call-arg]


@pytest.mark.brokers
async def test_a_refused_request_is_not_read_and_reserves_nothing(tmp_path: Path) -> None:
    async with application(tmp_path) as (app, _):
        sent: list[Any] = []

        async def receive() -> Any:
            raise AssertionError("its body was read")

        async def send(message: Any) -> None:
            sent.append(message)

        for method, path, rule in ROUTES:
            if rule.kind in (Kind.ACTION, Kind.KNOWN):
                sent.clear()
                scope = scope_of(method, path, raw_path=path.encode(), subprotocols=[], extensions={})
                await asyncio.wait_for(app(scope, receive, send), 15)
                assert sent[0]["status"] == 401, (method, path)
        assert inside.budget(app._broker).in_flight == 0


def test_no_path_has_two_routes() -> None:
    router = Router("topics")
    for path in ("/v1/toys/{toy}", "/v1/toys/{other}", "/v1/toys/best"):
        router.route("GET", path, OPEN)(lambda: None)
    first, second, word = router.routes
    for other in (second, word):
        router.routes = [first, other]
        with pytest.raises(ValueError, match="/v1/toys/"):
            RouteTable([router])
    assert find("GET", "/v1/topics/" + "x" * 1000).names == ("x" * 1000,)


def test_which_routes_change_something() -> None:
    changing = {(method, path.removeprefix("/v1/topics/t1/")) for method, path, rule in ROUTES if rule.is_change}
    assert {one for one in changing if not one[1].startswith("/")} == {
        *(("POST", f"segments/0/{verb}") for verb in ("split", "merge", "roll", "move")),
        *((verb, "subscriptions/s1") for verb in ("PUT", "PATCH", "DELETE")),
        *(("POST", one) for one in ("flush", "subscriptions/s1/seek")),
    }
    assert {(method, path) for method, path in changing if path.startswith("/")} == {
        *((verb, "/v1/topics/t1") for verb in ("PUT", "PATCH", "DELETE")),
        *((verb, "/v1/principals/p") for verb in ("PUT", "DELETE")),
        *(
            ("POST", one)
            for one in (
                "/v1/tokens",
                "/v1/denials",
                *(f"/v1/cluster/{one}" for one in ("level", "rebuild", "accept-loss")),
            )
        ),
        ("DELETE", f"/v1/tokens/{'0' * 16}"),
        ("DELETE", "/v1/denials/sub-0"),
    }


def test_resources() -> None:
    for method, path, rule in ROUTES:
        found = find(method, path)
        wanted = Resource("t1" if rule.has_topic else None, "s1" if rule.has_subscription else None)
        assert (found.route, found.resource) == (rule, wanted)
        assert len(found.names) == rule.path.count("{")
        if rule.action and rule.action not in OF_THE_CLUSTER:
            assert rule.has_topic


@pytest.mark.parametrize(
    ("now", "error"),
    [
        (Caller("p", "t", (EVERYTHING,)), NotReady),
        (Caller("p", "t", (Rights(()),)), Forbidden),
        (None, Unauthenticated),
    ],
)
async def test_an_end_without_a_lease_tells_what_is_known_of_the_token(
    monkeypatch: pytest.MonkeyPatch, now: Caller | None, error: type[SeaweedqError]
) -> None:
    callers = Callers(SimpleNamespace(), SystemClock(), AdminToken(None))  # type: ignore[arg-type]
    monkeypatch.setattr(callers, "current", lambda caller: now)
    request = matched(request_of("POST", "/v1/topics/t/subscriptions/s/pull"))
    request.caller = Caller("p", "t", (EVERYTHING,))

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            callers.end_revoked_requests()  # the lease is there again before the request has ended

    judging = Authentication(callers, True, lambda request: False)
    asking = asyncio.create_task(judging.while_allowed(request, work()))
    await asyncio.sleep(0)
    callers.end_revoked_requests(has_lease=False)
    with pytest.raises(error):
        await asking


PRINCIPAL = PrincipalRecord("u" * 32, (Grant((Action.PUBLISH, Action.CONSUME), ("t*",)),), 0)


class World:
    """Authentication, and the changes of which its broker hears."""

    def __init__(self, admin: Path | None = None) -> None:
        self.clock = Time()
        token = AdminToken(admin)
        token.require()
        self.callers = NoLookups(MemoryCoordination(self.clock), self.clock, token)
        self.callers.view.loaded = True
        self.authentication = Authentication(self.callers, True, lambda request: False)
        self._revision = 0
        self.principal(PRINCIPAL)

    def principal(self, record: PrincipalRecord | None) -> None:
        value = None if record is None else keys.PRINCIPALS.encode(Versioned.new(record))
        self._take(keys.PRINCIPALS.key("p"), value)

    def token(self, text: str, **more: Any) -> None:
        record = TokenRecord(digest_of(text.encode()).hex(), "p", PRINCIPAL.uid, 1, **more)
        self._take(keys.TOKENS.key(text.split("_")[1]), keys.TOKENS.encode(Versioned.new(record)))

    def revoke(self, text: str) -> None:
        self._take(keys.TOKENS.key(text.split("_")[1]), None)

    def asks(self, text: str, *more: tuple[bytes, bytes], topic: str = "t", **scope: Any) -> str | None:
        headers = [(b"authorization", f"Bearer {text}".encode()), *more]
        path = scope.pop("path", f"/v1/topics/{topic}/messages")
        method = SOCKET if scope.pop("type", "http") == "websocket" else scope.pop("method", "POST")
        return admitted(self.authentication, request_of(method, path, *headers, **scope)).caller.principal

    def _take(self, key: str, value: bytes | None) -> None:
        self._revision += 1
        self.callers.view.take([Change(key, value, self._revision)])


def shown_twice(**more: Any) -> tuple[World, str]:
    world, text = World(), draw(SystemIds())
    world.token(text, **more)
    assert [world.asks(text), world.asks(text)] == ["p", "p"]
    return world, text


def test_a_revoked_one_counts_no_more_and_counts_again_if_it_comes_back() -> None:
    world, text = shown_twice()
    world.revoke(text)
    with pytest.raises(Unauthenticated):
        world.asks(text)
    world.token(text)
    assert world.asks(text) == "p"


def test_one_whose_parent_is_revoked() -> None:
    world, parent, child = World(), draw(SystemIds()), draw(SystemIds())
    world.token(parent)
    world.token(child, parent=parent.split("_")[1])
    assert [world.asks(child), world.asks(child)] == ["p", "p"]
    world.revoke(parent)
    with pytest.raises(Unauthenticated):
        world.asks(child)


def test_one_that_expires() -> None:
    world, text = shown_twice(expires_us=3_000_000)
    world.clock.s = 2.0
    with pytest.raises(Unauthenticated):
        world.asks(text)


@pytest.mark.parametrize("record", [None, msgspec.structs.replace(PRINCIPAL, disabled=True)])
def test_one_whose_principal_goes_or_is_disabled(record: PrincipalRecord | None) -> None:
    world, text = shown_twice()
    world.principal(record)
    with pytest.raises(Unauthenticated):
        world.asks(text)


def test_one_that_may_do_less_and_one_that_may_do_more() -> None:
    world, text = shown_twice()
    with pytest.raises(Forbidden):
        world.asks(text, topic="other")
    world.principal(msgspec.structs.replace(PRINCIPAL, grants=(Grant((Action.PUBLISH,), ("other",)),)))
    assert world.asks(text, topic="other") == "p"
    with pytest.raises(Forbidden):
        world.asks(text)


def test_a_second_token_beside_it() -> None:
    world, text = shown_twice()
    with pytest.raises(UnreadableRequest):
        world.asks(text, (b"authorization", b"Bearer x"))
    path = "/v1/topics/t/subscriptions/s/stream"
    assert [world.asks(text, path=path, method="GET") for _ in range(2)] == ["p", "p"]
    assert world.asks(text, path=path, type="websocket") == "p"
    with pytest.raises(UnreadableRequest):
        world.asks(text, path=path, type="websocket", subprotocols=[f"bearer.{text}"])


def test_how_much_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(authentication, "REMEMBERED_BYTES", 3 * (authentication.TOKEN_BYTES + 1_000))
    monkeypatch.setattr(authentication, "REMEMBERED_RIGHTS", 2)
    admin = tmp_path / "admin-token"
    admin.write_text("a" * 40)
    world = World(admin)
    assert world.asks("a" * 40) == "admin"
    with pytest.raises(Unauthenticated):
        world.asks(draw(SystemIds()))
    assert not privates.shown(world.authentication).by_header
    for _ in range(9):
        text = draw(SystemIds())
        world.token(text)
        for topic in ("t1", "t2", "t3", "t1"):
            assert world.asks(text, topic=topic) == "p"
        assert len(privates.shown(world.authentication).by_header) <= 3
        assert all(len(seen.allowed) <= 2 for seen in privates.shown(world.authentication).by_header.values())


@pytest.mark.parametrize("name", ["t" * 200, "t" + "\U0001f30a" * 199, "t1"])
def test_what_is_remembered_takes_no_more_memory_than_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that each use many names, as long as they may be, would else take a hundred megabytes."""
    most = 500_000
    monkeypatch.setattr(authentication, "REMEMBERED_BYTES", most)
    world, sizes = World(), []
    shown = privates.shown(world.authentication)
    tracemalloc.start()
    try:
        while not sizes or sizes[-1] < 0.9 * most:
            _ask_about(world, name)
            sizes.append(taken_by(shown))
        TABLE._remembered.cache_clear()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        shown.forget(None)
        taken = before - tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.25 * sizes[-1] < taken < sizes[-1]
    for _ in range(2 * len(sizes)):
        _ask_about(world, name)
        assert 0 < taken_by(shown) <= most


def taken_by(shown: Any) -> int:
    """The bytes that are remembered of tokens, as they are counted."""
    counted: int = shown._bytes
    return counted


def _ask_about(world: World, name: str) -> None:
    text = draw(SystemIds())
    world.token(text)
    for number in range(64):
        world.asks(text, topic=f"{name}{text[4:12]}{number}")


def test_of_one_that_is_revoked_or_whose_principal_changes_nothing_is_kept() -> None:
    world, text = shown_twice()
    child, other = draw(SystemIds()), draw(SystemIds())
    world.token(child, parent=text.split("_")[1])
    world.token(other)
    assert [world.asks(child), world.asks(other)] == ["p", "p"]
    shown = privates.shown(world.authentication)
    assert len(shown.by_header) == 3
    world.revoke(text)
    assert list(shown.by_header) == [b"Bearer " + other.encode()]
    world.principal(msgspec.structs.replace(PRINCIPAL, disabled=True))
    assert (shown.by_header, shown._headers, taken_by(shown)) == ({}, {}, 0)


def test_a_name_as_long_as_a_head_is_not_remembered() -> None:
    world, text = shown_twice()
    (seen,) = privates.shown(world.authentication).by_header.values()
    for _ in range(2):
        assert world.asks(text, topic="t" * 60_000) == "p"
    assert seen.allowed == {(Action.PUBLISH, Resource("t"))}


def check_stamp(stamp: str, covered: Any) -> str:
    if stamp != "right":
        raise refused_stamp(Refusal.MAC, "no")
    return "b.1"


def test_only_proven_brokers_are_exempt_from_the_bound_of_their_address() -> None:
    requests = PeerRequests(SimpleNamespace(is_apart=False, check_stamp=check_stamp), Refusals(SystemClock()))  # type: ignore[arg-type]
    exempted: list[str] = []

    def asked(stamp: str | None) -> Request:
        headers = [] if stamp is None else [(STAMP_HEADER.lower().encode(), stamp.encode())]
        connection = SimpleNamespace(exempt=lambda: exempted.append(str(stamp)))
        more = {"raw_path": b"/v1/topics", "extensions": {CONNECTION: connection}}
        return request_of("GET", "/v1/topics", *headers, **more)

    assert not requests.is_authenticated(asked(None))
    with pytest.raises(PeerRefused):
        requests.is_authenticated(asked("wrong"))
    assert not exempted
    assert requests.is_authenticated(asked("right"))
    assert exempted == ["right"]
