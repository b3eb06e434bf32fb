"""What an upgrade by helm looks up in the cluster: how many brokers run, and with which cluster secret."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.process

Render = Callable[..., dict[str, Any]]
NAMESPACE = "namespaces/queues"
DEPLOYMENT = f"/apis/apps/v1/{NAMESPACE}/deployments/queue-seaweedq"
SECRET = "not-a-secret-at-all"


def resources(group: str, name: str, kind: str) -> dict[str, Any]:
    """The answer of an API server that is asked for the kinds of a group."""
    kinds = [{"name": name, "kind": kind, "namespaced": True, "verbs": ["get"]}]
    return {"kind": "APIResourceList", "groupVersion": group, "resources": kinds}


def deployment(replicas: int, secret: str = "queue-seaweedq") -> dict[str, Any]:
    container = {"name": "broker", "envFrom": [{"configMapRef": {"name": "x"}}, {"secretRef": {"name": secret}}]}
    metadata = {"name": "queue-seaweedq", "namespace": "queues"}
    spec = {"replicas": replicas, "template": {"spec": {"containers": [container]}}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def secret(name: str, cluster_secret: str) -> dict[str, Any]:
    data = {"SEAWEEDQ_CLUSTER_SECRET": base64.b64encode(cluster_secret.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "queues"}, "data": data}


@pytest.fixture
def running(
    serve: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[int], dict[str, Any]]:
    """Puts a cluster in helm's reach where so many brokers run: all that its API server answers, by path."""

    def there(replicas: int) -> dict[str, Any]:
        answers = {
            "/apis/apps/v1": resources("apps/v1", "deployments", "Deployment"),
            "/api/v1": resources("v1", "secrets", "Secret"),
            DEPLOYMENT: deployment(replicas),
            f"/api/v1/{NAMESPACE}/secrets/queue-seaweedq": secret("queue-seaweedq", SECRET),
            f"/api/v1/{NAMESPACE}/secrets/same": secret("same", SECRET),
            f"/api/v1/{NAMESPACE}/secrets/another": secret("another", "another-one-of-length"),
        }
        gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}

        def answer(requested: str) -> tuple[int, bytes]:
            path = requested.partition("?")[0]
            return (200 if path in answers else 404), json.dumps(answers.get(path, gone)).encode()

        server = {"cluster": {"server": f"http://127.0.0.1:{serve(answer)}"}, "name": "c"}
        context = {"context": {"cluster": "c", "user": ""}, "name": "c"}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [server], "contexts": [context]}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**config, "current-context": "c"}))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        return answers

    return there


@pytest.fixture
def upgrade(render: Render) -> Render:
    """Renders the chart as an upgrade does: templates may look things up."""
    return lambda case="minimal", **values: render(case, "--dry-run=server", **values)


@pytest.mark.parametrize(("runs", "wanted"), [(8, 8), (2, 4)])
def test_autoscaling_begins_with_what_runs(
    running: Callable[..., Any], upgrade: Render, runs: int, wanted: int
) -> None:
    running(runs)
    scaled = upgrade(autoscaling={"enabled": True, "minReplicas": 4, "maxReplicas": 12})
    assert scaled["Deployment"]["spec"]["replicas"] == wanted
    assert upgrade()["Deployment"]["spec"]["replicas"] == 3


def test_a_first_installation_finds_nothing(running: Callable[..., Any], upgrade: Render) -> None:
    answers = running(0)
    del answers[DEPLOYMENT]
    made = upgrade(autoscaling={"enabled": True}, secret={"clusterSecret": "another-one-of-length"})
    assert made["Deployment"]["spec"]["replicas"] == 3


@pytest.mark.parametrize("changed", [{"clusterSecret": "another-one-of-length"}, {"existingSecret": "another"}])
def test_the_cluster_secret_does_not_change_while_brokers_run(
    running: Callable[..., Any], upgrade: Render, changed: dict[str, str]
) -> None:
    answers = running(3)
    with pytest.raises(ValueError, match=r"cluster secret cannot change while brokers run.* scale .*--replicas 0"):
        upgrade(secret=changed)
    answers[DEPLOYMENT] = deployment(0)
    assert upgrade(secret=changed)["Deployment"]["spec"]["replicas"] == 3


def test_the_cluster_secret_may_move_to_another_secret(running: Callable[..., Any], upgrade: Render) -> None:
    running(3)
    moved = upgrade(secret={"existingSecret": "same"})
    (container,) = moved["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"][1] == {"secretRef": {"name": "same"}}
