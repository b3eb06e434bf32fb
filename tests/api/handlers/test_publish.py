"""Publishing over HTTP: four kinds of body, what stands beside the value, producers, encodings."""

import base64
import gzip
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.support.http.asking import ARROW, NDJSON, arrow_stream, fetch, problem_of, send, values
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

OCTETS = {"content-type": "application/octet-stream"}


def publish(http: httpx.Client, topic: str, content: Any, kind: str, **more: Any) -> dict[str, Any]:
    headers = {"content-type": kind, **more.pop("headers", {})}
    answer = http.post(f"{topic}/messages", content=content, headers=headers, **more)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_one_json_message(http: httpx.Client, topic: str) -> None:
    message = {"key": "UA", "value": {"carrier": "UA", "delays": [1, 2.5, None]}, "headers": {"a": "b", "ü": "☃"}}
    answer = http.post(f"{topic}/messages", json=message)
    assert answer.json() == {
        "count": 1,
        "segments": [{"segment": 0, "first_offset": 0, "count": 1}],
        "ids": ["0-0"],
    }
    (read,) = fetch(http, topic)["messages"]
    assert {name: read[name] for name in message} == message
    assert (read["id"], read["segment"], read["offset"]) == ("0-0", 0, 0)
    assert abs(datetime.fromisoformat(read["timestamp"]) - datetime.now(UTC)) < timedelta(minutes=1)
    assert read["timestamp"].endswith("Z")


@pytest.mark.parametrize("count", [40, 500])
def test_many_json_messages_in_the_order_of_the_request(http: httpx.Client, count: int) -> None:
    topic = f"/v1/topics/spread-{count}"
    http.put(topic, json={"initial_segments": 4})
    messages = [{"key": f"k{n}", "value": n} for n in range(count)]
    answer = publish(http, topic, json.dumps({"messages": messages}), "application/json")
    assert answer["count"] == len(set(answer["ids"])) == count
    assert sum(part["count"] for part in answer["segments"]) == count
    assert len(answer["segments"]) == 4
    where = {
        message["id"]: message
        for part in answer["segments"]
        for message in fetch(http, topic, part["segment"])["messages"]
    }
    assert [where[one]["value"] for one in answer["ids"]] == list(range(count))
    assert [where[one]["key"] for one in answer["ids"]] == [m["key"] for m in messages]


def test_ndjson(http: httpx.Client, topic: str) -> None:
    lines = b'{"value": 1, "key": "a"}\n\n {"value": "two\\n"}\r\n{"value": null}'
    assert publish(http, topic, lines, NDJSON)["ids"] == ["0-0", "0-1", "0-2"]
    bare = publish(http, topic, b'{"value": 1}\n"x"\n[]\n', NDJSON, params={"bare": "true"})
    assert bare["ids"] == ["0-3", "0-4", "0-5"]
    assert values(fetch(http, topic)) == [1, "two\n", None, {"value": 1}, "x", []]


def test_one_line_is_one_message(http: httpx.Client, topic: str) -> None:
    """And is no other one than among several lines."""
    line = b'{"value":{"value":1},"key":"a"}'
    assert publish(http, topic, line + b"\r\n", NDJSON)["ids"] == ["0-0"]
    assert publish(http, topic, b"\n" + line, NDJSON)["ids"] == ["0-1"]
    assert publish(http, topic, line, NDJSON, params={"bare": "true"})["ids"] == ["0-2"]
    assert values(fetch(http, topic)) == [{"value": 1}, {"value": 1}, {"value": {"value": 1}, "key": "a"}]
    for wrong, index in (
        (b'{"value":1,"timestamp":"x"}\n', 0),
        (b'\n{"value":1,"timestamp":"x"}', 1),
        (b'{"messages":[]}', 0),
    ):
        found = problem_of(
            http.post(f"{topic}/messages", content=wrong, headers={"content-type": NDJSON}), 422, "invalid-messages"
        )
        assert [one["index"] for one in found["errors"]] == [index]


def test_arrow(http: httpx.Client, topic: str) -> None:
    when = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
    table = pa.table(
        {
            "value": ['{"n":1}', "2"],
            "_key": ["a", None],
            "_timestamp": pa.array([when, None], pa.timestamp("us", "UTC")),
            "_headers": pa.array([[("h", "1")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    answer = publish(http, topic, arrow_stream(table), ARROW)
    assert answer == {"count": 2, "segments": [{"segment": 0, "first_offset": 0, "count": 2}]}
    first, second = fetch(http, topic)["messages"]
    assert (first["value"], first["key"], first["headers"]) == ({"n": 1}, "a", {"h": "1"})
    assert first["timestamp"] == "2013-01-01T05:15:00.000000Z"
    assert (second["value"], second["key"], second["headers"]) == (2, None, {})


def test_bytes_topics_take_anything(http: httpx.Client) -> None:
    path, octets = "/v1/topics/octets", bytes(range(256))
    http.put(path, json={"format": "bytes"})
    assert publish(http, path, octets, "image/png", params={"key": "ü&"})["ids"] == ["0-0"]
    assert http.post(f"{path}/messages", content=b"").status_code == 200  # no type, no body: an empty value
    message = {"value_base64": base64.b64encode(octets).decode(), "headers": {"a": "b"}}
    publish(http, path, json.dumps(message), "application/json")
    publish(http, path, json.dumps(message) + "\n", NDJSON)
    publish(http, path, arrow_stream(pa.table({"value": [octets]})), ARROW)
    read = fetch(http, path)["messages"]
    assert [base64.b64decode(m["value_base64"]) for m in read] == [octets, b"", octets, octets, octets]
    assert not any("value" in m for m in read)
    assert [m["key"] for m in read] == ["ü&", None, None, None, None]
    problem_of(http.post(f"{path}/messages", json={"value": 1}), 422, "invalid-messages", "value")
    bare = http.post(f"{path}/messages?bare=true", content=b"1\n", headers={"content-type": NDJSON})
    problem_of(bare, 422, "invalid-request", "bare")


def test_timestamps_are_the_publishers(http: httpx.Client, topic: str) -> None:
    send(http, topic, 1, timestamp="2013-01-01T05:15:00+05:30")
    assert fetch(http, topic)["messages"][0]["timestamp"] == "2012-12-31T23:45:00.000000Z"
    ahead = (datetime.now(UTC) + timedelta(minutes=50)).isoformat()
    send(http, topic, 1, timestamp=ahead)
    for bad in ((datetime.now(UTC) + timedelta(minutes=70)).isoformat(), "2013-01-01T05:15:00", "yesterday", 5):
        answer = http.post(f"{topic}/messages", json={"value": 1, "timestamp": bad})
        problem_of(answer, 422, "invalid-messages")
    assert fetch(http, topic)["next_offset"] == 2


def test_expired_messages_are_not_read(http: httpx.Client, topic: str) -> None:
    send(http, topic, "kept", expires_in_s=3600)
    past = pa.array([datetime(2020, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC"))
    publish(http, topic, arrow_stream(pa.table({"value": ['"over"', '"last"'], "_expires": past})), ARROW)
    read = fetch(http, topic)
    assert values(read) == ["kept", "last"]
    assert [m["offset"] for m in read["messages"]] == [0, 2]
    assert read["next_offset"] == 3
    for bad in (0, -1, "1x", 1e300):
        answer = http.post(f"{topic}/messages", json={"value": 1, "expires_in_s": bad})
        problem_of(answer, 422, "invalid-messages", "expires_in_s")


def test_a_key_field_is_the_key(http: httpx.Client) -> None:
    path = "/v1/topics/keyed"
    http.put(path, json={"key_field": "k"})
    send(http, path, {"k": "a"}, {"k": 7}, {"k": None}, {}, "text", {"k": True})
    assert [m["key"] for m in fetch(http, path)["messages"]] == ["a", "7", None, None, None, "true"]
    for bad in ({"value": {"k": {}}}, {"value": {"k": []}}, {"key": "b", "value": {"k": "a"}}):
        problem_of(http.post(f"{path}/messages", json=bad), 422, "invalid-messages", "k")
    assert fetch(http, path)["next_offset"] == 6


def test_a_request_with_invalid_messages_is_not_taken_at_all(http: httpx.Client, topic: str) -> None:
    messages: list[dict[str, Any]] = [{"value": n} for n in range(2_200)]
    for n in range(0, 2_200, 2):
        messages[n]["oops"] = 1
    answer = http.post(f"{topic}/messages", json={"messages": messages})
    found = problem_of(answer, 422, "invalid-messages", 1_100, most_bytes=100_000)
    assert found["invalid"] == 1_100
    assert [error["index"] for error in found["errors"]] == list(range(0, 2_000, 2))
    assert all("oops" in error["reason"] for error in found["errors"])
    assert fetch(http, topic)["next_offset"] == 0


def producer(sequence: int, name: str = "p-1") -> dict[str, str]:
    return {"Producer-Id": name, "Producer-Sequence": str(sequence)}


def test_a_repeat_is_answered_with_the_same_ids(http: httpx.Client) -> None:
    path = "/v1/topics/idempotent"
    http.put(path, json={"initial_segments": 3})
    bodies: list[tuple[int, dict[str, Any]]] = [
        (0, {"messages": [{"value": n} for n in range(10)]}),
        (10, {"value": "single"}),
        (11, {"messages": [{"key": f"k{n}", "value": n} for n in range(50)]}),
    ]
    first = [http.post(f"{path}/messages", json=body, headers=producer(at)).json() for at, body in bodies]
    again = [http.post(f"{path}/messages", json=body, headers=producer(at)).json() for at, body in bodies]
    assert [answer.pop("duplicate") for answer in again] == [True, True, True]
    assert again == first
    assert http.get(path).json()["messages"] == 61


def test_out_of_order_is_never_a_200(http: httpx.Client, topic: str) -> None:
    http.post(f"{topic}/messages", json={"messages": [{"value": n} for n in range(5)]}, headers=producer(10))
    for sequence, count in ((11, 1), (9, 3), (14, 2), (3, 1), (10, 4)):
        body = {"messages": [{"value": 0}] * count}
        answer = http.post(f"{topic}/messages", json=body, headers=producer(sequence))
        problem_of(answer, 409, "sequence-out-of-order", "p-1", sequence, 14)
    assert fetch(http, topic)["next_offset"] == 5
    later = http.post(f"{topic}/messages", json={"value": "a gap is taken"}, headers=producer(100))
    assert later.json()["ids"] == ["0-5"]
    other = http.post(f"{topic}/messages", json={"value": 1}, headers=producer(0, "p-2"))
    assert other.json()["ids"] == ["0-6"]


@pytest.mark.parametrize("compress", [gzip.compress, pa.Codec("zstd").compress])
@pytest.mark.parametrize("kind", ["application/json", NDJSON, ARROW, "application/octet-stream"])
def test_bodies_may_be_encoded(http: httpx.Client, compress: Any, kind: str) -> None:
    path = "/v1/topics/encoded"
    http.put(path, json={"format": "bytes"})
    before = http.get(path).json()["messages"]
    body = {
        "application/json": b'{"value_base64":"YQ=="}',
        NDJSON: b'{"value_base64":"YQ=="}\n',
        ARROW: arrow_stream(pa.table({"value": [b"a"]})),
        "application/octet-stream": b"a",
    }[kind]
    encoding = "gzip" if compress is gzip.compress else "zstd"
    publish(http, path, bytes(compress(body)), kind, headers={"content-encoding": encoding})
    (read,) = fetch(http, path, offset=before)["messages"]
    assert read["value_base64"] == "YQ=="


def test_topics_come_into_being_with_their_first_valid_message(http: httpx.Client) -> None:
    path = "/v1/topics/spontaneous"
    problem_of(http.post(f"{path}/messages", json={"oops": 1}), 422, "invalid-messages", "oops")
    problem_of(http.post(f"{path}/messages", content=b"x", headers=OCTETS), 415, "unsupported-content-type")
    problem_of(http.post(f"{path}/messages?format=bytes", json={"value": 1}), 422, "invalid-request", "format")
    problem_of(http.get(path), 404, "topic-not-found")
    send(http, path, 1)
    assert http.get(path).json()["format"] == "json"
    assert values(fetch(http, path)) == [1]


def test_no_topic_comes_into_being_where_that_is_off(broker_process: Any) -> None:
    broker: BrokerProcess = broker_process("--no-auto-create-topics")
    with httpx.Client(base_url=broker.url, timeout=30, trust_env=False) as http:
        answer = http.post("/v1/topics/unknown/messages", json={"value": 1})
        problem_of(answer, 404, "topic-not-found", "unknown")
        assert http.get("/v1/topics").json() == {"topics": []}


def test_stored_json_is_given_back_as_it_was(http: httpx.Client, topic: str) -> None:
    texts = ['{"a":1,"a":2}', "1.10", "12345678901234567890123", '"\\u00e9"', '{ "spaces" : [ ] }', "-0", "1E2"]
    http.post(
        f"{topic}/messages", content="".join(f'{{"value":{t}}}\n' for t in texts), headers={"content-type": NDJSON}
    )
    raw = http.get(f"{topic}/segments/0/messages").text
    assert [part.split(',"headers"')[0] for part in raw.split('"value":')[1:]] == texts
