"""Kubernetes' control plane on loopback: an etcd of its own, API server, controllers and scheduler (`make kube`).

There is no kubelet and no network: `kubelet` has a stand-in. The API server has a certificate of the cluster's own CA,
and lets in one token, which may do everything. It issues tokens of service accounts, and tells the keys for them.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.http.certificates import Authority
from tests.support.kubernetes.api import Kubernetes
from tests.support.processes.broker_process import free_port
from tests.support.processes.etcd_service import EtcdServer

TOKEN = "only-for-the-tests"
START_S = 90.0
POLL_S = 0.1
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


class Absent(Exception):
    """The programs are not built."""


def binary(name: str) -> str:
    """A program of `make kube`. Raises Absent."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise Absent("kubernetes: not built here, so not run; `make kube` builds it in ten minutes")
    return found


class ControlPlane:
    """The processes, and how to ask them. `services` are the ranges of services' addresses, of IPv4 and of IPv6."""

    def __init__(self, folder: Path, services: str) -> None:
        self.folder = folder
        self.services = services
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = folder / "kubeconfig"
        self.api = Kubernetes(self.url, TOKEN)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, etcd: str) -> None:
        """Start all on an empty etcd and wait until the API server answers and has its priority classes."""
        self._write()
        self._run(*self._api_server(etcd))
        client = ["--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port=0"]
        self._wait()
        quick = ["--horizontal-pod-autoscaler-sync-period=2s", "--concurrent-deployment-syncs=1"]
        key = f"--service-account-private-key-file={self.folder / 'key.pem'}"
        ca = f"--root-ca-file={self.folder / 'ca.pem'}"
        self._run("kube-controller-manager", *client, *quick, key, ca)
        self._run("kube-scheduler", *client)

    def log(self, name: str) -> str:
        """What a program printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to all: nothing of theirs is kept."""
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.api.close()

    def _write(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self.folder / "key.pem").write_bytes(key.private_bytes(*form))
        authority = Authority("kubernetes")
        (self.folder / "ca.pem").write_bytes(authority.pem)
        authority.issue("127.0.0.1", "localhost", "kubernetes.default.svc").write(self.folder / "certificates")
        (self.folder / "tokens.csv").write_text(f"{TOKEN},tests,tests,system:masters\n")
        named = {"name": "tests"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**named, "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{**named, "user": {"token": TOKEN}}],
            "contexts": [{**named, "context": {"cluster": "tests", "user": "tests"}}],
            "current-context": "tests",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _api_server(self, etcd: str) -> list[str]:
        key, served = self.folder / "key.pem", self.folder / "certificates"
        return [
            "kube-apiserver",
            *("--etcd-servers", etcd, "--secure-port", str(self.port), "--bind-address", "127.0.0.1"),
            *("--advertise-address", "127.0.0.1", "--endpoint-reconciler-type", "none"),
            *("--tls-cert-file", str(served / "cert.pem"), "--tls-private-key-file", str(served / "key.pem")),
            *("--cert-dir", str(served), "--token-auth-file", str(self.folder / "tokens.csv")),
            *("--authorization-mode", "RBAC", "--service-cluster-ip-range", self.services),
            *("--service-account-issuer", self.url, "--service-account-key-file", str(key)),
            *("--service-account-signing-key-file", str(key)),
        ]

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [binary(name), *arguments]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while not self.api.ready():
            assert self.processes[0].poll() is None, self.log("kube-apiserver")[-4000:]
            assert time.monotonic() < end, self.log("kube-apiserver")[-4000:]
            time.sleep(POLL_S)


@contextmanager
def running(folder: Path, services: str) -> Iterator[ControlPlane]:
    """A control plane in an empty folder, gone afterwards. Raises Absent."""
    for name in PROGRAMS:
        binary(name)
    with ExitStack() as stack:
        etcd = EtcdServer(folder / "etcd")
        stack.callback(etcd.kill)
        etcd.start()
        plane = ControlPlane(folder, services)
        stack.callback(plane.kill)
        plane.start(etcd.url)
        yield plane
