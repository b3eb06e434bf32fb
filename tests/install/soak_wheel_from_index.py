"""The wheel in an empty environment, with its packages from an index, as a user gets them: broker, publish, query.
Skipped if no index answers."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.installed import Installed
from tests.support.paths import ROOT

pytestmark = [pytest.mark.process, pytest.mark.soak]

INSTALL_S = 280.0


def pip(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests' pip on another environment."""
    command = [sys.executable, "-m", "pip", "--python", str(python), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """An environment with the wheel and the extras of the quick start."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    one_package = ("install", "--quiet", "--retries", "0", "--timeout", "5", "--target", str(tmp_path / "one"))
    if pip(python, *one_package, "--no-deps", "click").returncode != 0:
        pytest.skip("no package index answers")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", ROOT],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    [wheel] = (tmp_path / "dist").glob("*.whl")
    done = pip(python, "install", "--quiet", f"{wheel}[server,sql]")
    assert done.returncode == 0, done.stderr
    return Installed(tmp_path / "env")


def test_a_broker_a_publish_and_a_query(installed: Installed) -> None:
    command = [installed.folder / "bin" / "seaweedq", "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=installed.folder, env=installed.environment(), stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        try:
            greeting = broker.stdout.readline()
            url = greeting.split(" at ")[1].split(",")[0]
            published = installed.run("seaweedq", "publish", "orders", '{"total": 12}', url=url)
            assert published.stdout.startswith("published 1 message to orders"), published.stderr
            found = installed.run("seaweedq", "sql", "SELECT count(*) AS n FROM orders", "-o", "csv", url=url)
            assert found.stdout.split() == ["n", "1"], found.stderr
        finally:
            broker.terminate()
    assert broker.returncode == 0
