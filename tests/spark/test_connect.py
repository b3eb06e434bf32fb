"""Spark in other shapes: Spark Connect, a standalone cluster of processes, and the module by which Spark finds the
source, which imports nothing but Spark's own.
"""

import ast
import json
import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from seaweedq import Client
from tests.spark.test_topic_table import publish
from tests.support.fixtures.spark_session import java
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark import jvm
from tests.support.spark.application import Application, run
from tests.support.spark.standalone import standalone

MODULES = {"grpc": "grpcio", "grpc_status": "grpcio-status", "google.rpc": "googleapis-common-protos"}


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> None:
    """What Spark Connect needs; its absence is a failure in CI, elsewhere a skip."""
    from seaweedq.spark.jobs.session import missing_for_spark

    missing = [package for module, package in MODULES.items() if not find_spec(module)]
    lacks = missing_for_spark() or (
        missing and f"Spark Connect needs {', '.join(missing)}: pip install pyspark[connect]"
    )
    if lacks:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(lacks)


@pytest.mark.process
@pytest.mark.long
def test_a_connect_session_reads_and_writes_topics(connect: None, broker: BrokerProcess, tmp_path: Path) -> None:
    with Client(broker.url) as client:
        client.create_topic("far", initial_segments=2)
        client.create_topic("far-written")
        publish(client, "far", 0, 100)
        client.flush("far")
        publish(client, "far", 100, 120)
    command = [sys.executable, "-m", "tests.support.readers.spark_connect_job"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # a port of its own, else 15002
    }
    arguments = [broker.url, "far", broker.store.as_uri(), str(tmp_path)]
    done = subprocess.run(
        [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("session").startswith("pyspark.sql.connect")
    assert found.pop("store") == list(range(100))
    assert found == {way: list(range(120)) for way in ("driver", "executors", "source", "stream", "written")}


EXECUTORS = {
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": jvm.QUICK,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


@pytest.mark.process
@pytest.mark.long
def test_two_workers_read_a_topic_in_all_ways(broker: BrokerProcess, tmp_path: Path) -> None:
    java()
    with Client(broker.url) as client:
        client.create_topic("spread", initial_segments=4)
        publish(client, "spread", 0, 200)
        client.flush("spread")
        publish(client, "spread", 200, 300)
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with standalone(tmp_path / "cluster", 2, environment) as master:
        asked = Application("spread", broker.url, str(tmp_path), master, config=EXECUTORS, driver_bytes=0)
        found = run(asked)
    everything = list(range(300))
    assert found == {"read_topic": everything, "source": everything, "stream": everything, "executors": 2}


MODULE = ROOT / "pyspark_seaweedq.py"


def test_it_imports_spark_alone() -> None:
    """An import that fails would switch off all Python sources of a session."""
    tree = ast.parse(MODULE.read_text())
    checked = [node for node in tree.body if isinstance(node, ast.If)]
    assert [ast.unparse(node.test) for node in checked] == ["TYPE_CHECKING"]
    found = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    found |= {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
    assert {name for name in found if name and name.split(".")[0] not in sys.stdlib_module_names} == {
        "pyspark.sql.datasource"
    }


def test_what_is_missing_is_said_once_a_source_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from pyspark_seaweedq import DefaultSource

    assert DefaultSource.name() == "seaweedq"
    monkeypatch.setitem(sys.modules, "seaweedq.spark.source", None)
    with pytest.raises(ImportError, match=r"the source seaweedq needs .*: pip install .*\[spark\]'"):
        DefaultSource({"topic": "t"})


def test_the_wheel_has_it() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert MODULE.name in built["wheel"]["packages"]
    assert MODULE.name in built["sdist"]["include"]
