"""Jobs killed at each place between their writes, two at once as processes, retention meanwhile, and S3 by Spark's own
file system: longer than tests of each day may be.
`test_generation_commands` has two at once in one process, `test_generations` kills in each interleaving."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from s3fs import S3FileSystem

from seaweedq import Client
from seaweedq.errors import ClientError
from seaweedq.spark import read_generation
from seaweedq.spark.jobs import generation_job
from seaweedq.spark.jobs.compact import Rules, compact
from seaweedq.spark.jobs.export import export
from seaweedq.spark.jobs.generation_job import Target
from seaweedq.spark.jobs.generations import Generations, Place
from tests.spark.jobs.test_compact import found, reference
from tests.spark.jobs.test_export import of_topic, positions, publish
from tests.spark.test_s3 import HADOOP_AWS, NOT_FETCHED
from tests.support.fixtures.spark_session import java
from tests.support.processes.bounded_client import wait_for
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.passed_grace import let_the_grace_pass
from tests.support.processes.s3_service import KEY, SECRET, S3Service
from tests.support.spark.application import ALWAYS
from tests.support.spark.job_process import WITHIN_S, environment, is_stopped, job, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.soak,
]


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


def split(broker: BrokerProcess, segment: int) -> None:
    assert (
        httpx.post(f"{broker.url}/v1/topics/t/segments/{segment}/split", timeout=30, trust_env=False).status_code == 200
    )


def merge(broker: BrokerProcess, one: int, other: int) -> None:
    path = f"{broker.url}/v1/topics/t/segments/{one}/merge"
    assert httpx.post(path, json={"with": other}, timeout=30, trust_env=False).status_code == 200


def test_a_topic_whose_oldest_segments_are_gone(
    spark: Any, broker_process: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """Retention has shortened the lineage: that of a key's newest row may be shorter than that of an older one."""
    broker = broker_process()
    with Client(broker.url) as client:
        client.create_topic("t", initial_segments=2)

        def publish(part: int) -> None:
            client.publish("t", [{"key": f"k{n % 20}", "value": 20 * part + n} for n in range(20)])
            client.flush("t")

        publish(0)
        split(broker, 0)
        publish(1)
        split(broker, 1)
        publish(2)
        merge(broker, 2, 3)
        publish(3)
        to = Target(str(tmp_path))
        assert compact(spark, "t", broker.url, to, Rules()).rows == 20
        first = found(read_generation(spark, str(tmp_path)))
        client.update_topic("t", retention={"max_bytes": 1})
        broker.terminate()
        broker.start()  # a leader's first round is at once
        wait_for(lambda: client.topic("t")["start_offsets"].keys() >= {f"{n}" for n in range(6)})
        client.publish("t", [{"key": f"k{n}", "value": None if n % 2 else n} for n in range(6)])
        rows = client.read_table("t", live=True).to_pylist()
    added = compact(spark, "t", broker.url, to, Rules())
    second = read_generation(spark, str(tmp_path))
    assert found(second) == reference(rows, datetime.now(UTC))
    assert (added.generation, added.read) == (2, len(rows))
    assert found(read_generation(spark, str(tmp_path), 1)) == first, "superseded, and kept for an hour"
    assert second.where("_key = 'k1'").count() == 0


@pytest.mark.parametrize("kind", ["export", "compact"])
def test_what_retention_took_meanwhile_is_named(
    spark: Any, broker_process: Callable[..., BrokerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The files are listed, and gone before they are read: the grace has passed."""
    broker = broker_process()
    with Client(broker.url) as client:
        client.create_topic("t")
        for start in (0, 10, 20):
            publish(client, "t", start, start + 10)
            client.flush("t")
        client.update_topic("t", retention={"max_bytes": 1})
        planned = generation_job.planned_frame

        def overtaken(*arguments: Any) -> Any:
            frame = planned(*arguments)
            files = len(client.files("t"))
            broker.terminate()
            broker.start()  # a leader's first round is at once
            wait_for(lambda: client.segments("t")[0]["start_offset"] > 0)
            broker.kill()
            asyncio.run(let_the_grace_pass(broker))
            broker.start()
            wait_for(lambda: len(list(broker.store.rglob("topics/t/**/*.parquet"))) < files)
            return frame

        monkeypatch.setattr(generation_job, "planned_frame", overtaken)
        to = Target(str(tmp_path))
        with pytest.raises(ClientError, match=r"were deleted \(segment 0, offsets 0 to \d0\) before they were "):
            compact(spark, "t", broker.url, to, Rules()) if kind == "compact" else export(spark, "t", broker.url, to)
    assert not list(tmp_path.glob("gen=*"))


IN_ONE_SESSION = """
import json, sys
from pyspark.sql import SparkSession
from seaweedq import Client
from seaweedq.spark import read_generation
from seaweedq.spark.jobs.compact import Rules, compact
from seaweedq.spark.jobs.export import export
from seaweedq.spark.jobs.generation_job import Target
s3a, url, bucket = json.loads(sys.argv[1])
spark = SparkSession.builder.master("local[1]").config(map=s3a).getOrCreate()
added, read = [], []
to = Target(f"s3a://{bucket}/export", ("_key",), keep_s=0)
with Client(url) as client:
    for start in (0, 20):
        client.publish("t", [{"key": f"k{n % 11}", "value": n} for n in range(start, start + 20)])
        added.append(export(spark, "t", url, to).generation)
        added.append(compact(spark, "t", url, Target(f"s3a://{bucket}/compact", keep_s=0), Rules()).generation)
    try:
        export(spark, "t", url, Target(client.topic("t")["path"] + "/out"))
    except ValueError as error:
        added.append(str(error))
for kind in ("export", "compact"):
    read.append(sorted(int(row.value) for row in read_generation(spark, f"s3a://{bucket}/{kind}").collect()))
print(json.dumps([added, *read]))
"""


@pytest.mark.service
def test_generations_on_s3(moto: S3Service, broker_process: Callable[..., BrokerProcess]) -> None:
    """The session's settings of s3a are those of the records, too. Spark fetches hadoop-aws and its bundle, of 690 MB,
    from Maven Central, once."""
    java()
    broker = broker_process("--store", f"s3://{moto.place()}/prod", env=moto.env)
    bucket = moto.place()
    s3a = {
        **ALWAYS,
        "spark.jars.packages": HADOOP_AWS,
        "spark.hadoop.fs.s3a.endpoint": moto.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }
    with Client(broker.url) as client:
        client.create_topic("t")
    given = [sys.executable, "-W", "ignore", "-c", IN_ONE_SESSION, json.dumps([s3a, broker.url, bucket])]
    done = subprocess.run(given, env=environment(), text=True, capture_output=True, timeout=WITHIN_S)
    if done.returncode and not os.environ.get("CI") and any(text in done.stderr for text in NOT_FETCHED):
        pytest.skip(f"{HADOOP_AWS} and its bundle are not cached, and Maven Central does not answer")
    assert done.returncode == 0, done.stderr
    (*generations, refused), exported, newest = json.loads(done.stdout.splitlines()[-1])
    assert generations == [1, 1, 2, 2]
    assert "is inside the brokers' store" in refused
    assert (exported, newest) == ([*range(40)], [*range(29, 40)])
    storage = {"key": KEY, "secret": SECRET, "endpoint_url": moto.endpoint}
    files = S3FileSystem(use_listings_cache=False, **storage)
    for kind, rows in (("export", 20), ("compact", 11)):
        record = Generations(Place.parse(f"s3a://{bucket}/{kind}"), storage).newest()
        assert record
        assert record.rows == rows
        found = {path.removeprefix(f"{bucket}/{kind}/").split("/")[0] for path in files.find(f"{bucket}/{kind}")}
        assert found == {"_generations", *record.folders}
