"""Jobs killed at each place between their writes, and two at once as processes: longer than tests of each day may be.
`test_generation_commands` has one kill, and two at once in one process."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.spark import read_generation
from tests.spark.jobs.test_export import of_topic, positions, publish
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.job_process import WITHIN_S, environment, is_stopped, job, run
from tests.support.spark.killed_job import kill_and_run_again

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.long,
]


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A topic of 30 messages."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**8}"
    with Client(broker.url) as client:
        client.create_topic(name, initial_segments=2)
        publish(client, name, 0, 30)
    return name


@pytest.mark.parametrize("kind", ["export", "compact"])
@pytest.mark.parametrize("place", ["generation.written", "generation.recorded"])
def test_a_killed_job_is_run_again(
    spark: Any, broker: BrokerProcess, topic: str, tmp_path: Path, kind: str, place: str
) -> None:
    kill_and_run_again(spark, broker.url, topic, tmp_path, kind, place)


def test_of_two_at_once_one_wins(spark: Any, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    arguments = ("export", topic, "--to", tmp_path, "--url", broker.url, "--keep", "0")
    with job(*arguments, env=environment(SEAWEEDQ_FAIL_AT="generation.written:1:stop")) as slow:
        until = time.monotonic() + WITHIN_S
        while not is_stopped(slow):
            assert time.monotonic() < until
            time.sleep(0.2)
        folders = {path.name for path in tmp_path.glob("gen=*")}
        with Client(broker.url) as client:
            publish(client, topic, 30, 35)
            code, _, err = run(*arguments, env=environment())
            assert code == 0, err
            os.kill(slow.pid, signal.SIGCONT)
            _, err = slow.communicate(timeout=WITHIN_S)
            expected = of_topic(client, topic)
    assert slow.returncode == 1
    assert "another job has written generation 1" in err
    assert len(err.splitlines()) == 1
    assert positions(read_generation(spark, str(tmp_path))) == expected
    assert len(folders) == 1
    assert {path.name for path in tmp_path.glob("gen=*")}.isdisjoint(folders)
