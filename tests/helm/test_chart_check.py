"""The check that `helm test` runs in a pod, as the chart renders it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from seaweedq import Client
from tests.support.processes.broker_process import BrokerProcess

Render = Callable[..., dict[str, Any]]


def check(manifests: dict[str, Any], port: int, brokers: int) -> subprocess.CompletedProcess[str]:
    """Runs the container's command with its variables, but for the service, which is on this machine."""
    (container,) = manifests["Pod"]["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert variables == {"BROKERS": str(brokers), "SERVICE": "queue-seaweedq:8080"}
    _, *arguments = container["command"]
    environment = {**os.environ, **variables, "SERVICE": f"127.0.0.1:{port}"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60)


def test_it_publishes_pulls_and_acks_and_leaves_nothing(render: Render, broker: BrokerProcess) -> None:
    done = check(render(replicaCount=1), broker.port, 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("published, pulled and acked\n")
    with Client(broker.url) as client:
        assert list(client.topics()) == []


def test_it_waits_for_all_brokers_and_fails_where_a_request_is_refused(
    render: Render, serve: Callable[..., int]
) -> None:
    asked: list[str] = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        if "/topics/" in path:
            return 403, b"{}"
        return (503 if len(asked) == 1 else 200), json.dumps({"brokers": [{}] * asked.count("/v1/cluster")}).encode()

    assert check(render(replicaCount=2), serve(answer), 2).returncode == 1
    assert asked[:4] == ["/readyz", "/readyz", "/v1/cluster", "/v1/cluster"]
    assert [path.count("/topics/helm-test-") for path in asked[4:]] == [1, 1]  # it is made, and removed all the same
