"""The chart rendered by helm, where there is one: `make check` builds it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "helm" / "seaweedq"


@pytest.fixture
def chart() -> Path:
    return CHART


@pytest.fixture
def check_helm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/check_helm.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import check_helm

    return check_helm


@pytest.fixture
def helm(check_helm: Any) -> str:
    found = check_helm.find()
    if found is None:
        pytest.skip("no helm: `make check` builds it where there is Go")
    return found


@pytest.fixture
def render(helm: str, check_helm: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Render the chart with one of its sets of values and what is given on top: the manifests by kind."""

    def rendered(case: str = "minimal", **values: Any) -> dict[str, Any]:
        on_top = tmp_path / "values.yaml"
        on_top.write_text(yaml.safe_dump(values))
        manifests = check_helm.template(helm, CHART / "ci" / f"{case}-values.yaml", "1.35", "--values", str(on_top))
        return {manifest["kind"]: manifest for manifest in manifests}

    return rendered
