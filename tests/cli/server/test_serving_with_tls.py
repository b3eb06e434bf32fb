"""Brokers behind TLS: clients, other brokers, strangers, and a renewal under load."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.connections.connections import Connections
from seaweedq.broker.rpc.messages import Heartbeat, HeartbeatCall
from seaweedq.cli.server.broker_process import uvicorn_loop
from seaweedq.errors import Unavailable
from tests.support.brokers.in_process import running
from tests.support.brokers.peer_client import peers_of, stranger_peers
from tests.support.brokers.serving import Served, served
from tests.support.http.certificates import Authority, Pair

AUTHORITY, STRANGER = Authority(), Authority("another authority")
GOOD = AUTHORITY.issue("127.0.0.1")
ONE = {"messages": [{"value": 1}]}
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def trusting(authority: Authority = AUTHORITY) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


def on_uvloop(tmp_path: Path, test: Callable[[Served], Awaitable[None]], pair: Pair = GOOD, **settings: Any) -> None:
    """Runs a test beside a broker on the loop that brokers have."""

    async def run() -> None:
        named = pair.write(tmp_path / "tls")
        given = {**named, "cluster_secret": "a secret of brokers", **settings}
        async with running(tmp_path / "data", **given) as broker, served(broker) as serving:
            await test(serving)

    with uvicorn_loop() as runner:
        runner.run(run())


def port_of(serving: Served) -> int:
    return int(serving.url.rpartition(":")[2])


def test_clients_of_its_authority_are_answered_and_plain_http_is_not(tmp_path: Path) -> None:
    async def test(serving: Served) -> None:
        async with httpx.AsyncClient(base_url=serving.url, verify=trusting(), timeout=30, trust_env=False) as http:
            assert (await http.put("/v1/topics/t")).status_code == 201
            sent = await http.post("/v1/topics/t/messages", json=ONE)
            assert sent.json()["count"] == 1
        plain = serving.url.replace("https", "http")
        async with httpx.AsyncClient(base_url=plain, timeout=30, trust_env=False) as http:
            with pytest.raises(httpx.TransportError):
                await http.get("/healthz")

    on_uvloop(tmp_path, test)


BAD = {
    "expired": (AUTHORITY.issue("127.0.0.1", ends=-timedelta(hours=1)), "expired"),
    "wrong name": (AUTHORITY.issue("queue.example.com"), "mismatch"),
    "wrong authority": (STRANGER.issue("127.0.0.1"), "unable to get local issuer"),
}


@pytest.mark.parametrize("kind", BAD)
def test_neither_clients_nor_brokers_take_a_certificate_that_is(tmp_path: Path, kind: str) -> None:
    pair, why = BAD[kind]

    async def test(serving: Served) -> None:
        async with httpx.AsyncClient(base_url=serving.url, verify=trusting(), timeout=30, trust_env=False) as http:
            with pytest.raises(httpx.ConnectError, match=why):
                await http.get("/healthz")
        peers = stranger_peers(trusting)
        with pytest.raises(Unavailable) as caught:
            await peers.call(serving.url, "greet", HeartbeatCall(0), Heartbeat, 20)
        assert why in caught.value.inside
        await peers.close()

    on_uvloop(tmp_path, test, pair)


def test_brokers_call_each_other_under_the_set_authority_and_no_other(tmp_path: Path) -> None:
    async def test(serving: Served) -> None:
        secret = serving.broker.process.secret
        mine, others = trusting(), trusting(STRANGER)
        for trust, refused in ((lambda: mine, ""), (lambda: others, "issuer"), (None, "issuer")):
            peers, inside = peers_of(serving.broker, secret, trust), ""
            try:
                found = await peers.call(serving.url, "greet", HeartbeatCall(0), Heartbeat, 20)
                assert found.broker == serving.broker.id
            except Unavailable as error:
                inside = error.inside
            await peers.close()
            assert bool(inside) == bool(refused), inside
            assert refused in inside

    on_uvloop(tmp_path, test)


def test_a_renewal_under_load_loses_no_request_and_new_connections_see_it(tmp_path: Path) -> None:
    renewed = AUTHORITY.issue("127.0.0.1")

    async def test(serving: Served) -> None:
        assert serving.certificate
        answers: list[int] = []
        stop = asyncio.Event()

        async def load(fresh: bool) -> None:
            http = httpx.AsyncClient(base_url=serving.url, verify=trusting(), timeout=30, trust_env=False)
            while not stop.is_set():
                answers.append((await http.post("/v1/topics/t/messages", json=ONE)).status_code)
                if fresh:
                    await http.aclose()
                    http = httpx.AsyncClient(base_url=serving.url, verify=trusting(), timeout=30, trust_env=False)
            await http.aclose()

        loads = [asyncio.create_task(load(number % 2 == 0)) for number in range(4)]
        while len(answers) < 20:
            await asyncio.sleep(0.01)
        assert await shown(serving) == GOOD.cert
        renewed.write(tmp_path / "tls")
        serving.certificate.refresh()
        serving.certificate.refresh()
        count = len(answers)
        while len(answers) < count + 20:
            await asyncio.sleep(0.01)
        assert await shown(serving) == renewed.cert
        stop.set()
        await asyncio.gather(*loads)
        assert set(answers) == {200}

    on_uvloop(tmp_path, test)


async def shown(serving: Served) -> bytes:
    """The certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(serving), ssl=trusting())
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return ssl.DER_cert_to_PEM_cert(found).encode()


def test_a_request_in_the_last_packet_of_the_handshake_is_answered(tmp_path: Path) -> None:
    async def test(serving: Served) -> None:
        for _ in range(20):
            await asyncio.to_thread(ask_at_once, port_of(serving))

    on_uvloop(tmp_path, test)


def ask_at_once(port: int) -> None:
    """Sends a request together with the end of the handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 30) as raw:
        while True:
            with suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                tls.write(REQUEST)
                raw.sendall(outgoing.read())
                break
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(65536))
        while b"\r\n\r\n" not in answer:
            with suppress(ssl.SSLWantReadError):
                answer += tls.read()
                continue
            incoming.write(raw.recv(65536))
    assert answer.startswith(b"HTTP/1.1 200")


def test_strangers_who_shake_no_hands_have_a_bound_and_a_time(tmp_path: Path) -> None:
    async def test(serving: Served) -> None:
        application: Any = serving.server.config.app
        connections: Connections = application.connections
        connections.most, connections.reserve = 4, 2
        silent = [await asyncio.open_connection("127.0.0.1", port_of(serving)) for _ in range(12)]
        async with httpx.AsyncClient(base_url=serving.url, verify=trusting(), timeout=30, trust_env=False) as http:
            assert (await http.get("/healthz")).status_code == 200
            assert len(connections) <= 6
        for reader, writer in silent:
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        assert application.refusals.counts["quiet_connection"] >= 6
        assert application.refusals.counts["tls"] >= 1
        async with asyncio.timeout(20):
            while len(connections):
                await asyncio.sleep(0.01)

    on_uvloop(tmp_path, test, head_timeout_s=1)
