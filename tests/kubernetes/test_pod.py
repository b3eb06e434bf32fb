"""A pod as a process: what of its manifest is translated, and what is this machine's."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes.pod import Place, Pod

pytestmark = pytest.mark.process


async def test_a_pod_runs_also_with_its_interpreter_below_the_path_of_a_volume(tmp_path: Path) -> None:
    above = "/" + Path(sys.executable).parts[1]
    container: dict[str, Any] = {"name": "broker", "image": "any", "args": [f"{above}/journal", "--any"]}
    container["volumeMounts"] = [{"name": "data", "mountPath": above}]
    spec = {"containers": [container], "restartPolicy": "Never", "volumes": [{"name": "data", "emptyDir": {}}]}
    entrypoint = [sys.executable, "-c", "import sys; print(sys.argv[1:])"]
    pod = Pod({"metadata": {"name": "one"}, "spec": spec}, Place(tmp_path, "127.0.0.1", entrypoint, dict, {}))
    await pod.run()
    assert pod.phase == "Succeeded", (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text() == f"{[str(tmp_path / 'data' / 'journal'), '--any']}\n"
