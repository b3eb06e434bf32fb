"""Topics on S3: by the data source through fsspec, with the executor's credentials as an option, and by Spark's own
Parquet reader through s3a."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seaweedq import Client
from seaweedq.spark.options import MIB
from tests.spark.test_source_stream import Sink, Writer
from tests.support.fixtures.spark_session import java
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.s3_service import KEY, SECRET, S3Service
from tests.support.spark.application import Application, ApplicationFailed, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.service,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    pytest.mark.long,
]
HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"  # of pyspark 4.3, with the AWS bundle that it names
NOT_FETCHED = ("unresolved dependency", "UNRESOLVED DEPENDENCIES", "download failed", "DOWNLOAD FAILED")


@pytest.fixture
def topic(moto: S3Service, broker_process: Callable[..., BrokerProcess]) -> Iterator[tuple[Writer, BrokerProcess]]:
    """A topic with rows in files on S3, and rows in no file."""
    broker = broker_process("--store", f"s3://{moto.place()}/prod", env=moto.env)
    with Client(broker.url) as client:
        writer = Writer(client, "t")
        writer.publish(200)
        client.flush("t")
        writer.publish(30)
        yield writer, broker


@pytest.mark.spark
def test_the_source_reads_by_fsspec(
    spark: Any, moto: S3Service, topic: tuple[Writer, BrokerProcess], tmp_path: Path
) -> None:
    writer, broker = topic
    storage = {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": moto.endpoint}}
    options = {"url": broker.url, "topic": "t", "storageOptions": json.dumps(storage)}
    rows = spark.read.format("seaweedq").options(**options).load().select("value").collect()
    assert sorted(int(row.value) for row in rows) == list(range(writer.count))
    sink = Sink()
    reader = spark.readStream.format("seaweedq").options(**options, startingOffsets="earliest")
    sunk = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    sunk.trigger(availableNow=True).start().awaitTermination(120)
    writer.check(sink)


@pytest.mark.spark
def test_the_writer_uploads_to_s3(spark: Any, moto: S3Service, broker_process: Callable[..., BrokerProcess]) -> None:
    """By presigned URLs: several files as a whole, and in parts what is larger than `multipart_bytes`. Executors have
    no credentials for it."""
    store = ("--store", f"s3://{moto.place()}/prod")
    broker = broker_process(*store, "--multipart-bytes", str(5 * MIB), env=moto.env)
    with Client(broker.url) as client:
        client.create_topic("t", initial_segments=2)
        client.create_topic("large", format="bytes")

        def save(frame: Any, topic: str, **options: str) -> None:
            given = {"url": broker.url, "topic": topic, "writeId": "w", "writeNumber": "1", **options}
            frame.write.format("seaweedq").options(**given).mode("append").save()

        rows = spark.range(3000).selectExpr("cast(id % 7 as string) _key", "cast(id as string) value")
        save(rows.repartition(3), "t", maxFileBytes="1")
        save(rows.repartition(2), "t", maxFileBytes="1")
        assert sorted(map(int, client.read_table("t", live=True)["value"].to_pylist())) == list(range(3000))
        assert client.last_write("t", "w").uploads == 3
        payload = "unhex(concat_ws('', transform(sequence(1, 3000), n -> sha2(cast(id * 3000 + n as string), 256))))"
        frame = spark.range(0, 70, 1, 1).selectExpr(f"{payload} value")  # 6.4 MiB, which no codec makes smaller
        save(frame, "large", maxFileBytes="64m")
        found = client.read_table("large", live=True)["value"].to_pylist()
        assert Counter(found) == Counter(bytes(row.value) for row in frame.collect())


def test_read_topic_reads_by_s3a(moto: S3Service, topic: tuple[Writer, BrokerProcess], tmp_path: Path) -> None:
    """As docs/do/spark.md says. Spark fetches hadoop-aws and its bundle, of 690 MB, from Maven Central, once."""
    java()
    writer, broker = topic
    config = {
        "spark.jars.packages": HADOOP_AWS,
        "spark.hadoop.fs.s3a.endpoint": moto.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }
    try:
        found = run(Application("t", broker.url, str(tmp_path), ways=("read_topic",), config=config))
    except ApplicationFailed as failed:
        if os.environ.get("CI") or not any(text in str(failed) for text in NOT_FETCHED):
            raise
        pytest.skip(f"{HADOOP_AWS} and its bundle are not cached, and Maven Central does not answer")
    assert found["read_topic"] == list(range(writer.count))
