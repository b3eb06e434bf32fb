"""Fetching from a segment over HTTP: JSON and Arrow, long poll, bounds and caps."""

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.support.http.asking import ARROW, arrow_stream, arrow_table, fetch, problem_of, send, values
from tests.support.http.raw import answer_of, head
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

CAP = 8 * 1024 * 1024
TIMES = pa.timestamp("us", tz="UTC")


def test_from_any_offset_on(http: httpx.Client, topic: str) -> None:
    send(http, topic, *range(30))
    assert values(fetch(http, topic)) == list(range(30))
    some = fetch(http, topic, offset=7, limit=5)
    assert values(some) == [7, 8, 9, 10, 11]
    assert (some["next_offset"], some["sealed"], some["successors"]) == (12, False, [])
    assert values(fetch(http, topic, offset=29)) == [29]


def test_files_and_tail_are_one_order(http: httpx.Client, topic: str) -> None:
    for start in (0, 10, 20):
        send(http, topic, *range(start, start + 10))
        if start < 20:
            http.post(f"{topic}/flush")
    assert values(fetch(http, topic)) == list(range(30))
    assert values(fetch(http, topic, offset=8, limit=15)) == list(range(8, 23))


def test_the_end_is_valid_and_what_lies_beyond_is_not(http: httpx.Client, topic: str) -> None:
    assert fetch(http, topic)["messages"] == []
    send(http, topic, 1, 2)
    at_end = fetch(http, topic, offset=2)
    assert (at_end["messages"], at_end["next_offset"]) == ([], 2)
    for beyond in (3, 2**53, 2**63 - 1):
        answer = http.get(f"{topic}/segments/0/messages", params={"offset": beyond})
        found = problem_of(answer, 416, "offset-out-of-range", beyond, "which ends at offset 2")
        assert (found["offset"], found["end_offset"]) == (beyond, 2)


@pytest.mark.parametrize("name", ["offset", "limit", "wait_s"])
@pytest.mark.parametrize("text", ["-1", "1_000", "١٢", "1e3", "0x1", "", " 1", "NaN", "9" * 25, "1" * 5000])
def test_numbers_are_plain_and_bounded(http: httpx.Client, topic: str, name: str, text: str) -> None:
    answer = http.get(f"{topic}/segments/0/messages", params={name: text})
    problem_of(answer, 422, "invalid-request", name, repr(text[:50]))


@pytest.mark.parametrize(
    ("name", "value", "bound"), [("limit", 0, 10_000), ("limit", 10_001, 10_000), ("wait_s", 31, 30)]
)
def test_bounds_are_said(http: httpx.Client, topic: str, name: str, value: int, bound: int) -> None:
    answer = http.get(f"{topic}/segments/0/messages", params={name: value})
    problem_of(answer, 422, "invalid-request", name, value, bound)


def test_segments_that_are_not_there(http: httpx.Client, topic: str) -> None:
    for segment in (1, 2**40):
        problem_of(http.get(f"{topic}/segments/{segment}/messages"), 404, "segment-not-found", segment)
    for segment in ("x", "-1", "0.0", "٠", "1" * 30):
        problem_of(http.get(f"{topic}/segments/{segment}/messages"), 422, "invalid-request", "segment")
    problem_of(http.get("/v1/topics/nowhere/segments/0/messages"), 404, "topic-not-found", "nowhere")


def test_arrow_has_all_columns(http: httpx.Client, topic: str) -> None:
    send(http, topic, {"n": 1}, {"n": 2}, key="k", headers={"a": "b"})
    http.post(f"{topic}/flush")
    send(http, topic, {"n": 3})
    answer = http.get(f"{topic}/segments/0/messages", headers={"accept": ARROW}, params={"offset": 1})
    assert answer.headers["content-type"] == ARROW
    assert answer.headers["next-offset"] == "3"
    table = arrow_table(answer.content)
    assert table.column("_offset").to_pylist() == [1, 2]
    assert [json.loads(text) for text in table.column("value").to_pylist()] == [{"n": 2}, {"n": 3}]
    assert table.column("_key").to_pylist() == ["k", None]
    assert table.column("_headers").to_pylist() == [[("a", "b")], None]
    assert {"_timestamp", "_expires", "_reference"} <= set(table.column_names)
    empty = http.get(f"{topic}/segments/0/messages", headers={"accept": ARROW}, params={"offset": 3})
    assert arrow_table(empty.content).schema == table.schema
    assert arrow_table(empty.content).num_rows == 0


def test_expired_messages_are_left_out_or_kept(http: httpx.Client, topic: str) -> None:
    content = arrow_stream(pa.table({"value": list("0123"), "_expires": pa.array([None, 0, 4 * 10**15, 0], TIMES)}))
    assert http.post(f"{topic}/messages", content=content, headers={"content-type": ARROW}).status_code == 200
    for flushed in (False, True):
        assert not flushed or http.post(f"{topic}/flush").status_code == 200
        for kept, wanted in (("skip", [0, 2]), ("keep", [0, 1, 2, 3])):
            assert [each["value"] for each in fetch(http, topic, expired=kept)["messages"]] == wanted
            params = {"expired": kept}
            rows = http.get(f"{topic}/segments/0/messages", headers={"accept": ARROW}, params=params).content
            assert arrow_table(rows).column("_offset").to_pylist() == wanted
    problem = problem_of(http.get(f"{topic}/segments/0/messages", params={"expired": "all"}), 422, "invalid-request")
    assert problem["detail"] == "expired must be skip or keep, not 'all'"


def test_arrow_that_was_fetched_can_be_published_again(http: httpx.Client, topic: str) -> None:
    send(http, topic, {"n": 1}, key="k")
    table = arrow_table(http.get(f"{topic}/segments/0/messages", headers={"accept": ARROW}).content)
    content = arrow_stream(table.select(["value", "_key", "_timestamp", "_headers", "_expires"]))
    assert http.post(f"{topic}/messages", content=content, headers={"content-type": ARROW}).status_code == 200
    first, second = fetch(http, topic)["messages"]
    assert {**first, "id": 0, "offset": 0} == {**second, "id": 0, "offset": 0}


def test_answers_are_capped_but_hold_one_message(
    http: httpx.Client, broker_process: Callable[..., BrokerProcess]
) -> None:
    broker = broker_process("--max-message-bytes", str(12 << 20))
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as client:
        topic = "/v1/topics/big"
        client.put(topic, json={"format": "bytes"})
        kind = {"content-type": "application/octet-stream"}
        client.post(f"{topic}/messages", content=bytes(10 << 20), headers=kind)
        for _ in range(12):
            client.post(f"{topic}/messages", content=bytes(1 << 20), headers=kind)
        for flushed in (False, True):
            if flushed:
                client.post(f"{topic}/flush")
            counts, offset = [], 0
            while offset < 13:
                answer = client.get(
                    f"{topic}/segments/0/messages", params={"offset": offset}, headers={"accept": ARROW}
                )
                offset = int(answer.headers["next-offset"])
                counts.append(arrow_table(answer.content).num_rows)
                assert counts == [1] or len(answer.content) <= CAP
            assert counts[0] == 1
            assert sum(counts) == 13
            assert max(counts) >= 6


def test_the_cap_is_of_the_answer_whatever_the_rows_take_in_memory(http: httpx.Client, topic: str) -> None:
    """Envelopes, base64 and fields that are null are not there in memory, or take less."""
    fields = [
        {"id": n, "name": f"a field of a long name, {n}", "type": "boolean", "required": False} for n in range(1, 101)
    ]
    bodies = {
        "json": ({}, pa.table({"value": [f'"{"x" * 1000}"'] * 9000})),
        "bytes": ({}, pa.table({"value": [bytes(100_000)] * 85})),
        "typed": (
            {"schema": {"type": "struct", "fields": fields}},
            pa.table({fields[0]["name"]: pa.nulls(9000, pa.bool_())}),
        ),
    }
    for format, (more, table) in bodies.items():
        path = f"{topic}.{format}"
        assert http.put(path, json={"format": format, **more}).status_code == 201
        content = arrow_stream(table)
        assert http.post(f"{path}/messages", content=content, headers={"content-type": ARROW}).status_code == 200
        for accept in (ARROW, "application/json"):
            offset = 0
            while offset < table.num_rows:
                options = {"offset": offset, "limit": 10_000}
                answer = http.get(f"{path}/segments/0/messages", params=options, headers={"accept": accept})
                assert len(answer.content) <= CAP
                if accept == ARROW:
                    offsets = arrow_table(answer.content).column("_offset").to_pylist()
                    after = int(answer.headers["next-offset"])
                else:
                    offsets = [message["offset"] for message in answer.json()["messages"]]
                    after = answer.json()["next_offset"]
                assert offsets == list(range(offset, after))
                assert after == table.num_rows or len(answer.content) > CAP - 200_000
                offset = after


def test_limits_reach_ten_thousand(http: httpx.Client, topic: str) -> None:
    content = arrow_stream(pa.table({"value": [str(n) for n in range(12_000)]}))
    http.post(f"{topic}/messages", content=content, headers={"content-type": ARROW})
    assert len(fetch(http, topic)["messages"]) == 1000
    read = fetch(http, topic, limit=10_000)
    assert values(read) == list(range(10_000))
    assert values(fetch(http, topic, limit=10_000, offset=read["next_offset"])) == list(range(10_000, 12_000))


def ask_later(pool: ThreadPoolExecutor, broker: BrokerProcess, path: str) -> "Future[tuple[Any, float]]":
    """A request on a connection of its own, under way when this returns: its answer, and when it came."""
    sock = socket.create_connection(("127.0.0.1", broker.port), timeout=40)
    sock.sendall(head("GET", path))
    for _ in range(3):  # answered behind it
        httpx.get(f"{broker.url}/healthz", timeout=30, trust_env=False).raise_for_status()

    def answered() -> tuple[Any, float]:
        with sock:
            return answer_of(sock).json(), time.monotonic()

    return pool.submit(answered)


def test_a_long_poll_returns_as_soon_as_a_message_comes(http: httpx.Client, topic: str, broker: BrokerProcess) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = [ask_later(pool, broker, f"{topic}/segments/0/messages?wait_s=30") for _ in range(3)]
        with pytest.raises(TimeoutError):
            waiting[0].result(0.3)
        sent = time.monotonic()
        send(http, topic, "now")
        for one in waiting:
            answer, came = one.result(30)
            assert values(answer) == ["now"]
            assert came - sent < 15


def test_a_long_poll_ends_when_its_time_is_over(http: httpx.Client, topic: str) -> None:
    began = time.monotonic()
    assert fetch(http, topic, wait_s=0.4)["messages"] == []
    assert 0.4 <= time.monotonic() - began < 20


def test_a_long_poll_does_not_outlive_its_client(http: httpx.Client, topic: str, broker: BrokerProcess) -> None:
    """Else clients that come and go would take all places."""
    before = connections(http)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", broker.port), timeout=40) as client:
            client.sendall(head("GET", f"{topic}/segments/0/messages?wait_s=30"))
            http.get("/healthz")  # answered behind it
    end_s = time.monotonic() + 20
    while connections(http) > before:
        assert time.monotonic() < end_s
        time.sleep(0.05)


def connections(http: httpx.Client) -> float:
    (line,) = (one for one in http.get("/metrics").text.splitlines() if one.startswith("seaweedq_connections "))
    return float(line.split()[1])


def test_a_long_poll_does_not_outlive_its_topic(http: httpx.Client, topic: str, broker: BrokerProcess) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = ask_later(pool, broker, f"{topic}/segments/0/messages?wait_s=30")
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        http.delete(topic)
        answer, _ = waiting.result(20)
        assert answer["type"] == "/problems/topic-being-deleted"


def test_a_long_poll_is_sent_home_when_the_broker_stops(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process("--shutdown-s", "60")
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=broker.url, timeout=30, trust_env=False) as http:
        http.put("/v1/topics/t")
        waiting = ask_later(pool, broker, "/v1/topics/t/segments/0/messages?wait_s=30")
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        assert broker.terminate() < 20
        assert waiting.result(20)[0]["messages"] == []
