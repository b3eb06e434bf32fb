"""Client certificates at a broker's port, over real TLS: whose they are, and until when."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from seaweedq.api.connections import protocol
from seaweedq.broker.access import ClientCertificate
from seaweedq.broker.access.callers import AdminToken, Callers
from seaweedq.cli.server.credentials import certificate_of
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import PrincipalRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings
from tests.broker.access.test_callers import Time
from tests.support.brokers.serving import Served, served
from tests.support.http.certificates import Authority, Pair
from tests.support.http.with_tokens import Http, access

pytestmark = pytest.mark.brokers
SERVERS, CLIENTS = Authority("servers"), Authority("clients")
SERVER = SERVERS.issue("127.0.0.1")
WHO = "/v1/whoami"
READ = [{"actions": ["describe", "read"], "topics": ["*"]}]


class World:
    """A broker behind TLS, its CA file of clients, and clients with certificates."""

    def __init__(self, http: Http, serving: Served, folder: Path) -> None:
        self.http, self.serving, self.folder = http, serving, folder

    def client(self, shown: Pair | None = None) -> httpx.AsyncClient:
        """A client that shows a certificate."""
        context = ssl.create_default_context(cadata=SERVERS.pem.decode())
        if shown:
            files = shown.write(self.folder / "client")
            context.load_cert_chain(files["tls_cert_file"], files["tls_key_file"])
        return httpx.AsyncClient(base_url=self.serving.url, verify=context, timeout=30, trust_env=False)

    def renew(self, content: bytes) -> None:
        """Put another content into the CA file, and have it read."""
        (self.folder / "ca.pem").write_bytes(content)
        for _ in range(2):
            self.serving.certificate.refresh()  # type: ignore[union-attr]


@asynccontextmanager
async def world(folder: Path, **more: Any) -> AsyncIterator[World]:
    (folder / "ca.pem").write_bytes(CLIENTS.pem)
    settings = {**SERVER.write(folder / "server"), "client_ca_file": str(folder / "ca.pem"), **more}
    async with access(folder / "b", **settings) as http, served(http.together.brokers[0]) as serving:
        await http.principal("importer", READ)
        yield World(http, serving, folder)


async def test_a_certificate_stands_for_the_principal_of_its_name(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        async with it.client(CLIENTS.issue("importer")) as client:
            found = (await client.get(WHO)).json()
            assert (found["principal"], found["identity"]) == ("importer", "certificate")
            assert found["token"].startswith("certificate:")
            assert (await client.get("/v1/topics/t")).status_code == 404
            assert (await client.put("/v1/topics/t", json={})).status_code == 403
            admin = {"authorization": f"Bearer {it.http.admin}"}
            assert (await client.get(WHO, headers=admin)).json()["principal"] == "admin", "a token comes first"
            assert (await client.get(WHO, headers={"authorization": "Bearer sq1_x"})).status_code == 401
            assert (await client.get(WHO, headers={"authorization": "Bearer of-a-proxy"})).status_code == 200
            await it.http.principal("importer", READ, disabled=True)
            assert (await client.get(WHO)).status_code == 401
            await it.http.principal("importer", READ)
            assert (await client.get(WHO)).status_code == 200
        async with it.client() as client:
            assert (await client.get(WHO)).status_code == 401, "a certificate is asked for, and not required"


@pytest.mark.parametrize("names", [("stranger",), ("admin",), ("importer", "other")])
async def test_a_certificate_of_no_one_principal_is_nobodys(tmp_path: Path, names: tuple[str, ...]) -> None:
    async with world(tmp_path) as it:
        await it.http.principal("other", READ)
        async with it.client(CLIENTS.issue(*names)) as client:
            assert (await client.get(WHO)).status_code == 401


@pytest.mark.parametrize("shown", [SERVERS.issue("importer"), CLIENTS.issue("importer", ends=-timedelta(days=1))])
async def test_a_certificate_of_another_ca_or_time_ends_its_connection(tmp_path: Path, shown: Pair) -> None:
    async with world(tmp_path) as it, it.client(shown) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(WHO)


async def test_pages_of_other_origins_do_not_use_a_browsers_certificate(tmp_path: Path) -> None:
    async with (
        world(tmp_path, cors_origins="https://app.example.com") as it,
        it.client(CLIENTS.issue("importer")) as client,
    ):
        page = {"origin": "https://app.example.com"}
        assert (await client.get(WHO, headers=page)).status_code == 401
        assert (await client.get(WHO, headers={**page, "sec-fetch-site": "cross-site"})).status_code == 401
        own = {"origin": it.serving.url, "sec-fetch-site": "same-origin"}
        assert (await client.get(WHO, headers=own)).status_code == 200


async def test_a_renewed_ca_counts_at_once_and_ends_what_the_old_one_signed(tmp_path: Path) -> None:
    other = Authority("more clients")
    async with world(tmp_path) as it, it.client(CLIENTS.issue("importer")) as client:
        assert (await client.get(WHO)).status_code == 200
        it.renew(CLIENTS.pem + other.pem)
        outdated = await client.get(WHO)
        assert (outdated.status_code, outdated.json()["type"]) == (503, "/problems/not-ready")
        assert (await client.get(WHO)).status_code == 200, "the connection was made again"
        async with it.client(other.issue("importer")) as second:
            assert (await second.get(WHO)).status_code == 200
        it.renew(other.pem)
        assert (await client.get(WHO)).status_code == 503
        with pytest.raises(httpx.TransportError):
            await client.get(WHO)


async def test_a_removed_ca_ends_though_the_pair_beside_it_is_invalid(tmp_path: Path) -> None:
    other = Authority("more clients")
    async with world(tmp_path) as it, it.client(CLIENTS.issue("importer")) as client:
        assert (await client.get(WHO)).status_code == 200
        (tmp_path / "server" / "key.pem").write_bytes(b"half of a ke")
        it.renew(other.pem)
        assert (await client.get(WHO)).status_code == 503
        with pytest.raises(httpx.TransportError):
            await client.get(WHO)
        async with it.client(other.issue("importer")) as second:
            assert (await second.get(WHO)).status_code == 200, "the pair of before is shown"
        before = it.serving.certificate.context()  # type: ignore[union-attr]
        SERVERS.issue("127.0.0.1").write(tmp_path / "server")
        it.renew(b"half of a certifica")
        assert it.serving.certificate.context() is not before, "the new pair is shown"  # type: ignore[union-attr]
        async with it.client(other.issue("importer")) as third:
            assert (await third.get(WHO)).status_code == 200, "the CAs of before count"


async def test_a_certificate_ends_though_its_connection_lasts() -> None:
    time = Time()
    coordination = MemoryCoordination(time)
    callers = Callers(coordination, time, AdminToken(None))
    record = keys.PRINCIPALS.encode(Versioned.new(PrincipalRecord("u", (), 1)))
    callers.view.take([Change(keys.PRINCIPALS.key("importer"), record, 1)])
    shown = ClientCertificate("f", ("importer",), (), time.now_us() + 1_000_000, b"")
    assert callers.of_certificate(shown)
    time.s += 2
    assert callers.of_certificate(shown) is None
    await coordination.close()


async def test_odd_certificates_are_nobodys_and_the_port_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = [f"h{number}.example" for number in range(3_000)]
    async with world(tmp_path) as it:
        for names in (("importer", *many), ("IMPORTER",), ("importer.",), ("*",), ("10.0.0.1",)):
            async with it.client(CLIENTS.issue(*names)) as client:
                assert (await client.get(WHO)).status_code == 401
        async with it.client(CLIENTS.issue("importer", "importer", *many[:90])) as client:
            assert (await client.get(WHO)).json()["principal"] == "importer"
    assert "it has 3002 names, more than 100" in caplog.text


async def test_the_common_name_counts_if_the_setting_says_so(tmp_path: Path) -> None:
    async with world(tmp_path, client_certificate_name="subject") as it:
        async with it.client(CLIENTS.issue("importer", "x.example")) as client:
            assert (await client.get(WHO)).json()["principal"] == "importer"
        async with it.client(CLIENTS.issue("x.example", "importer")) as client:
            assert (await client.get(WHO)).status_code == 401


def test_a_ca_file_needs_tls_and_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="client_ca_file needs tls_cert_file"):
        certificate_of(Settings(client_ca_file=str(tmp_path / "ca.pem")))
    pair = SERVER.write(tmp_path)
    with pytest.raises(InvalidRequest, match=r"client_ca_file=.* cannot be read"):
        certificate_of(Settings(**pair, client_ca_file=str(tmp_path / "ca.pem")))
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(InvalidRequest, match=r"client_ca_file=.* is not a CA certificate"):
        certificate_of(Settings(**pair, client_ca_file=str(tmp_path / "ca.pem")))


def test_a_certificate_that_cannot_be_read_names_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """OpenSSL accepts some that cryptography refuses; an error here left the connection outside of all bounds."""
    shown = SimpleNamespace(context=SimpleNamespace(client_ca=b"ca"), getpeercert=lambda binary_form: b"no certificate")
    transport: Any = SimpleNamespace(get_extra_info=lambda name: shown)
    assert protocol.certificate_of(transport) is None
    assert "cannot be read" in caplog.text
