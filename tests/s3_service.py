"""Real S3 servers on loopback ports: moto always, SeaweedFS where its binary is (`make weed`).

moto looks whether a name is taken and then writes: one request at a time makes it atomic.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from broker_process import free_port

START_S = 60.0
POLL_S = 0.05
KEY, SECRET = "a-key-of-the-tests", "the-secret-of-the-tests"
_numbers = count(1)


@dataclass(frozen=True)
class S3Service:
    """A running server; `env` is what makes boto's clients find it."""

    endpoint: str
    pid: int

    @property
    def env(self) -> dict[str, str]:
        """Where it is, and who asks, for this process or another."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self) -> str:
        """The name of a fresh bucket."""
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        self._client().create_bucket(Bucket=name)
        return name

    def ready(self) -> bool:
        """Whether it answers."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client().list_buckets()
        except (BotoCoreError, ClientError):
            return False
        return True

    def _client(self):
        import boto3

        session = boto3.Session(KEY, SECRET, region_name="us-east-1")
        return session.client("s3", endpoint_url=self.endpoint)


def _running(port: int, command: Sequence[str], log: Path, env: dict[str, str]) -> Iterator[S3Service]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    service = S3Service(f"http://127.0.0.1:{port}", process.pid)
    try:
        end = time.monotonic() + START_S
        while not service.ready():
            assert process.poll() is None, f"it ended with {process.returncode}: {log.read_text()[-4000:]}"
            assert time.monotonic() < end, f"not ready within {START_S} s: {log.read_text()[-4000:]}"
            time.sleep(POLL_S)
        yield service
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    """S3 by moto, one request at a time."""
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    yield from _running(port, [sys.executable, "-W", "ignore", __file__, str(port)], log, dict(os.environ))


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Service]:
    """S3 by SeaweedFS; skipped where there is no binary."""
    binary = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if binary is None:
        pytest.skip("there is no weed binary: `make weed` builds it where Go gets its source")
    folder = tmp_path_factory.mktemp("seaweedfs")
    services = ("master", "volume", "filer", "s3")
    ports = {f"{service}.port{kind}": free_port() for service in services for kind in ("", ".grpc")}
    options = {"dir": folder, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "webdav": "false", "admin.ui": "false"}
    options |= {"s3.port.iceberg": 0, "admin.port": free_port(), "admin.port.grpc": free_port(), **ports}
    command = [binary, "mini", *(f"-{name}={value}" for name, value in options.items())]
    env = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    yield from _running(ports["s3.port"], command, folder.with_suffix(".log"), env)


def _serve_moto(port: int) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

    moto, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def app(environ, start_response):
        with one:
            return list(moto(environ, start_response))

    make_server("127.0.0.1", port, app, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    _serve_moto(int(sys.argv[1]))
