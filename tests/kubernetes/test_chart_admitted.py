"""An API server takes all that the chart renders, in a namespace that enforces `restricted` pod security."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.paths import ROOT

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.long]
CASES = sorted((ROOT / "helm" / "seaweedq" / "ci").glob("*-values.yaml"))
OPERATORS = (
    ("monitoring.coreos.com", "v1", "PodMonitor"),
    ("cert-manager.io", "v1", "Certificate"),
    ("keda.sh", "v1alpha1", "ScaledObject"),
)


@pytest.fixture
def check_helm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/check_helm.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import check_helm

    return check_helm


@pytest.fixture(scope="module")
def operators(plane: ControlPlane) -> None:
    """The kinds that operators bring: Prometheus', cert-manager's and KEDA's. Their fields are not checked here."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    for group, name, kind in OPERATORS:
        version = {"name": name, "served": True, "storage": True, "schema": schema}
        names = {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind}
        plane.api.create(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{names['plural']}.{group}"},
                "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
            }
        )
        until = time.monotonic() + 30
        while plane.api.ask("GET", f"/apis/{group}/{name}/{names['plural']}").status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize("values", CASES, ids=lambda path: path.name.removesuffix("-values.yaml"))
def test_every_manifest_is_taken_without_a_warning(
    values: Path, plane: ControlPlane, helm_program: str, check_helm: Any
) -> None:
    namespace = values.name.removesuffix("-values.yaml")
    plane.api.namespace(namespace)
    manifests = check_helm.template(helm_program, values, "1.35")
    for manifest in manifests:
        manifest["metadata"].pop("namespace", None)
        assert plane.api.create(manifest, namespace) == [], manifest["kind"]


def test_the_namespace_refuses_what_is_below_its_level(plane: ControlPlane) -> None:
    plane.api.namespace("refusing")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}}
    answer = plane.api.ask(
        "POST", "/api/v1/namespaces/refusing/pods", {**pod, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    )
    assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
