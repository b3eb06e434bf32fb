"""Topics over HTTP: created, compared, listed, shown, changed, deleted."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import httpx
import pyarrow.dataset as ds
import pytest

from seaweedq import Client
from tests.support.http.asking import fetch, problem_of, send, values

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "carrier", "required": True, "type": "string"},
        {"id": 2, "name": "delay", "required": False, "type": "long"},
    ],
}


def test_a_topic_is_created_with_the_defaults(http: httpx.Client) -> None:
    made = http.put("/v1/topics/defaults", json={})
    assert made.status_code == 201
    shown = made.json()
    assert shown["format"] == "json"
    assert shown["initial_segments"] == shown["segments"] == 1
    assert shown["messages"] == 0
    assert shown["schema"] is shown["key_field"] is None
    assert shown["path"].endswith("/topics/defaults")
    assert http.get("/v1/topics/defaults").json() == shown
    assert http.put("/v1/topics/defaults", json={}).status_code == 200
    assert http.put("/v1/topics/defaults").status_code == 200


CONFIG: dict[str, Any] = {
    "format": "typed",
    "schema": SCHEMA,
    "key_field": "carrier",
    "initial_segments": 3,
    "scaling": {"max_segments": 8},
    "flush": {"max_age_s": 7, "max_bytes": 65_536},
    "retention": {"max_bytes": 1_000_000},
}
OTHERS: dict[str, Any] = {
    "format": "json",
    "schema": {"type": "struct", "fields": []},
    "key_field": "delay",
    "initial_segments": 4,
    "scaling": {"max_segments": 9},
    "flush": {"max_age_s": 8},
    "retention": {"max_bytes": 1_000_001},
}


@pytest.mark.parametrize("field", CONFIG)
def test_only_named_fields_are_compared(http: httpx.Client, field: str) -> None:
    http.put("/v1/topics/compared", json=CONFIG)
    before = http.get("/v1/topics/compared").json()
    assert http.put("/v1/topics/compared", json={field: CONFIG[field]}).status_code == 200
    refused = http.put("/v1/topics/compared", json=CONFIG | {field: OTHERS[field]})
    found = problem_of(refused, 409, "topic-exists", "compared", field)
    assert list(found["differences"]) == [field]
    assert http.get("/v1/topics/compared").json() == before
    policies = ("scaling", "flush", "retention")
    assert {name: before[name] for name in CONFIG if name not in policies} == {
        name: value for name, value in CONFIG.items() if name not in policies
    }


def test_a_conflict_names_both_values(http: httpx.Client) -> None:
    http.put("/v1/topics/both", json={"format": "typed", "schema": SCHEMA, "scaling": {"max_segments": 8}})
    wanted = {"key_field": "carrier", "scaling": {"max_segments": 9}, "retention": {"max_bytes": 7_000_000}}
    told = problem_of(http.put("/v1/topics/both", json=wanted), 409, "topic-exists")["detail"]
    assert told == (
        "topic 'both' exists: scaling.max_segments is 8 and the request says 9, "
        "retention.max_bytes is null and the request says 7000000, "
        'key_field is null and the request says "carrier"'
    )
    other = {"schema": {"type": "struct", "fields": []}}
    told = problem_of(http.put("/v1/topics/both", json=other), 409, "topic-exists")["detail"]
    assert "schema.fields is [{" in told
    assert told.endswith("... and the request says []")


def test_named_parts_of_flush_and_retention_are_compared_alone(http: httpx.Client) -> None:
    http.put("/v1/topics/parts", json={"flush": {"max_age_s": 7, "max_bytes": 65_536}})
    assert http.put("/v1/topics/parts", json={"flush": {"max_age_s": 7}, "retention": {}}).status_code == 200
    problem_of(http.put("/v1/topics/parts", json={"flush": {"max_bytes": None}}), 409, "topic-exists")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"format": "xml"}, ["format", "xml", "bytes, json, typed"]),
        ({"initial_segments": 0}, ["initial_segments", "0", "at least 1"]),
        ({"initial_segments": 1025}, ["initial_segments", "1025", "1024"]),
        ({"initial_segments": "2"}, ["initial_segments", '"2"', "must be a whole number"]),
        ({"flush": {"max_bytes": 65_535}}, ["flush.max_bytes", "65535", "65536"]),
        ({"flush": {"max_age_s": 0.5}}, ["flush.max_age_s", "0.5", "at least 1"]),
        ({"flush": {"age": 1}}, ["age"]),
        ({"retention": {"max_bytes": 0}}, ["retention.max_bytes", "0"]),
        ({"retention": {"grace_s": 59}}, ["retention.grace_s", "60"]),
        ({"retention": {"enforced": True}}, ["retention", "enforced"]),
        ({"scaling": {"deep": {"er": 1}}}, ["scaling", "deep"]),
        ({"unknown": 1}, ["unknown"]),
        ({"format": "typed"}, ["schema"]),
        ({"schema": SCHEMA}, ["schema"]),
        ({"format": "typed", "schema": {"type": "struct", "fields": []}}, ["0 fields"]),
        ({"format": "typed", "schema": SCHEMA, "key_field": "gate"}, ["gate"]),
        ({"format": "bytes", "key_field": "gate"}, ["bytes"]),
        ({"key_field": ""}, ["key_field"]),
        ({"key_field": "x" * 256}, ["key_field", "255"]),
        ([], ["object"]),
    ],
)
def test_a_configuration_that_is_not_valid_makes_no_topic(http: httpx.Client, config: Any, says: list[str]) -> None:
    problem_of(http.put("/v1/topics/invalid", json=config), 422, "invalid-request", *says)
    problem_of(http.get("/v1/topics/invalid"), 404, "topic-not-found", "invalid")


def test_schemas_that_do_not_fit_are_named(http: httpx.Client) -> None:
    for name, kind in (("_offset", "long"), ("segment", "long"), ("CARRIER", "long"), ("nested", {"type": "list"})):
        fields = [*SCHEMA["fields"], {"id": 9, "name": name, "required": False, "type": kind}]  # type: ignore[misc]
        body = {"format": "typed", "schema": {**SCHEMA, "fields": fields}}
        problem_of(http.put("/v1/topics/unfit", json=body), 422, "invalid-request", name)


def test_change_touches_what_it_names_and_null_brings_the_default_back(http: httpx.Client, topic: str) -> None:
    http.patch(topic, json={"flush": {"max_age_s": 9, "min_bytes": 5}, "retention": {"max_age_s": 60}})
    changed = http.patch(topic, json={"flush": {"max_age_s": None}, "scaling": {"max_segments": 2}})
    assert changed.status_code == 200
    assert changed.json()["flush"] == {"max_bytes": None, "min_bytes": 5, "max_age_s": None}
    assert changed.json()["retention"] == {
        "max_age_s": 60,
        "max_bytes": None,
        "keep_unread": False,
        "delete_read": False,
        "grace_s": None,
        "enforced": True,
    }
    assert changed.json()["scaling"]["max_segments"] == 2
    assert http.get(topic).json() == changed.json()


@pytest.mark.parametrize("field", ["format", "schema", "key_field", "initial_segments"])
def test_what_a_topic_is_cannot_be_changed(http: httpx.Client, topic: str, field: str) -> None:
    problem_of(http.patch(topic, json={field: CONFIG[field]}), 422, "invalid-request", field)


def test_topics_are_listed_by_name_a_page_at_a_time(http: httpx.Client) -> None:
    names = [f"listed-{n}" for n in range(7)]
    for name in names:
        http.put(f"/v1/topics/{name}")
    seen: list[str] = []
    token = "listed"
    pages = 0
    while token and token < "listed-9":
        page = http.get("/v1/topics", params={"page_size": 3, "page_token": token}).json()
        seen += [topic["name"] for topic in page["topics"]]
        assert len(page["topics"]) <= 3
        token, pages = page.get("next_page_token", ""), pages + 1
    assert [name for name in seen if name.startswith("listed-")] == names
    assert pages >= 3
    everything = http.get("/v1/topics").json()
    assert "next_page_token" not in everything
    assert {topic["name"] for topic in everything["topics"]} >= set(names)


@pytest.mark.parametrize("size", ["0", "-1", "1001", "1_0", "x", "1e2", ""])
def test_page_sizes_have_bounds(http: httpx.Client, size: str) -> None:
    problem_of(
        http.get("/v1/topics", params={"page_size": size}), 422, "invalid-request", "page_size", repr(size), 1000
    )


def test_counts_bytes_and_path_are_those_of_the_directory(http: httpx.Client, topic: str) -> None:
    send(http, topic, *range(100))
    young = http.get(topic).json()
    assert young["messages"] == 100
    assert young["bytes"] == 0
    assert young["tail_bytes"] > 0
    assert young["newest_file_at"] is None
    assert http.post(f"{topic}/flush").json() == {"flushed": True}
    shown = http.get(topic).json()
    assert shown["messages"] == 100
    assert shown["tail_bytes"] == 0
    files = http.get(f"{topic}/files").json()["files"]
    assert shown["bytes"] == sum(one["bytes"] for one in files) > 0
    assert abs(datetime.fromisoformat(shown["newest_file_at"]) - datetime.now(UTC)) < timedelta(minutes=5)
    table = ds.dataset(shown["path"].removeprefix("file://"), format="parquet", partitioning="hive").to_table()
    assert sorted(table.column("value").to_pylist(), key=int) == [str(n) for n in range(100)]


def test_the_segment_map_tiles_the_key_space(http: httpx.Client) -> None:
    http.put("/v1/topics/tiled", json={"initial_segments": 4})
    segments = http.get("/v1/topics/tiled/segments").json()["segments"]
    assert [s["id"] for s in segments] == [0, 1, 2, 3]
    assert segments[0]["low"] == 0
    assert segments[-1]["high"] == 2**31 - 1
    assert all(a["high"] == b["low"] for a, b in pairwise(segments))
    leader = http.get("/v1/cluster").json()["leader"]
    for one in segments:
        assert (one["state"], one["owner"], one["owner_url"]) == ("open", leader, str(http.base_url))
        assert one["start_offset"] == one["end_offset"] == 0
        assert one["predecessors"] == one["successors"] == []


def test_a_topic_that_was_deleted_comes_back_with_other_segments(http: httpx.Client) -> None:
    path = "/v1/topics/phoenix"
    http.put(path, json={"initial_segments": 2})
    http.put(f"{path}/subscriptions/s", json={"start": "earliest"})
    send(http, path, 1, 2, 3)
    http.post(f"{path}/flush")
    send(http, path, 4)
    gone = http.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    for answer in (
        http.get(path),
        http.delete(path),
        http.patch(path, json={}),
        http.post(f"{path}/flush"),
        http.get(f"{path}/segments"),
        http.get(f"{path}/segments/0/messages"),
        http.get(f"{path}/subscriptions"),
        http.post(f"{path}/subscriptions/s/pull"),
        http.put(f"{path}/subscriptions/s"),
    ):
        problem_of(answer, 404, "topic-not-found", "phoenix")
    assert http.put(path, json={"initial_segments": 2, "format": "bytes"}).status_code == 201
    assert [s["id"] for s in http.get(f"{path}/segments").json()["segments"]] == [2, 3]
    problem_of(http.get(f"{path}/segments/0/messages"), 404, "segment-not-found", 0)
    problem_of(http.get(f"{path}/subscriptions/s"), 404, "subscription-not-found", "s")
    assert http.get(path).json()["messages"] == 0


def test_typed_topics_keep_columns(http: httpx.Client) -> None:
    path = "/v1/topics/typed"
    assert http.put(path, json={"format": "typed", "schema": SCHEMA, "key_field": "carrier"}).status_code == 201
    send(http, path, {"carrier": "UA", "delay": 12}, {"carrier": "AA"})
    read = fetch(http, path)
    assert values(read) == [{"carrier": "UA", "delay": 12}, {"carrier": "AA", "delay": None}]
    assert [m["key"] for m in read["messages"]] == ["UA", "AA"]
    bad = [{"value": v} for v in ({"carrier": "UA"}, {"delay": 1}, {"carrier": "UA", "delay": "x"}, {"gate": 1}, 7)]
    found = problem_of(http.post(f"{path}/messages", json={"messages": bad}), 422, "invalid-messages", 4)
    assert [e["index"] for e in found["errors"]] == [1, 2, 3, 4]
    assert found["invalid"] == 4
    assert fetch(http, path, offset=2)["messages"] == []
    http.post(f"{path}/flush")
    folder = http.get(path).json()["path"].removeprefix("file://")
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table(columns=["carrier", "delay"])
    assert table.to_pylist() == [{"carrier": "UA", "delay": 12}, {"carrier": "AA", "delay": None}]


def test_a_topic_says_what_a_line_of_ndjson_is(http: httpx.Client) -> None:
    path, lines = "/v1/topics/shipped", {"content-type": "application/x-ndjson"}
    assert http.put(path, json={}).json()["ndjson"] == "envelope"
    problem_of(
        http.post(f"{path}/messages", content=b'{"level":"info"}', headers=lines), 422, "invalid-messages", "bare"
    )
    assert http.patch(path, json={"ndjson": "bare"}).json()["ndjson"] == "bare"
    assert http.put(path, json={"ndjson": "bare"}).status_code == 200
    problem_of(http.put(path, json={"ndjson": None}), 409, "topic-exists", "ndjson")
    assert http.post(f"{path}/messages", content=b'{"level":"info"}\n{"value":1}', headers=lines).json()["count"] == 2
    as_envelope = http.post(f"{path}/messages?bare=0", content=b'{"value":3}', headers=lines)
    assert as_envelope.status_code == 200
    found = http.get(f"{path}/segments/0/messages").json()["messages"]
    assert [message["value"] for message in found] == [{"level": "info"}, {"value": 1}, 3]
    assert http.patch(path, json={"ndjson": None}).json()["ndjson"] == "envelope"
    problem_of(http.put("/v1/topics/raw", json={"format": "bytes", "ndjson": "bare"}), 422, "invalid-request", "ndjson")
    problem_of(http.patch(path, json={"ndjson": "values"}), 422, "invalid-request", "ndjson")


def test_the_python_client_says_what_its_lines_are(http: httpx.Client) -> None:
    http.put("/v1/topics/lines", json={"ndjson": "bare"})
    with Client(str(http.base_url)) as client:
        client.publish("lines", [{"value": 1}, {"value": 2}])
        with client.producer("lines") as producer:
            producer.send(3)
    found = http.get("/v1/topics/lines/segments/0/messages").json()["messages"]
    assert [message["value"] for message in found] == [1, 2, 3]
