"""Writes of Spark that `make soak` runs: 2,000 uploads, two attempts of a task at once, drivers that die at each step,
and two of them on one checkpoint."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seaweedq import Client
from tests.spark.test_write_commits import Job, client, job, many_uploads  # noqa: F401
from tests.support.fixtures.spark_session import java
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.speculation import ROWS, TASKS
from tests.support.spark.standalone import standalone
from tests.support.spark.writing_query import WritingQuery, deadly

pytestmark = [pytest.mark.process, pytest.mark.soak]


def test_two_thousand_uploads_are_one_write(job: Job) -> None:  # noqa: F811
    many_uploads(job, 2000)


def test_a_slow_attempt_and_one_beside_it_write_their_rows_once(broker: BrokerProcess, tmp_path: Path) -> None:
    java()
    environment = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with Client(broker.url) as client, standalone(tmp_path / "cluster", 2, environment) as master:  # noqa: F811
        client.create_topic("speculated")
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.spark.speculation"]
        done = subprocess.run(
            [*command, broker.url, "speculated", master, str(tmp_path)], cwd=ROOT, env={**os.environ, **environment},
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-5000:]
        found = client.read_table("speculated", live=True)["value"].to_pylist()
    assert sorted(map(int, found)) == list(range(ROWS))
    assert len(list((tmp_path / "attempts").iterdir())) > TASKS, "no task was tried twice"


def feed(folder: Path, rows: int) -> None:
    """Writes the files that a query reads."""
    (folder / "in").mkdir()
    for at in range(3):
        lines = [json.dumps({"_key": str(n % 7), "value": str(n)}) for n in range(at, rows, 3)]
        (folder / "in" / f"{at}.json").write_text("\n".join(lines))


@pytest.mark.parametrize("place", ["upload", "commit", "answer"])
def test_a_batch_is_taken_once_wherever_its_driver_died(broker: BrokerProcess, tmp_path: Path, place: str) -> None:
    java()
    feed(tmp_path, 300)
    query, topic = WritingQuery(tmp_path, f"killed-{place}"), f"killed-{place}"
    with Client(broker.url) as client:  # noqa: F811
        client.create_topic(topic, initial_segments=2)
        with deadly(broker.url, query, place) as url:
            assert query.run(url) < 0, (tmp_path / "log").read_text(errors="replace")[-5000:]
        assert query.run(broker.url) == 0, (tmp_path / "log").read_text(errors="replace")[-5000:]
        found = client.read_table(topic, live=True)["value"].to_pylist()
    assert sorted(map(int, found)) == list(range(300))


def test_two_drivers_on_one_checkpoint(broker: BrokerProcess, tmp_path: Path) -> None:
    """One of them may end with an error of Spark's, which has seen the other: what is left is done by the next one."""
    java()
    feed(tmp_path, 3000)
    with Client(broker.url) as client:  # noqa: F811
        client.create_topic("twice", initial_segments=2)
        with ThreadPoolExecutor() as pool:
            ended = list(pool.map(lambda _: WritingQuery(tmp_path, "twice").run(broker.url), range(2)))
        if 0 not in ended:
            assert WritingQuery(tmp_path, "twice").run(broker.url) == 0, (tmp_path / "log").read_text()[-5000:]
        found = client.read_table("twice", live=True)["value"].to_pylist()
    assert sorted(map(int, found)) == list(range(3000))
