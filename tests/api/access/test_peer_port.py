"""Brokers with a port for brokers: nobody else is answered there, no broker elsewhere, and it may come and go."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.access.authentication import CALLER_HEADER
from seaweedq.broker.rpc.peer_sessions import HELLO_HEADER, STAMP_HEADER
from seaweedq.errors import NotOwner
from tests.api.handlers.test_internal import (
    TOPIC,
    Recorded,
    http_at,
    living,
    make,
    settled,
    work,
    work_often,
)
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.peer_client import begin_session, peers_of, stamped

pytestmark = pytest.mark.brokers

HIDDEN = [
    "/internal/status",
    "/internal/hello",
    "/internal/no-such-call",
    "/internal/",
    "/%69nternal/status",
    "/internal%2fstatus",
    "/%2finternal/status",
    "//internal/status",
    "/internal//status",
    "/./internal/status",
    "/v1/../internal/status",
    "/v1/topics/..%2f..%2finternal/status",
    "/INTERNAL/status",
    "/internal;x/status",
    "/internal",
]


def peers_at(together: InLoop, number: int) -> httpx.AsyncClient:
    """A client at the port for brokers of one broker, as if its handshake had been done."""
    base = together.brokers[number].process.peer_url
    return httpx.AsyncClient(transport=httpx.ASGITransport(together.peer_apps[base]), base_url=base, timeout=None)


async def test_brokers_call_and_relay_at_their_ports_for_brokers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    async with in_loop(tmp_path, 3, peer_ports=True) as together:
        await make(together)
        await work(together)
        assert {base for base, _, _ in recorded.requests} == {f"https://b{n}-peers" for n in range(3)}
        assert any(request.path.startswith("/v1/") for _, request, _ in recorded.requests)
        assert recorded.shown() == {STAMP_HEADER, HELLO_HEADER}
        async with http_at(together, together.brokers[0]) as http:
            told = (await http.get("/v1/cluster")).text + (await http.get(f"{TOPIC}/segments")).text
        assert "-peers" not in told, "clients need not know it"


async def test_no_client_reaches_calls_between_brokers_at_the_port_for_clients(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, peer_ports=True) as together:
        app = together.apps["http://b0"]
        for path, method in itertools.product(HIDDEN, ("POST", "GET", "PUT", "OPTIONS")):
            sent: list[Any] = []

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            raw = path.encode()
            scope = {"type": "http", "method": method, "path": httpx.URL(f"http://b0{path}").path, "raw_path": raw}
            scope |= {"headers": [(b"host", b"b0")], "query_string": b"", "extensions": {}, "client": ("127.0.0.1", 1)}
            scope["http_version"] = "1.1"
            await app(scope, asyncio.Event().wait, send)
            assert sent[0]["status"] == 404, (method, path, sent)


@pytest.mark.parametrize("name", [STAMP_HEADER, HELLO_HEADER])
async def test_who_claims_to_be_a_broker_is_refused_at_the_port_for_clients(tmp_path: Path, name: str) -> None:
    async with in_loop(tmp_path, 1, peer_ports=True) as together, http_at(together, together.brokers[0]) as http:
        for path in ("/internal/status", "/internal/hello"):
            answer = await http.post(path, headers={name: "secret"})
            assert (answer.status_code, answer.json()["type"]) == (403, "/problems/peer-refused")


async def test_a_session_is_of_no_use_at_the_port_for_clients(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, peer_ports=True) as together:
        (broker,) = together.brokers
        async with peers_at(together, 0) as peers, http_at(together, broker) as http:
            session = await asyncio.to_thread(session_of, together)
            for path in ("/internal/status", TOPIC):
                method = "POST" if "internal" in path else "GET"
                answer = await http.request(method, path, headers=stamped(session, method, path))
                assert answer.json()["reason"] == "port"
                answer = await peers.request(method, path, headers=stamped(session, method, path))
                assert answer.status_code == (200 if method == "POST" else 404)


def session_of(together: InLoop) -> Any:
    """A session with the first broker, of somebody who has the secret."""
    broker = together.brokers[0]

    def post(path: str, headers: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with peers_at(together, 0) as http:
                return await http.post(path, headers=headers)

        return asyncio.run(ask())

    return begin_session(post, inside.keyring(broker).keys, broker.id)


async def test_nobody_but_brokers_is_answered_at_the_port_for_brokers(tmp_path: Path) -> None:
    paths = ("/healthz", "/v1/cluster", "/metrics", "/", TOPIC, f"{TOPIC}/messages", "/docs")
    async with in_loop(tmp_path, 1, peer_ports=True) as together, peers_at(together, 0) as http:
        for path, method in itertools.product(paths, ("GET", "POST", "HEAD")):
            assert (await http.request(method, path)).status_code == 404
            claiming = await http.request(method, path, headers={CALLER_HEADER: '{"principal": "admin"}'})
            assert claiming.status_code == 404
        assert (await http.post("/internal/status")).status_code == 403


async def test_the_mark_of_the_port_is_nothing_that_a_request_can_say(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, peer_ports=True) as together, http_at(together, together.brokers[0]) as http:
        answer = await http.post("/internal/status", headers={"at_peer_port": "1", "Seaweedq-Peer-Port": "1"})
        assert answer.status_code == 404


async def roll(together: InLoop, ports: bool) -> None:
    """Restarts the brokers one after another, with a port for brokers or without."""
    together.peer_ports = ports
    for broker in living(together):
        await broker.drain()
        await broker.stop()
        together.unlisten(broker)
        await settled(together)
        await work(together)
        await together.begin_again(broker)
        await settled(together)
        await work(together)


async def test_a_port_for_brokers_comes_and_goes_by_rolling_restarts(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        await make(together)
        await work(together)
        await roll(together, ports=True)
        assert len(together.peer_apps) == 2
        await roll(together, ports=False)
        assert not together.peer_apps
        for broker in living(together):
            await broker.stop()


async def test_a_rise_of_the_level_beside_ports_for_brokers_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_level: int
) -> None:
    recorded = Recorded(monkeypatch)
    async with in_loop(tmp_path, 1, level=1) as together:
        monkeypatch.setattr(inside.level_upgrade(together.brokers[0]), "_lease_s", 3.0)  # for so long a rise waits
        together.peer_ports = True
        later_ones = [await together.begin() for _ in range(2)]
        await together.see()
        await make(together)
        await work(together)
        working = asyncio.create_task(work_often(together))
        await inside.level_upgrade(together.brokers[0]).upgrade(next_level)
        await until(lambda: all(inside.level(one).written == next_level for one in together.brokers))
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await work(together)
        assert {base for base, _, _ in recorded.requests} <= {"http://b0", "https://b1-peers", "https://b2-peers"}
        for one in later_ones:
            await one.stop()


async def test_a_caller_that_means_an_earlier_life_is_refused_before_any_work(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, peer_ports=True) as together:
        peers = peers_of(together.brokers[0])
        peers.send = together.brokers[0].process.peers.send  # type: ignore[method-assign]
        with pytest.raises(NotOwner):
            await peers.post("http://b0", "status", b"", 5)
        await peers.close()
