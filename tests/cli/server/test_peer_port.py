"""A port for brokers on a real socket, with its settings: TLS, strangers, and the end of the serving."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import BrokerStatus
from seaweedq.broker.rpc.peer_tls import PeerTls
from seaweedq.cli.server.broker_process import listen_for_peers, peer_url_of, uvicorn_loop
from seaweedq.cli.server.given_settings import check_members, check_ports
from seaweedq.cli.server.http_server import listen
from seaweedq.cli.server.member_process import member_command
from seaweedq.clock import SystemIds
from seaweedq.errors import InvalidRequest, Unavailable
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.environments import environment
from tests.support.brokers.in_process import Held
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.peer_client import ME, peers_of
from tests.support.brokers.peer_keys import keys_of
from tests.support.brokers.serving import Served, served

SECRET = "a secret of brokers"


@asynccontextmanager
async def apart(folder: Path) -> AsyncIterator[Broker]:
    """A broker that says it has a port for brokers."""
    coordination = Held()
    made = environment(Settings(data_dir=folder), MemoryStore(), coordination, secret=SECRET)
    broker = Broker(replace(made, peer_url="https://127.0.0.1:1"))
    broker.lock()
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        await coordination.close()


def on_uvloop(folder: Path, test: Callable[[Served, int], Awaitable[None]]) -> None:
    """Runs a test beside a broker and its port for brokers, on the loop that brokers have."""

    async def run() -> None:
        async with apart(folder) as broker, served(broker) as serving:
            assert serving.peer_listener
            while not serving.server.started:
                await asyncio.sleep(0.01)
            await test(serving, serving.peer_listener.getsockname()[1])

    with uvicorn_loop() as runner:
        runner.run(run())


def tls_of(serving: Served, secret: str = SECRET) -> PeerTls:
    keys = keys_of(secret, cluster=inside.cluster_id(serving.broker))
    return PeerTls(keys, ME, SystemIds())


def calling(serving: Served, port: int, means: str = "", secret: str = SECRET) -> Peers:
    """Peers that call the broker at that port, and mean the one with that id."""
    keys = keys_of(secret, cluster=inside.cluster_id(serving.broker))
    secured = tls_of(serving, secret).client(means or serving.broker.id, keys.roots[0])
    return peers_of(serving.broker, secret, at=f"https://127.0.0.1:{port}", secured=secured)


async def ask(peers: Peers) -> BrokerStatus:
    try:
        return await peers.call("http://x", "status", None, BrokerStatus, 5)
    finally:
        await peers.close()


def test_a_broker_is_called_at_its_port_by_its_id(tmp_path: Path) -> None:
    async def test(serving: Served, port: int) -> None:
        assert await ask(calling(serving, port))
        with pytest.raises(Unavailable) as caught:
            await ask(calling(serving, port, means="other.0123456789abcdef"))
        assert "Hostname mismatch" in caught.value.inside
        with pytest.raises(Unavailable):
            await ask(calling(serving, port, secret="another secret"))

    on_uvloop(tmp_path, test)


@pytest.mark.parametrize("kind", ["plain", "no certificate", "none of the cluster"])
def test_strangers_get_no_byte_of_an_answer(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(serving: Served, port: int) -> None:
        context: ssl.SSLContext | None = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if kind == "none of the cluster":
            context = tls_of(serving, "another secret").client("x.1", _root(serving)).context
        assert context
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        got = b""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=None if kind == "plain" else context)
            writer.write(b"POST /internal/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            got = await reader.read(1000)
            writer.close()
        except (OSError, ssl.SSLError):
            pass
        assert b"HTTP" not in got
        counted = serving.server.config.app.refusals.counts  # type: ignore[union-attr]
        await until(lambda: counted["peer"] == 1)
        assert counted["tls"] == 0
        assert "request refused (peer)" in caplog.text

    on_uvloop(tmp_path, test)


def _root(serving: Served) -> Any:
    return keys_of("another secret", cluster=inside.cluster_id(serving.broker)).roots[0]


SMUGGLED = [
    b"POST /internal/status HTTP/1.1",
    b"POST http://127.0.0.1/internal/status HTTP/1.1",
    b"POST http://b1/internal/hello HTTP/1.1",
    b"POST http:///internal/status HTTP/1.1",
    b"POST //internal/status HTTP/1.1",
    b"POST /%69nternal/status HTTP/1.1",
    b"POST /x/../internal/status HTTP/1.1",
    b"POST /internal/status?/../x HTTP/1.1",
    b"POST /internal/status#x HTTP/1.1",
    b"POST internal/status HTTP/1.1",
    b"POST /internal/status HTTP/1.0",
    b"GET /internal/status HTTP/1.1",
]


def test_a_client_reaches_no_call_between_brokers_by_any_path(tmp_path: Path) -> None:
    async def test(serving: Served, port: int) -> None:
        public = int(serving.url.rpartition(":")[2])
        for line in SMUGGLED:
            reader, writer = await asyncio.open_connection("127.0.0.1", public)
            writer.write(line + b"\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            status = (await reader.read()).split(b" ")[1]
            assert status in (b"404", b"400", b"421"), (line, status)
            writer.close()

    on_uvloop(tmp_path, test)


def test_both_ports_end_together(tmp_path: Path) -> None:
    ports: list[int] = []

    async def test(serving: Served, port: int) -> None:
        ports.append(port)
        assert await ask(calling(serving, port))

    on_uvloop(tmp_path, test)

    async def refused() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", ports[0])

    asyncio.run(refused())


def settings_of(**given: Any) -> Settings:
    return Settings(data_dir="x", **given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"port": 8080, "peer_port": 8080}, "peer_port"),
        ({"port": 8080, "peer_port": 8082, "brokers": 3}, "peer_port"),
        ({"port": 8082, "peer_port": 8080, "brokers": 3}, "peer_port"),
        ({"port": 8080, "grpc_port": 8080}, "grpc_port"),
        ({"peer_port": 9091, "grpc_port": 9090, "brokers": 2}, "grpc_port"),
        ({"advertise_peer_url": "https://b1:8443"}, "advertise_peer_url"),
    ],
)
def test_ports_that_cannot_be_are_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ports(settings_of(**given))
    assert caught.value.fields["field"] == field


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"port": 0, "peer_port": 8080},
        {"port": 8080, "peer_port": 8083, "brokers": 3},
        {"port": 8080, "peer_port": 8081, "brokers": 3, "member": 1},
        {"peer_port": 8443, "advertise_peer_url": "https://b1:8443"},
    ],
)
def test_other_ports_are_taken(given: dict[str, Any]) -> None:
    check_ports(settings_of(**given))


def test_without_a_port_there_is_no_url() -> None:
    assert listen_for_peers(settings_of()) is None
    assert peer_url_of(settings_of(), None) == ""


def test_members_of_one_machine_have_consecutive_ports_for_brokers(tmp_path: Path) -> None:
    settings = settings_of(port=8080, peer_port=8443, brokers=3)
    assert "--peer-port 8445" in " ".join(member_command(["x"], settings, 3))
    assert "--peer-port 0" in " ".join(member_command(["x"], settings_of(brokers=3), 3))
    with pytest.raises(InvalidRequest):
        check_members(settings_of(brokers=3, peer_port=65_534))
    with pytest.raises(InvalidRequest):
        check_members(settings_of(brokers=3, peer_port=8443, advertise_peer_url="https://b1:8443"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "https://127.0.0.1:{}"),
        ({"advertise_url": "https://b1.example.com/"}, "https://b1.example.com:{}"),
        ({"advertise_url": "http://[::1]:8080"}, "https://[::1]:{}"),
        ({"advertise_peer_url": "https://10.0.0.1:9"}, "https://10.0.0.1:9"),
    ],
)
def test_the_others_reach_the_port_at(given: dict[str, Any], expected: str) -> None:
    bound = listen(settings_of(), 0)
    try:
        assert peer_url_of(settings_of(peer_port=9, **given), bound) == expected.format(bound.getsockname()[1])
    finally:
        bound.close()
