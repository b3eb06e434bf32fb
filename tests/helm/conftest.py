"""The chart rendered by helm, where there is one (`make check` builds it), and a small HTTP server to ask."""

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

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
def chart_schema(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/chart_schema.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import chart_schema

    return chart_schema


@pytest.fixture
def helm(check_helm: Any) -> str:
    found = check_helm.find()
    if found is None:
        pytest.skip("no helm: `make check` builds it where there is Go")
    return found


@pytest.fixture
def render(helm: str, check_helm: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Render the chart with one of its sets of values and what is given on top, and with options of helm: the manifests
    by kind; what is of the marker has its name before the kind."""

    def rendered(case: str = "minimal", *options: str, **values: Any) -> dict[str, Any]:
        on_top = tmp_path / "values.yaml"
        on_top.write_text(yaml.safe_dump(values))
        given = ("--values", str(on_top), *options)
        manifests = check_helm.template(helm, CHART / "ci" / f"{case}-values.yaml", "1.35", *given)
        return {_whose(one) + one["kind"]: one for one in manifests}

    return rendered


def _whose(manifest: dict[str, Any]) -> str:
    component = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return "Marker" if component == "marker" else ""


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], tuple[int, bytes]]], int]]:
    """Serve what a function answers to a request for a path, on a free loopback port."""
    with ExitStack() as stack:

        def served(answer: Callable[[str], tuple[int, bytes]]) -> int:
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    status, body = answer(self.path)
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write(body)

                do_PUT = do_POST = do_DELETE = do_GET

                def log_message(self, *args: Any) -> None:
                    """Nothing."""

            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server.server_port

        yield served
