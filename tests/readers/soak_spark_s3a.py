"""Spark's own Parquet reader over s3a: each change of a schema, the plain call, and the call for both names of a field.

Spark fetches hadoop-aws and its bundle, of 690 MB, from Maven Central, once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from seaweedq import Client
from tests.readers.test_changes import CHANGES, PLACES, grown
from tests.spark.test_s3 import HADOOP_AWS, NOT_FETCHED
from tests.support.fixtures.spark_session import java
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.s3_service import KEY, SECRET, S3Service
from tests.support.spark.application import ALWAYS
from tests.support.spark.job_process import WITHIN_S, environment

FETCH_S = 600
pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.spark, pytest.mark.soak]

READS = """
import json, sys
from pyspark.sql import SparkSession
from pyspark.sql.functions import coalesce
from seaweedq.spark import read_topic
s3a, url, folder, topics = json.loads(sys.argv[1])
spark = SparkSession.builder.master("local[1]").config(map=s3a).getOrCreate()
def rows(frame, *names):
    found = frame.orderBy("segment", "_offset").select("segment", *names).collect()
    return [row.asDict() for row in found]
for topic, names in topics.items():
    path = f"s3a://{folder}/{topic}"
    plain, found = spark.read.parquet(path), {}
    found["plain"], found["ours"] = rows(plain, *names), rows(read_topic(spark, topic, url=url), *names)
    if "rename" in topic:
        both = spark.read.schema(plain.schema.add("b", "integer")).parquet(path)
        found["both"] = rows(both.withColumn("c", coalesce("c", "b")), *names)
    print(json.dumps([topic, found], default=str))
"""


def test_spark_reads_each_change_over_s3a(moto: S3Service, broker_process: Callable[..., BrokerProcess]) -> None:
    java()
    store = f"{moto.place()}/prod"
    broker = broker_process("--store", f"s3://{store}", "--s3-endpoints", moto.endpoint, env=moto.env)
    s3a = {
        **ALWAYS,
        "spark.jars.packages": HADOOP_AWS,
        "spark.hadoop.fs.s3a.endpoint": moto.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }
    expected: dict[str, list[dict[str, Any]]] = {}
    with Client(broker.url) as client:
        for what in CHANGES:
            for place in PLACES:
                topic = f"{what}-{place}".replace(" ", "-")
                expected[topic] = grown(client, what, place, topic)
    names = {topic: [name for name in rows[0] if name != "segment"] for topic, rows in expected.items()}
    given = [sys.executable, "-W", "ignore", "-c", READS, json.dumps([s3a, broker.url, f"{store}/topics", names])]
    done = subprocess.run(given, env=environment(), text=True, capture_output=True, timeout=WITHIN_S + FETCH_S)
    if done.returncode and not os.environ.get("CI") and any(text in done.stderr for text in NOT_FETCHED):
        pytest.skip(f"{HADOOP_AWS} and its bundle are not cached, and Maven Central does not answer")
    assert done.returncode == 0, done.stderr
    shown = dict(json.loads(line) for line in done.stdout.splitlines())
    assert shown.keys() == expected.keys()
    for topic, rows in json.loads(json.dumps(expected, default=str)).items():
        whole = [{**row, "c": row["c"] or 1} for row in rows] if "rename" in topic else rows
        assert shown[topic].pop("plain") == rows, topic
        assert all(found == whole for found in shown[topic].values()), topic
