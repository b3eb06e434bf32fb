"""Jobs killed at each place between their writes, and two at once as processes: longer than tests of each day may be.
`test_generation_commands` has two at once in one process, `test_generations` kills in each interleaving."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.spark import read_generation
from seaweedq.spark.jobs.generations import Generations, Place
from tests.spark.jobs.test_export import of_topic, positions, publish
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.job_process import WITHIN_S, environment, is_stopped, job, run

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
    arguments = (kind, topic, "--to", tmp_path, "--url", broker.url, "--keep", "0")
    assert run(*arguments, env=environment(SEAWEEDQ_FAIL_AT=place))[0] == -signal.SIGKILL
    there = Generations(Place.parse(str(tmp_path)))
    assert there.numbers() == ([1] if place == "generation.recorded" else [])
    with Client(broker.url) as client:
        client.publish(topic, [{"key": f"k{n % 11}", "value": n} for n in range(30, 40)])
        code, said, err = run(*arguments, env=environment())
        assert code == 0, err
        expected = sorted(map(int, client.read_table(topic, live=True)["value"].to_pylist()))
    kept = sorted(int(row.value) for row in read_generation(spark, str(tmp_path)).collect())
    newest = there.newest()
    assert newest
    assert {*newest.folders} == {path.name for path in tmp_path.glob("gen=*")}, said
    assert newest.generation == (2 if place == "generation.recorded" else 1)
    assert kept == (expected if kind == "export" else list(range(29, 40)))


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
