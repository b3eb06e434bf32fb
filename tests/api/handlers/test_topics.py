"""Topics over HTTP: created, compared, listed, shown, changed, deleted. The scaling policy over HTTP: what is shown,
compared, changed and refused; rates, and keys too hot to be split. Many clients at the same names at once: exactly one
wins, nobody meets anything but what the surface says.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import httpx
import pyarrow.dataset as ds
import pytest

from seaweedq import Client
from seaweedq.segments.keyrange import hash_key
from tests.support.http.asking import fetch, problem_of, send, values
from tests.support.processes.broker_process import BrokerProcess

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "carrier", "required": True, "type": "string"},
        {"id": 2, "name": "delay", "required": False, "type": "long"},
    ],
}


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
def test_a_conflict_names_both_values(http: httpx.Client) -> None:
    http.put("/v1/topics/both", json={"format": "typed", "schema": SCHEMA, "scaling": {"max_segments": 8}})
    wanted = {"key_field": "carrier", "scaling": {"max_segments": 9}, "retention": {"max_bytes": 7_000_000}}
    told = problem_of(http.put("/v1/topics/both", json=wanted), 409, "topic-exists")["detail"]
    assert told == (
        "topic 'both' already exists: scaling.max_segments is 8, but the request states 9, "
        "retention.max_bytes is null, but the request states 7000000, "
        'key_field is null, but the request states "carrier"'
    )
    other = {"schema": {"type": "struct", "fields": []}}
    told = problem_of(http.put("/v1/topics/both", json=other), 409, "topic-exists")["detail"]
    assert "schema.fields is [{" in told
    assert told.endswith("..., but the request states []")


@pytest.mark.process
def test_named_parts_of_flush_and_retention_are_compared_alone(http: httpx.Client) -> None:
    http.put("/v1/topics/parts", json={"flush": {"max_age_s": 7, "max_bytes": 65_536}})
    assert http.put("/v1/topics/parts", json={"flush": {"max_age_s": 7}, "retention": {}}).status_code == 200
    problem_of(http.put("/v1/topics/parts", json={"flush": {"max_bytes": None}}), 409, "topic-exists")


@pytest.mark.process
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
        ({"retention": {"forced": True}}, ["retention", "forced"]),
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


@pytest.mark.process
def test_schemas_that_do_not_fit_are_named(http: httpx.Client) -> None:
    for name, kind in (("_offset", "long"), ("segment", "long"), ("CARRIER", "long"), ("nested", {"type": "list"})):
        fields = [*SCHEMA["fields"], {"id": 9, "name": name, "required": False, "type": kind}]  # type: ignore[misc]
        body = {"format": "typed", "schema": {**SCHEMA, "fields": fields}}
        problem_of(http.put("/v1/topics/unfit", json=body), 422, "invalid-request", name)


@pytest.mark.process
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
    }
    assert changed.json()["scaling"]["max_segments"] == 2
    assert http.get(topic).json() == changed.json()


@pytest.mark.process
@pytest.mark.parametrize("field", ["format", "schema", "key_field", "initial_segments"])
def test_what_a_topic_is_cannot_be_changed(http: httpx.Client, topic: str, field: str) -> None:
    fixed = f"the field {field} cannot be changed after creation; the fields that can be changed are"
    fixed = field if field == "schema" else fixed  # a typed topic's can be changed
    problem_of(http.patch(topic, json={field: CONFIG[field]}), 422, "invalid-request", fixed)


@pytest.mark.process
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


@pytest.mark.process
@pytest.mark.parametrize("size", ["0", "-1", "1001", "1_0", "x", "1e2", ""])
def test_page_sizes_have_bounds(http: httpx.Client, size: str) -> None:
    problem_of(
        http.get("/v1/topics", params={"page_size": size}), 422, "invalid-request", "page_size", repr(size), 1000
    )


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
def test_the_python_client_says_what_its_lines_are(http: httpx.Client) -> None:
    http.put("/v1/topics/lines", json={"ndjson": "bare"})
    with Client(str(http.base_url)) as client:
        client.publish("lines", [{"value": 1}, {"value": 2}])
        with client.producer("lines") as producer:
            producer.send(3)
    found = http.get("/v1/topics/lines/segments/0/messages").json()["messages"]
    assert [message["value"] for message in found] == [1, 2, 3]


DEFAULTS = {
    "target_messages_per_s": 200_000,
    "target_bytes_per_s": 33_554_432,
    "min_segments": 1,
    "max_segments": 256,
    "cool_down_s": 600,
    "enabled": True,
}
SET: dict[str, Any] = {
    "target_messages_per_s": 1000,
    "target_bytes_per_s": 4096,
    "min_segments": 2,
    "max_segments": 9,
    "cool_down_s": 7.5,
    "enabled": False,
}


def scaling(answer: httpx.Response) -> Any:
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["scaling"]


@pytest.mark.process
def test_the_policy_is_shown_with_its_defaults(http: httpx.Client, topic: str) -> None:
    assert scaling(http.get(topic)) == DEFAULTS
    made = http.put("/v1/topics/wide", json={"initial_segments": 300, "scaling": {"enabled": False}})
    assert scaling(made) == DEFAULTS | {"min_segments": 300, "max_segments": 300, "enabled": False}
    assert scaling(http.put("/v1/topics/narrow", json={"initial_segments": 3, "scaling": SET})) == SET
    assert scaling(http.get("/v1/topics/narrow")) == SET


@pytest.mark.process
@pytest.mark.parametrize("field", SET)
def test_only_what_a_repeated_creation_names_is_compared(http: httpx.Client, field: str) -> None:
    path = f"/v1/topics/compared-{field}"
    assert http.put(path, json={"scaling": {field: SET[field]}}).status_code == 201
    other = next(name for name in SET if name not in (field, "min_segments"))
    for agreed in ({}, {field: SET[field]}, {other: DEFAULTS[other]}, {other: None}, SET | {other: None}):
        named = {name: agreed[name] for name in (field, other) if name in agreed}
        assert scaling(http.put(path, json={"scaling": named}))[field] == SET[field], named
    for wanted in ({field: DEFAULTS[field]}, {field: None}, {other: SET[other]}):
        found = problem_of(http.put(path, json={"scaling": wanted}), 409, "topic-exists", "scaling")
        told = found["differences"]["scaling"]
        now = scaling(http.get(path))
        assert told == {
            "current": now,
            "requested": now | {n: DEFAULTS[n] if v is None else v for n, v in wanted.items()},
        }


@pytest.mark.process
def test_what_is_named_changes_and_null_brings_the_default_back(http: httpx.Client, topic: str) -> None:
    assert scaling(http.patch(topic, json={"scaling": SET})) == SET
    assert scaling(http.patch(topic, json={"scaling": {"enabled": True}})) == SET | {"enabled": True}
    assert scaling(http.patch(topic, json={"scaling": {}})) == SET | {"enabled": True}
    assert scaling(http.patch(topic, json={"flush": {"max_age_s": 9}})) == SET | {"enabled": True}
    assert scaling(http.patch(topic, json={"scaling": dict.fromkeys(SET)})) == DEFAULTS
    assert scaling(http.get(topic)) == DEFAULTS


@pytest.mark.process
@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"target_messages_per_s": 0}, ["scaling.target_messages_per_s", "not 0", "at least 1"]),
        ({"target_messages_per_s": 2**53 + 1}, ["scaling.target_messages_per_s", "at most 9007199254740992"]),
        ({"target_messages_per_s": 1.5}, ["scaling.target_messages_per_s", "not 1.5", "must be a whole number"]),
        ({"target_messages_per_s": "10"}, ["scaling.target_messages_per_s", '"10"', "must be a whole number"]),
        ({"target_bytes_per_s": True}, ["scaling.target_bytes_per_s", "not true", "must be a whole number"]),
        ({"min_segments": 0}, ["scaling.min_segments", "not 0", "at least 1"]),
        ({"max_segments": 10_001}, ["scaling.max_segments", "not 10001", "at most 10000"]),
        ({"min_segments": 9, "max_segments": 8}, ["scaling.min_segments", "not 9", "at most max_segments=8"]),
        ({"cool_down_s": 0.9}, ["scaling.cool_down_s", "not 0.9", "at least 1"]),
        ({"cool_down_s": 86_401}, ["scaling.cool_down_s", "not 86401", "at most 86400"]),
        ({"enabled": 1}, ["scaling.enabled", "not 1", "must be true or false"]),
        ({"enable": True}, ["scaling", "enable"]),
        (None, ["scaling", "null"]),
        ([], ["scaling", "object"]),
    ],
)
def test_what_is_refused_is_named_with_its_bound(http: httpx.Client, topic: str, wanted: Any, says: list[str]) -> None:
    for answer in (
        http.put("/v1/topics/refused", json={"scaling": wanted}),
        http.patch(topic, json={"scaling": wanted}),
        http.put(topic, json={"scaling": wanted}),
    ):
        if answer.status_code == 409:  # valid by itself, and another one than the topic's
            continue
        found = problem_of(answer, 422, "invalid-request", *says)
        assert {"field", "value", "bound"} <= found.keys()
    assert http.get("/v1/topics/refused").status_code == 404
    assert scaling(http.get(topic)) == DEFAULTS


@pytest.mark.process
def test_a_change_must_go_together_with_what_is_there(http: httpx.Client, topic: str) -> None:
    http.patch(topic, json={"scaling": {"max_segments": 8}})
    refused = http.patch(topic, json={"scaling": {"min_segments": 9}, "flush": {"max_age_s": 3}})
    problem_of(refused, 422, "invalid-request", "scaling.min_segments", "not 9", "at most max_segments=8")
    shown = http.get(topic).json()
    assert (shown["scaling"], shown["flush"]["max_age_s"]) == (DEFAULTS | {"max_segments": 8}, None)
    problem_of(http.put(topic, json={"scaling": {"min_segments": 9}}), 409, "topic-exists", "scaling")


def open_segments(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = http.get(f"{topic}/segments").json()["segments"]
    return [segment for segment in segments if segment["state"] == "open"]


def soon(what: Callable[[], Any]) -> Any:
    """What comes within some seconds."""
    end = time.monotonic() + 30
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return found


@pytest.mark.long
@pytest.mark.process
def test_rates_are_those_of_what_was_published(http: httpx.Client) -> None:
    path = "/v1/topics/measured"
    http.put(path)
    began = time.monotonic()
    for number in range(60):
        send(http, path, *range(10))
        time.sleep(max(0.0, began + (number + 1) / 10 - time.monotonic()))
    rate = 600 / (time.monotonic() - began)
    (segment,) = open_segments(http, path)
    assert segment["end_offset"] == 600
    assert segment["rates"]["messages_per_s"] == pytest.approx([rate] * 4, rel=0.3)
    assert segment["hot_key"] is None
    each = http.get(path).json()["tail_bytes"] / 600
    assert segment["rates"]["bytes_per_s"] == pytest.approx([rate * each] * 4, rel=0.5)


@pytest.mark.process
def test_a_hot_key_is_told_and_a_sealed_segment_has_neither_rates_nor_key(http: httpx.Client) -> None:
    path, many = "/v1/topics/hot", {"target_messages_per_s": 10, "cool_down_s": 1}
    http.put(path, json={"initial_segments": 2, "scaling": many})
    key = next(f"key-{n}" for n in range(100) if hash_key(f"key-{n}") >= 2**30)

    def flood() -> list[dict[str, Any]]:
        send(http, path, *range(100), key=key)
        return [segment for segment in open_segments(http, path) if segment["hot_key"]]

    hot = soon(flood)
    assert [(s["id"], s["hot_key"]) for s in hot] == [(1, {"hash": hash_key(key), "share": 1.0})]
    assert http.get(path).json()["hot_segments"] == [1]
    assert http.patch(path, json={"scaling": {"enabled": False}}).json()["hot_segments"] == []  # so that is not why
    http.patch(path, json={"scaling": {"enabled": True, "target_messages_per_s": 10**6}})
    assert http.post(f"{path}/segments/1/split").status_code == 200
    sealed = {s["id"]: (s["rates"], s["hot_key"]) for s in http.get(f"{path}/segments").json()["segments"]}
    assert sealed[1] == (None, None)
    idle = {"messages_per_s": [0.0] * 4, "bytes_per_s": [0.0] * 4}
    assert sealed[0] == sealed[2] == sealed[3] == (idle, None)
    assert http.get(path).json()["hot_segments"] == []


CLIENTS = 16


@pytest.fixture
def at_once(broker: BrokerProcess) -> Iterator[Callable[[Callable[[httpx.Client, int], Any]], list[Any]]]:
    """Runs a function in as many threads as there are clients, each with a connection of its own."""
    clients = [httpx.Client(base_url=broker.url, trust_env=False, timeout=30) for _ in range(CLIENTS)]
    for client in clients:
        client.get("/healthz")
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield lambda work: list(pool.map(work, clients, range(CLIENTS)))
    for client in clients:
        client.close()


AtOnce = Callable[[Callable[[httpx.Client, int], Any]], list[Any]]


@pytest.mark.process
def test_one_creates_a_topic_and_all_others_find_it(http: httpx.Client, at_once: AtOnce) -> None:
    for n in range(5):
        seen = Counter(at_once(lambda client, _, n=n: client.put(f"/v1/topics/raced-{n}").status_code))  # type: ignore[misc]
        assert seen == {201: 1, 200: CLIENTS - 1}
        assert [s["id"] for s in http.get(f"/v1/topics/raced-{n}/segments").json()["segments"]] == [0]


@pytest.mark.process
def test_one_configuration_wins(http: httpx.Client, at_once: AtOnce) -> None:
    answers = at_once(lambda client, n: client.put("/v1/topics/contested", json={"initial_segments": n + 1}))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 409: CLIENTS - 1}
    won = next(answer for answer in answers if answer.status_code == 201).json()
    assert http.get("/v1/topics/contested").json() == won


@pytest.mark.process
def test_the_first_messages_of_a_topic_are_all_taken(http: httpx.Client, at_once: AtOnce) -> None:
    answers = at_once(lambda client, n: send(client, "/v1/topics/sprung", n))
    assert sorted(one for ids in answers for one in ids) == sorted(f"0-{n}" for n in range(CLIENTS))
    assert sorted(values(fetch(http, "/v1/topics/sprung"))) == list(range(CLIENTS))


@pytest.mark.process
def test_one_creates_a_subscription(http: httpx.Client, topic: str, at_once: AtOnce) -> None:
    path = f"{topic}/subscriptions/raced"
    seen = Counter(at_once(lambda client, _: client.put(path, json={"start": "earliest"}).status_code))
    assert seen == {201: 1, 200: CLIENTS - 1}


@pytest.mark.process
def test_deleting_publishing_and_creating_at_once_ends_well(http: httpx.Client, at_once: AtOnce) -> None:
    path = "/v1/topics/churned"

    def churn(client: httpx.Client, n: int) -> Counter[int]:
        asked: Counter[int] = Counter()
        for _ in range(10):
            match n % 4:
                case 0:
                    answer = client.delete(path)
                case 1:
                    answer = client.put(path, json={})
                case 2:
                    answer = client.post(f"{path}/messages", json={"value": n})
                case _:
                    answer = client.get(f"{path}/segments/0/messages")
            asked[answer.status_code] += 1
        return asked

    seen: Counter[int] = sum(at_once(churn), Counter())
    assert set(seen) <= {200, 201, 204, 404, 409}
    assert http.put(path).status_code in (200, 201)
    before = http.get(path).json()["messages"]
    send(http, path, "after")
    assert http.get(path).json()["messages"] == before + 1


@pytest.mark.process
def test_pulls_of_one_consumer_never_share_a_message(http: httpx.Client, at_once: AtOnce) -> None:
    topic, sub = "/v1/topics/shared-out", "/v1/topics/shared-out/subscriptions/s"
    http.put(topic, json={"initial_segments": 3})
    http.put(sub, json={"start": "earliest"})
    sent = send(http, topic, *range(2000))

    def work(client: httpx.Client, _: int) -> list[str]:
        got: list[str] = []
        while messages := client.post(f"{sub}/pull", json={"max_messages": 20, "wait_s": 0.1}).json()["messages"]:
            ids = [message["id"] for message in messages]
            assert client.post(f"{sub}/ack", json={"ids": ids}).json() == {"acked": len(ids), "late": 0, "unknown": []}
            got += ids
        return got

    seen = Counter(one for got in at_once(work) for one in got)
    assert set(seen) == set(sent)
    assert set(seen.values()) == {1}
    assert sum(one["messages"] for one in http.get(sub).json()["lag"]) == 0


@pytest.mark.process
def test_a_producer_that_repeats_itself_at_once_is_stored_once(http: httpx.Client, topic: str, at_once: AtOnce) -> None:
    headers = {"Producer-Id": "p", "Producer-Sequence": "0"}
    body = {"messages": [{"value": n} for n in range(10)]}
    answers = at_once(lambda client, _: client.post(f"{topic}/messages", json=body, headers=headers).json())
    assert sum("duplicate" not in answer for answer in answers) == 1
    assert {str(answer["ids"]) for answer in answers} == {str([f"0-{n}" for n in range(10)])}
    assert fetch(http, topic)["next_offset"] == 10
