"""One control plane for all tests of this folder, and on it a release of the chart, which uses an etcd and moto."""

import asyncio
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes import control_plane
from tests.support.kubernetes.control_plane import Absent, ControlPlane
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.release import Release
from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.s3_service import KEY, SECRET, S3Service

# Loopback addresses that a suite beside this one does not take: 127.a.b.0/24 are pods, 127.a.0.0/24 services.
NETWORK = f"127.{random.randrange(64, 128)}.{random.randrange(1, 256)}"


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Kubernetes' control plane; without its programs the test is skipped."""
    services = f"10.{NETWORK.split('.')[1]}.0.0/24,fd00::/112"
    try:
        with control_plane.running(tmp_path_factory.mktemp("kubernetes"), services) as found:
            yield found
    except Absent as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="session")
def helm_program() -> str:
    """helm of `make check`."""
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip("no helm: `make check` builds it where there is Go")
    return found


@pytest.fixture(scope="module")
def kubelet(
    request: pytest.FixtureRequest, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kubelet]:
    """Three nodes, whose pods of the release's namespace run. Each module has a namespace."""
    namespace = request.path.stem.replace("_", "-")
    plane.api.namespace(namespace)
    found = Kubelet(plane.api, tmp_path_factory.mktemp("pods"), namespace, NETWORK)
    found.start()
    yield found
    found.end()


@pytest.fixture(scope="module")
def case() -> str:
    """The file of values of the chart that a module installs."""
    return "minimal"


@pytest.fixture(scope="module")
def more() -> dict[str, Any]:
    """The values that a module gives on top."""
    return {}


@pytest.fixture(scope="module")
def release(
    plane: ControlPlane,
    helm_program: str,
    kubelet: Kubelet,
    etcd_server: EtcdServer,
    moto_server: S3Service,
    case: str,
    more: dict[str, Any],
) -> Release:
    """The chart, installed with as few values as it takes."""
    values = {
        "image": {"repository": "seaweedq"},
        "etcd": {
            "endpoints": [etcd_server.endpoint],
            "prefix": f"{kubelet.namespace}/",
            "tls": {"existingSecret": ""},
        },
        "store": {"url": f"s3://{moto_server.bucket()}/m", "endpoints": [moto_server.endpoint], "addressing": "path"},
        "secret": {"clusterSecret": "only-for-these-tests", "accessKeyId": KEY, "secretAccessKey": SECRET},
        **more,
    }
    made = Release(helm_program, plane, kubelet, values, case)
    began = time.monotonic()
    code, printed = asyncio.run(made.apply("install"))
    assert code == 0, printed
    print(f"installed in {time.monotonic() - began:.1f} s")
    return made


@pytest.fixture(autouse=True)
def pods_are_sound(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: the kubelet saw no error, and every pod that was told to stop ended by itself, in its time."""
    yield
    if "kubelet" in request.fixturenames:
        found: Kubelet = request.getfixturevalue("kubelet")
        assert found.errors == []
        assert [stop for stop in found.stops if stop.code or stop.took_s >= stop.grace_s] == []
