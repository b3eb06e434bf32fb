"""Spark Connect: `read_topic`, and the data source where the session has to register it, against a real server."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from seaweedq import Client
from tests.spark.test_topic_table import publish
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.standalone import QUICK

pytestmark = pytest.mark.process

MODULES = {"grpc": "grpcio", "grpc_status": "grpcio-status", "google.rpc": "googleapis-common-protos"}


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> None:
    """What Spark Connect needs; its absence is a failure in CI, elsewhere a skip."""
    from seaweedq.cli.demo.demo_tables import missing_for_spark

    missing = [package for module, package in MODULES.items() if not find_spec(module)]
    lacks = missing_for_spark() or (
        missing and f"Spark Connect needs {', '.join(missing)}: pip install pyspark[connect]"
    )
    if lacks:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(lacks)


@pytest.mark.long
def test_a_connect_session_reads_a_topic(connect: None, broker: BrokerProcess, tmp_path: Path) -> None:
    with Client(broker.url) as client:
        client.create_topic("far", initial_segments=2)
        publish(client, "far", 0, 100)
        client.flush("far")
        publish(client, "far", 100, 120)
    command = [sys.executable, "-m", "tests.support.readers.spark_connect_job"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": QUICK,
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
    assert found == {way: list(range(120)) for way in ("driver", "executors", "source", "stream")}
