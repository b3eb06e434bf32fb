"""Pulls as Arrow, over HTTP: the columns, the lease, relays, and what is refused."""

from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from seaweedq.rows.bodies import ARROW
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import at
from tests.support.http.asking import problem_of

pytestmark = pytest.mark.brokers

TOPIC = "/v1/topics/t"
SUB = f"{TOPIC}/subscriptions/s"


async def _made(http: httpx.AsyncClient, count: int, **settings: Any) -> None:
    assert (await http.put(TOPIC, json={"initial_segments": 2})).status_code == 201
    assert (await http.put(SUB, json={"start": "earliest", **settings})).status_code == 201
    messages = [{"value": {"n": n}, "key": f"k{n}" if n % 3 else None} for n in range(count)]
    assert (await http.post(f"{TOPIC}/messages", json={"messages": messages})).status_code == 200


async def _pull(http: httpx.AsyncClient, **more: Any) -> tuple[str | None, pa.Table]:
    answer = await http.post(f"{SUB}/pull", json=more, headers={"Accept": ARROW})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ARROW
    return answer.headers.get("lease"), pa.ipc.open_stream(answer.content).read_all()


async def test_the_rows_are_those_of_a_json_pull_under_any_broker(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        for number, broker in enumerate(together.brokers):
            async with at(together, broker) as http:
                if not number:
                    await _made(http, 30, mode="shared")
                lease, table = await _pull(http, max_messages=1000, lease=f"mine-{number}")
                assert (lease, table.num_rows) == (f"mine-{number}", 30)
                assert (table.column_names[0], table.column_names[-1]) == ("segment", "_attempt")
                assert {"_offset", "_timestamp", "_key", "value"} < set(table.column_names)
                plain = (await http.post(f"{SUB}/pull", json={"lease": lease})).json()["messages"]
                shown = [(one["segment"], one["offset"], one["key"], one["attempt"]) for one in plain]
                columns = [table.column(name).to_pylist() for name in ("segment", "_offset", "_key", "_attempt")]
                assert sorted(shown) == sorted(zip(*columns, strict=True))
                assert set(columns[-1]) == {number + 1}
                verb = "ack" if number else "nack"
                assert next(iter((await http.post(f"{SUB}/{verb}", json={"lease": lease})).json().values())) == 30


async def test_a_pull_without_messages_is_an_empty_stream_without_a_lease(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        await _made(http, 1)
        lease, table = await _pull(http, lease="first")
        assert (lease, table.num_rows) == ("first", 1)
        none, empty = await _pull(http, lease="second")
        assert (none, empty.num_rows, empty.schema) == (None, 0, table.schema)


async def test_what_is_neither_json_nor_arrow_is_refused(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        await _made(http, 1)
        for accepted in ("text/html", "application/xml, text/*"):
            answer = await http.post(f"{SUB}/pull", json={}, headers={"Accept": accepted})
            problem_of(answer, 406, "not-acceptable", accepted)
        answer = await http.post(f"{SUB}/pull", json={}, headers={"Accept": "text/html, */*;q=0.1"})
        assert len(answer.json()["messages"]) == 1
