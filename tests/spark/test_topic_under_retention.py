"""read_topic while retention deletes files: what is below a start is not read, so nobody misses it when it goes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from seaweedq import Client
from seaweedq.spark import read_topic
from tests.support.processes.bounded_client import wait_for
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.passed_grace import let_the_grace_pass

pytestmark = [pytest.mark.process, pytest.mark.spark]

KEYS = 8  # so many that both halves of a segment have some


def publish(client: Client, rounds: Sequence[int]) -> None:
    """Adds a file for each round to each open segment."""
    for n in rounds:
        client.publish("t", [{"key": f"k{key}", "value": KEYS * n + key} for key in range(KEYS)])
        client.flush("t")


def fill(broker: BrokerProcess) -> None:
    """Makes segments that begin at different files: the segment 1, of which all goes, was split into 2 and 3."""
    with Client(broker.url) as client:
        client.create_topic("t", initial_segments=2)
        publish(client, range(3))
        assert httpx.post(f"{broker.url}/v1/topics/t/segments/1/split", timeout=30, trust_env=False).status_code == 200
        publish(client, range(3, 5))
        client.update_topic("t", retention={"max_bytes": 1})


def files(broker: BrokerProcess) -> set[str]:
    return {str(path.relative_to(broker.store)) for path in broker.store.rglob("topics/t/**/*.parquet")}


def test_a_query_misses_no_file_that_was_below_a_start(
    spark: Any, broker_process: Callable[..., BrokerProcess]
) -> None:
    broker = broker_process()
    fill(broker)
    broker.terminate()
    broker.start()  # a leader's first round is at once
    with Client(broker.url) as client:
        wait_for(lambda: client.topic("t")["start_offsets"].keys() == {"0", "1", "2", "3"})
        client.publish("t", [{"value": -1}])
        starts = {each["id"]: each["start_file"] for each in client.segments("t")}
        listed = files(broker)
        frames = [read_topic(spark, "t", broker.url), read_topic(spark, "t", broker.url, segments=[0, 3])]
        assert files(broker) == listed, "the grace is not over"
        rows = client.read_table("t", live=True).to_pylist()
    broker.kill()
    asyncio.run(let_the_grace_pass(broker))
    broker.start()
    below = {path for path in listed if path.rpartition("/")[2] < starts[int(path.split("=")[1].split("/")[0])]}
    wait_for(lambda: not files(broker) & below)
    assert len({*starts.values()}) > 1
    assert {path.split("/")[2] for path in below} == {f"segment={n}" for n in range(4)}
    for frame, segments in zip(frames, ({0, 1, 2, 3}, {0, 3}), strict=True):
        found = sorted((row.segment, row["_offset"], row.value) for row in frame.collect())
        assert found == sorted((r["segment"], r["_offset"], r["value"]) for r in rows if r["segment"] in segments)
        assert found
