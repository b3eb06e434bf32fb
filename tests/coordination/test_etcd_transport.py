"""Users, passwords and TLS against real etcds, and etcd's messages in today's protobuf."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.etcd_transport import load_messages
from seaweedq.coordination.interface import Put
from seaweedq.errors import CoordinationUnavailable
from seaweedq.extras import install_command
from tests.support import privates
from tests.support.processes.etcd_service import EtcdServer

USER = ("broker", "secret")
NAME = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., EtcdCoordination]]:
    made: list[EtcdCoordination] = []

    def connect(server: EtcdServer, prefix: str = "mine/", **access: str) -> EtcdCoordination:
        made.append(EtcdCoordination(Access([server.endpoint], **access), prefix))
        return made[-1]

    yield connect
    for coordination in made:
        await coordination.close()


@pytest.fixture
def guarded(etcd_servers: Any) -> EtcdServer:
    """An etcd with users; tokens last a second. `broker` may do everything below mine/ alone."""
    server: EtcdServer = etcd_servers("--auth-token-ttl", "1")
    for command in (
        "user add root:root",
        "user grant-role root root",
        "role add brokers",
        "role grant-permission brokers --prefix=true readwrite mine/",
        f"user add {':'.join(USER)}",
        "user grant-role broker brokers",
        "auth enable",
    ):
        server.control(*command.split())
    return server


@pytest.mark.service
async def test_a_user_works_below_its_prefix(guarded: EtcdServer, connect: Any) -> None:
    coordination = connect(guarded, user=USER[0], password=USER[1])
    revision = await coordination.commit([], [Put("a", b"1")])
    watch = coordination.watch("", revision - 1)
    assert [change.value for change in await anext(watch)] == [b"1"]
    lease = (await coordination.grant(60)).lease
    assert await coordination.commit([], [Put("a", b"2", lease)])
    assert await coordination.renew(lease)
    await coordination.revoke(lease)


@pytest.mark.service
@pytest.mark.parametrize(
    ("access", "problem"),
    [
        ({"user": "broker", "password": "wrong"}, "invalid user ID or password"),
        ({"user": "nobody", "password": "secret"}, "invalid user ID or password"),
        ({}, "user name is empty"),
        ({"user": "broker", "password": "secret", "prefix": "other/"}, "permission denied"),
    ],
)
async def test_who_may_not_is_told_why(guarded: EtcdServer, connect: Any, access: Any, problem: str) -> None:
    coordination = connect(guarded, **access)
    for call in (coordination.get("a"), coordination.commit([], [Put("a", b"")]), anext(coordination.watch("", 0))):
        with pytest.raises(CoordinationUnavailable, match=f"{guarded.endpoint}.*({problem}|permission denied)"):
            async with asyncio.timeout(30):
                await call


@pytest.mark.long
@pytest.mark.service
async def test_a_token_that_has_expired_is_replaced(guarded: EtcdServer, connect: Any) -> None:
    coordination = connect(guarded, user=USER[0], password=USER[1])
    revision = await coordination.commit([], [Put("a", b"1")])
    old = privates.token(privates.transport(coordination))
    await asyncio.sleep(2.5)
    watch = coordination.watch("", revision - 1)
    assert [change.value for change in await anext(watch)] == [b"1"]
    await asyncio.sleep(2.5)
    assert await coordination.commit([], [Put("a", b"2")])
    assert privates.token(privates.transport(coordination)) != old
    assert [change.value for change in await anext(watch)] == [b"2"]


@pytest.mark.service
async def test_a_change_of_rights_does_not_stop_who_has_them(guarded: EtcdServer, connect: Any) -> None:
    coordination = connect(guarded, user=USER[0], password=USER[1])
    await coordination.get("a")
    guarded.control("--user", "root:root", "user", "add", "another:one")
    assert await coordination.commit([], [Put("a", b"2")])


def certificates(folder: Path) -> Path:
    """A CA, and below it a server's and a client's certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: TLS to etcd is not tested here")

    def openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, cwd=folder)

    new = ("-newkey", "rsa:2048", "-nodes", "-days", "2")
    for name in ("ca", "other"):
        openssl("req", "-x509", *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("server", "client"):
        openssl("req", *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")
    return folder


@pytest.mark.service
@pytest.mark.process
async def test_tls_with_certificates_on_both_sides(tmp_path: Path, etcd_servers: Any, connect: Any) -> None:
    pems = certificates(tmp_path)
    files = ("--cert-file", pems / "server.crt", "--key-file", pems / "server.key")
    server = etcd_servers(*files, "--client-cert-auth", "--trusted-ca-file", pems / "ca.crt", scheme="https")
    ca_file, cert_file, key_file = (str(pems / name) for name in ("ca.crt", "client.crt", "client.key"))
    coordination = connect(server, ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    revision = await coordination.commit([], [Put("a", b"1")])
    assert [change.value for change in await anext(coordination.watch("a", revision - 1))] == [b"1"]
    for wrong in ({}, {"ca_file": ca_file}, {"ca_file": str(pems / "other.crt")}):
        with pytest.raises(CoordinationUnavailable, match=server.endpoint):
            await connect(server, **wrong).get("a")


@pytest.mark.service
async def test_a_missing_pem_file_is_named(etcd_server: EtcdServer) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.crt"):
        EtcdCoordination(Access([etcd_server.endpoint], ca_file="/none.crt"), "")


def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    outer = {key: value for key, value in os.environ.items() if key != NAME}
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env={**outer, **env}, check=False)


@pytest.mark.process
def test_protobuf_keeps_its_fast_form_beside_etcds_messages() -> None:
    program = (
        "from seaweedq.coordination.etcd_transport import rpc\n"
        "from google.protobuf.internal import api_implementation as a\n"
        "request = rpc.PutRequest(key=b'k', value=b'v', lease=7)\n"
        "print(a.Type(), rpc.PutRequest.FromString(request.SerializeToString()) == request)"
    )
    done = run(program)
    assert (done.stdout, done.stderr) == ("upb True\n", "")
    assert run(program, **{NAME: "python"}).stdout == "python True\n"


def test_etcd3_in_another_form_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "etcd3" / "etcdrpc"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "kv_pb2.py").write_text("DESCRIPTOR = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=r"kv_pb2\.py does not contain etcd's message definitions"):
        load_messages()


@pytest.mark.process
def test_a_missing_package_is_named() -> None:
    done = run("import sys; sys.modules['etcd3'] = None; import seaweedq.coordination.etcd_transport")
    assert install_command("etcd") in done.stderr


@pytest.mark.process
def test_the_package_can_be_imported_without_etcd() -> None:
    program = "import sys, seaweedq.coordination, seaweedq.cli.main; print([n for n in sys.modules if 'grpc' in n])"
    assert run(program).stdout == "[]\n"
