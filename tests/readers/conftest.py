"""One broker, one client and one Spark session for this folder, and each reader by name."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.cli.demo.demo_tables import missing_for_spark
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.topic_readers import READERS, SPARK, Reader, spark_reader

QUIET = """
rootLogger.level = off
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session: no UI, no logs, loopback only. Without Java it is a failure in CI, elsewhere a skip."""
    if missing := missing_for_spark():
        print(missing)
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    scratch = tmp_path_factory.mktemp("spark")
    session = _session(scratch)
    yield session
    session.stop()
    _end_java()


def _session(scratch: Path) -> Any:
    logging = scratch / "log4j2.properties"
    logging.write_text(QUIET)
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={logging.as_uri()}",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "America/New_York",  # a moment is the same in any zone
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # pyspark 4.3 on pandas 3
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").appName("readers")
        return builder.config(map=options).getOrCreate()


def _end_java() -> None:
    # pyspark leaves its JVM for the next session; there is none.
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(params=[SPARK, *READERS])
def reader(request: pytest.FixtureRequest) -> Reader:
    """Each reader in turn."""
    if request.param == SPARK:
        return spark_reader(request.getfixturevalue("spark"))
    return READERS[request.param]


@pytest.fixture(scope="session")
def server(broker_processes: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that nothing but the test asks to flush: what the tests leave is below its bounds."""
    return broker_processes()


@pytest.fixture(scope="session")
def client(server: BrokerProcess) -> Iterator[Client]:
    """A client of the broker."""
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="session")
def directory(server: BrokerProcess) -> Callable[[str], str]:
    """The path of a topic's directory: all that a reader is told."""
    return lambda topic: str(server.store / "topics" / topic)
