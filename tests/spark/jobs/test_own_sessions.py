"""Jobs in sessions of their own: by spark-submit, and killed amid a write and started again."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import seaweedq
from seaweedq import Client
from tests.support.fixtures.spark_session import java
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark import jvm
from tests.support.spark.writing_query import deadly

pytestmark = pytest.mark.process
MAIN = Path(seaweedq.__file__).with_name("__main__.py")
WITHIN_S = 240


class Job:
    """A job in a process group of its own, which can be killed with its JVM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.out = ""

    def run(self, *command: str) -> int:
        """Runs it to its end, and returns how it ended."""
        given = {"PYTHONPATH": str(ROOT), "SPARK_SUBMIT_OPTS": jvm.options(), "SPARK_LOCAL_IP": "127.0.0.1"}
        (self._folder / "tmp").mkdir(exist_ok=True)  # what a killed one leaves goes with the folder
        paths = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        paths["TMPDIR"] = str(self._folder / "tmp")
        with (self._folder / "out").open("wb") as out, (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env={**os.environ, **given, **paths}, stdout=out, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        code = self._process.wait(WITHIN_S)
        self.out = (self._folder / "out").read_text()
        return code

    def kill(self) -> None:
        """SIGKILL of all its processes."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    @property
    def log(self) -> str:
        """All that it has said on stderr."""
        return (self._folder / "log").read_text(errors="replace")[-5000:]


@pytest.mark.long
def test_spark_submit_runs_a_job(broker: BrokerProcess, tmp_path: Path) -> None:
    java()
    import pyspark

    home = Path(pyspark.__file__).parent
    with Client(broker.url) as client:
        client.publish("submitted", [{"value": n} for n in range(100)])
        client.flush("submitted")
    submit = [f"SPARK_HOME={home}", str(home / "bin" / "spark-submit"), "--master", "local[2]", str(MAIN)]
    job = Job(tmp_path)
    code = job.run("env", *submit, "spark", "audit", "submitted", "--url", broker.url, "-o", "json")
    assert code == 0, job.log
    found = json.loads(job.out)
    assert (found["findings"], found["segments"][0]["read"]) == ([], 100)


@pytest.mark.long
def test_a_replay_that_was_killed_at_a_write_goes_on(broker: BrokerProcess, tmp_path: Path) -> None:
    java()
    with Client(broker.url) as client:
        client.publish("killed", [{"key": f"k{n % 7}", "value": n} for n in range(300)])
        client.create_topic("again", initial_segments=2)
        job = Job(tmp_path)
        asked = [sys.executable, "-W", "ignore", "-m", "seaweedq", "spark", "replay", "killed", "--into", "again"]
        asked += ["--checkpoint", "at", "--master", "local[2]"]
        with deadly(broker.url, job) as url:
            assert job.run(*asked, "--url", url) < 0, job.log
        assert client.read_table("again", live=True).num_rows == 0
        assert job.run(*asked, "--url", broker.url) == 0, job.log
        assert job.out == "replayed 300 rows of killed into again\n"
        found = client.read_table("again", live=True)["value"].to_pylist()
    assert sorted(map(int, found)) == list(range(300))
    assert not [path for path in tmp_path.iterdir() if path.name not in ("at", "out", "log", "tmp")]
