"""The check that `helm test` runs in a pod, as the chart renders it."""

import asyncio
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.access.tokens import draw
from seaweedq.clock import SystemIds
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served
from tests.support.http.certificates import Authority
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

Render = Callable[..., dict[str, Any]]


def check(
    manifests: dict[str, Any], port: int, brokers: int, token: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs the container's command with its variables, but for the service, which is on this machine, and the secret's
    token."""
    (container,) = manifests["Pod"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value", token) for variable in container["env"]}
    scheme = "https" if "CA_FILE" in variables else "http"
    assert variables.items() >= {"BROKERS": str(brokers), "SERVICE": f"{scheme}://queue-seaweedq:8080"}.items()
    _, *arguments = container["command"]
    environment = {**os.environ, **variables, "SERVICE": f"{scheme}://127.0.0.1:{port}", **more}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60)


def test_it_publishes_pulls_and_acks_and_leaves_nothing(render: Render, broker: BrokerProcess) -> None:
    done = check(render(replicaCount=1), broker.port, 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("published, pulled and acked\n")
    with Client(broker.url) as client:
        assert list(client.topics()) == []


async def test_it_asks_over_tls_with_a_token_of_only_the_rights_it_needs(render: Render, tmp_path: Path) -> None:
    authority = Authority()
    (ca := tmp_path / "ca.pem").write_bytes(authority.pem)
    (file := tmp_path / "token").write_text(admin := draw(SystemIds()))
    given = {**authority.issue("127.0.0.1").write(tmp_path / "tls"), "auth": "required", "admin_token_file": str(file)}
    of_topics = ["describe", "create", "delete", "publish", "consume", "subscribe"]
    grants = [{"actions": of_topics, "topics": ["helm-test-*"]}, {"actions": ["cluster"]}]
    headers, trusted = {"authorization": f"Bearer {admin}"}, ssl.create_default_context(cafile=ca)
    async with (
        running(tmp_path / "data", **given) as broker,
        served(broker) as serving,
        httpx.AsyncClient(base_url=serving.url, verify=trusted, headers=headers, timeout=30, trust_env=False) as http,
    ):
        assert (await http.put("/v1/principals/test", json={"grants": grants})).status_code == 201
        token = (await http.post("/v1/tokens", json={"principal": "test"})).json()["token"]
        port = int(serving.url.rpartition(":")[2])
        manifests = render("monitored", replicaCount=1, test={"tokenSecret": {"name": "x"}})
        done = await asyncio.to_thread(check, manifests, port, 1, f"{token}\n", CA_FILE=str(ca))
        assert done.returncode == 0, done.stdout + done.stderr
        left = [one["name"] for one in (await http.get("/v1/topics")).json()["topics"]]
        assert set(left) <= {"seaweedq.audit"}
        refused = await asyncio.to_thread(check, render("monitored", replicaCount=1), port, 1, CA_FILE=str(ca))
    assert refused.returncode == 1
    assert "test.tokenSecret or adminToken" in refused.stdout


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
