"""A stream into a topic whose driver is killed between uploads and commit, and goes on from its checkpoint with other
uploads. `test_write_stream` has what dies behind the commit."""

import json
from pathlib import Path

import pytest

from seaweedq import Client
from tests.support.fixtures.spark_session import java
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spark.writing_query import WritingQuery, deadly

pytestmark = [pytest.mark.process, pytest.mark.long]
ROWS = 300


def test_a_batch_is_taken_once_though_its_driver_died_at_the_commit(broker: BrokerProcess, tmp_path: Path) -> None:
    java()
    (tmp_path / "in").mkdir()
    rows = [json.dumps({"_key": str(n % 7), "value": str(n)}) for n in range(ROWS)]
    (tmp_path / "in" / "rows.json").write_text("\n".join(rows))
    query = WritingQuery(tmp_path, "killed")
    with Client(broker.url) as client:
        client.create_topic("killed", initial_segments=2)
        with deadly(broker.url, query) as url:
            assert query.run(url) < 0, (tmp_path / "log").read_text(errors="replace")[-5000:]
        assert query.run(broker.url) == 0, (tmp_path / "log").read_text(errors="replace")[-5000:]
        found = client.read_table("killed", live=True)["value"].to_pylist()
    assert sorted(map(int, found)) == list(range(ROWS))
