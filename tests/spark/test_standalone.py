"""A standalone cluster of Spark: the driver, the master and two workers are processes of their own, and each worker has
its executor, which reads files, and asks brokers for what is in no file."""

import sys
from pathlib import Path

import pytest

from seaweedq import Client
from tests.spark.test_topic_table import publish
from tests.support.fixtures.spark_session import java
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.application import Application, run
from tests.support.spark.standalone import standalone

pytestmark = pytest.mark.process

EXECUTORS = {
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}


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
