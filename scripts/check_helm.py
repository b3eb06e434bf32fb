"""Lint and render the chart with every helm/seaweedq/ci/*-values.yaml; check the outcome against Kubernetes' schemas.

helm is $HELM, the one in .venv/bin, or the one on PATH. If there is none but a Go toolchain, it is built into
.venv/bin once, in about two minutes. If there is neither, this says so and checks nothing; tests/helm still reads
the templates.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "helm" / "seaweedq"
CASES = sorted((CHART / "ci").glob("*-values.yaml"))
MODULE = "helm.sh/helm/v3/cmd/helm@v3.18.6"
BUILD_S = 900
# The oldest that Chart.yaml admits, the first where pods have the zone's label, the newest with schemas.
KUBERNETES = ("1.27", "1.35", kubernetes_validate.latest_version())
# Groups of kinds that operators bring, of which Kubernetes has no schema.
OPERATORS = ("monitoring.coreos.com/", "cert-manager.io/", "keda.sh/")


def find() -> str | None:
    """The helm to use, if there is one."""
    return os.environ.get("HELM") or shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")


def build() -> str:
    """Build helm beside this Python and return it. Raises OSError saying why that cannot be done."""
    go = shutil.which("go")
    if go is None:
        raise OSError("there is neither helm nor Go to build it with")
    print(f"building {MODULE}, once; it takes about two minutes", flush=True)
    home = Path(sys.executable).parent
    done = subprocess.run(
        [go, "install", MODULE],
        env={**os.environ, "GOBIN": str(home)},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    if done.returncode:
        raise OSError(f"go install {MODULE}: {done.stderr.strip().splitlines()[-1]}")
    return str(home / "helm")


def template(helm: str, values: Path, kubernetes: str, *options: str) -> list[dict[str, Any]]:
    """All manifests of a release `queue` in the namespace `queues`. Raises ValueError with what helm complains of."""
    where = ("--namespace", "queues", "--kube-version", kubernetes, "--values", str(values))
    command = [helm, "template", "queue", str(CHART), *where, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def complaints(helm: str) -> Iterator[str]:
    """Everything that is wrong, a line each."""
    for values in CASES:
        lint = subprocess.run(
            [helm, "lint", "--strict", "--quiet", str(CHART), "--values", str(values)], capture_output=True, text=True
        )
        if lint.returncode:
            yield f"{values.name}: {lint.stdout}{lint.stderr}"
            continue
        for kubernetes in KUBERNETES:
            for manifest in template(helm, values, kubernetes):
                yield from (f"{values.name}: {wrong}" for wrong in invalid(manifest, kubernetes))


def invalid(manifest: dict[str, Any], kubernetes: str) -> Iterator[str]:
    """What that version of Kubernetes would refuse; fields that it does not know too."""
    if manifest["apiVersion"].startswith(OPERATORS):
        return
    try:
        kubernetes_validate.validate(manifest, kubernetes, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        yield f"{manifest['kind']} {manifest['metadata']['name']}, Kubernetes {kubernetes}: {error}"


def main() -> int:
    """Check the chart."""
    try:
        helm = find() or build()
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"the chart is not rendered: {error}")
        return 0
    found = list(complaints(helm))
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"the chart renders: {len(CASES)} sets of values, Kubernetes {', '.join(KUBERNETES)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
