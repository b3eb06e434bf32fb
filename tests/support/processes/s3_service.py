"""Real S3 servers on loopback ports: moto always, as it is and behind the fronts of `seaweedfs_front`; MinIO and
SeaweedFS where their binaries are (`make minio`, `make weed`).

`moto_process` serves moto.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from tests.support.processes.broker_process import free_port

START_S = 60.0
POLL_S = 0.05
YOURS = "SEAWEEDQ_TEST_S3"
KEY, SECRET = "a-key-of-the-tests", "the-secret-of-the-tests"
Command, Env = list[str], dict[str, str]
_numbers = count(1)
_shared: dict[str, str] = {}  # by endpoint


@dataclass(frozen=True)
class S3Service:
    """A running server; `env` is what makes boto's clients find it."""

    endpoint: str
    pid: int
    given: str = ""  # a bucket of somebody's own server, whose credentials boto finds by itself

    @property
    def env(self) -> dict[str, str]:
        """Where it is, and who asks, for this process or another."""
        if self.given:
            return {"AWS_ENDPOINT_URL_S3": self.endpoint}
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def place(self) -> str:
        """A bucket and a prefix that nobody uses yet. All tests share the bucket: SeaweedFS gives each bucket volumes
        of its own, and runs out of them."""
        if self.endpoint not in _shared:
            _shared[self.endpoint] = self.given or self.bucket()
        return f"{_shared[self.endpoint]}/{os.getpid()}-{next(_numbers)}"

    def bucket(self) -> str:
        """The name of a fresh bucket, for what needs a whole one. Raises Absent where one bucket was given."""
        if self.given:
            raise Absent(f"{YOURS} names the one bucket that tests may use")
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        self._client().create_bucket(Bucket=name)
        return name

    def buckets(self) -> list[str]:
        """The names of all buckets."""
        return [found["Name"] for found in self._client().list_buckets()["Buckets"]]

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

        session = boto3.Session() if self.given else boto3.Session(KEY, SECRET, region_name="us-east-1")
        return session.client("s3", endpoint_url=self.endpoint)


class Absent(Exception):
    """There is no binary of this server; the text says how to get one."""


def _moto(folder: Path, port: int, front: str = "") -> tuple[Command, Env]:
    return [sys.executable, "-W", "ignore", str(Path(__file__).with_name("moto_process.py")), str(port), front], {}


def _minio(folder: Path, port: int) -> tuple[Command, Env]:
    addresses = ["--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{free_port()}"]
    quiet = {"MINIO_UPDATE": "off", "MINIO_BROWSER": "off", "HOME": str(folder)}  # it asks nobody, serves no pages
    command = [_binary("minio"), "server", *addresses, "--certs-dir", str(folder / "certs"), str(folder / "data")]
    kms = {"MINIO_KMS_SECRET_KEY": "tests:OSMM+vkKUTCvQs9YL/CVMIMt43HFhkUpqJxTmGl6rYw="}
    return command, {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, **quiet, **kms}


def _seaweedfs(folder: Path, port: int) -> tuple[Command, Env]:
    services = ("master", "volume", "filer", "s3")
    ports = {f"{service}.port{kind}": free_port() for service in services for kind in ("", ".grpc")} | {"s3.port": port}
    options = {"dir": folder, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "webdav": "false", "admin.ui": "false"}
    options |= {"s3.port.iceberg": 0, "admin.port": free_port(), "admin.port.grpc": free_port(), **ports}
    command = [_binary("weed"), "mini", *(f"-{name}={value}" for name, value in options.items())]
    return command, {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def _binary(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise Absent(f"there is no {name} binary: `make {name}` builds it where Go gets its source")
    return found


def yours() -> S3Service:
    """The server that the variable YOURS names as http://host:port/bucket."""
    endpoint, _, bucket = os.environ[YOURS].rstrip("/").rpartition("/")
    return S3Service(endpoint, 0, bucket)


SERVERS: dict[str, Callable[[Path, int], tuple[Command, Env]]] = {
    "moto": _moto,
    "moto_as_seaweedfs": partial(_moto, front="seaweedfs"),
    "moto_astray": partial(_moto, front="astray"),
    "minio": _minio,
    "seaweedfs": _seaweedfs,
}


@contextmanager
def running(kind: str, folder: Path) -> Iterator[S3Service]:
    """A server of SERVERS that keeps what it has in `folder`; gone afterwards. Raises Absent."""
    sys.audit("tests.service", kind)
    command, env = SERVERS[kind](folder, port := free_port())
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **env}
        )
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
