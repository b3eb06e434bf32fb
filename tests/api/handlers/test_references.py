"""Publishing by reference and reading it again, at a broker with a local store."""

import json
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from seaweedq import Client
from tests.support.http.referring import begin, digest, naming, publish, read, upload
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

ARROW = "application/vnd.apache.arrow.stream"


def problem(http: httpx.Client, topic: str, body: Any, status: int, slug: str) -> dict[str, Any]:
    answer = http.post(f"{topic}/messages", json=body)
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["type"]) == (status, f"/problems/{slug}"), answer.text
    return found


@pytest.mark.parametrize("flush", [False, True])
def test_a_message_with_a_payload(http: httpx.Client, broker: BrokerProcess, topic: str, flush: bool) -> None:
    content = b"hello \xff world"
    made = upload(http, topic, content, content_type="image/png")
    assert publish(http, topic, naming(made, key="k", headers={"a": "b"})) == ["0-0"]
    if flush:
        http.post(f"{topic}/flush")
    (message,) = read(http, topic)
    reference = message.pop("reference")
    assert (message["key"], message["value"], message["headers"]) == ("k", None, {"a": "b"})
    assert reference["uri"].startswith(f"file://{broker.store}/_payloads/{topic.rpartition('/')[2]}/")
    assert {n: reference[n] for n in ("size", "content_type", "sha256")} == {
        "size": len(content),
        "content_type": "image/png",
        "sha256": digest(content),
    }
    assert httpx.get(reference["url"], timeout=30, trust_env=False).content == content
    assert Path(reference["uri"].removeprefix("file://")).read_bytes() == content


def test_values_and_payloads_in_one_request(http: httpx.Client, topic: str, octets: str) -> None:
    for path, value in ((topic, {"value": {"n": 1}}), (octets, {"value_base64": "QUJD"})):
        first, second = upload(http, path, b"one"), upload(http, path, b"")
        messages = [naming(first), value, naming(second), naming(first, key="again")]
        body = "\n".join(map(json.dumps, messages))
        answer = http.post(f"{path}/messages", content=body, headers={"content-type": "application/x-ndjson"})
        assert answer.json()["ids"] == [f"0-{n}" for n in range(4)]
        publish(http, path, *messages)
        found = read(http, path)
        name = next(iter(value))
        assert [each[name] for each in found] == [None, value[name], None, None] * 2
        assert [each.get("reference", {}).get("size") for each in found] == [3, None, 0, 3] * 2
        assert found[0]["reference"]["uri"] == found[3]["reference"]["uri"] == found[4]["reference"]["uri"]


def test_what_subscribers_get(http: httpx.Client, topic: str, octets: str) -> None:
    for path in (topic, octets):
        made = upload(http, path, b"for all")
        http.put(f"{path}/subscriptions/s", json={"start": "earliest"})
        publish(http, path, naming(made))
        (message,) = http.post(f"{path}/subscriptions/s/pull", json={"wait_s": 5}).json()["messages"]
        assert message["attempt"] == 1
        assert message.get("value_base64" if path == octets else "value", 0) is None
        assert httpx.get(message["reference"]["url"], timeout=30, trust_env=False).content == b"for all"


def test_every_reader_takes_the_nulls(http: httpx.Client, broker: BrokerProcess, topic: str) -> None:
    made = upload(http, topic, b"content")
    name = topic.rpartition("/")[2]
    publish(http, topic, {"value": 1}, naming(made, key="k"))
    http.post(f"{topic}/flush")
    publish(http, topic, naming(made), {"value": None})
    values = ["1", None, None, "null"]
    with Client(broker.url) as client:
        table = client.read_table(name, live=True).sort_by("_offset")
        assert table["value"].to_pylist() == values
        assert [each and each["size"] for each in table["_reference"].to_pylist()] == [None, 7, 7, None]
        assert [each.value for each in client.fetch(name, 0, 0).messages] == [1, None, None, None]
    answer = http.get(f"{topic}/segments/0/messages", headers={"accept": ARROW})
    arrow = pa.ipc.open_stream(answer.content).read_all()
    assert arrow["value"].to_pylist() == values
    assert arrow["_reference"].to_pylist() == table["_reference"].to_pylist()
    http.post(f"{topic}/flush")
    folder = broker.store / "topics" / name
    files = ds.dataset(folder, format="parquet", partitioning="hive").to_table().sort_by("_offset")
    assert files["value"].to_pylist() == values
    assert list(files.to_pandas()["value"].isna()) == [False, True, True, False]
    query = f"select value, _reference.sha256 from read_parquet('{folder}/**/*.parquet') order by _offset"
    expected = [(v, digest(b"content") if v is None else None) for v in values]
    assert duckdb.sql(query).fetchall() == expected


def test_what_cannot_be_published(http: httpx.Client, topic: str, octets: str) -> None:
    good, other = upload(http, topic, b"x"), upload(http, octets, b"x")
    begun = begin(http, topic, 5)["upload_id"]
    unknown = good[:-1] + ("0" if good[-1] != "0" else "1")
    for bad, status, slug in (
        ("nothing", 404, "upload-not-found"),
        (unknown, 404, "upload-not-found"),
        (other, 404, "upload-not-found"),  # another topic's
        (begun, 409, "upload-incomplete"),
    ):
        problem(http, topic, naming(bad), status, slug)
        found = problem(http, topic, {"messages": [naming(good), {"value": 1}, naming(bad)]}, 422, "invalid-messages")
        assert [(each["index"], each["type"]) for each in found["errors"]] == [(2, f"/problems/{slug}")]
    assert read(http, topic) == []  # nothing was taken
    gone = upload(http, topic, b"x")
    assert http.delete(f"{topic}/uploads/{gone}").status_code == 204
    problem(http, topic, naming(gone), 404, "upload-not-found")


def test_a_topic_that_is_not_there_is_not_made(http: httpx.Client, topic: str) -> None:
    problem(http, f"{topic}-x", naming("20261121-0-" + "0" * 32), 404, "topic-not-found")
    assert http.get(f"{topic}-x").status_code == 404


def test_typed_topics_take_none(http: httpx.Client, topic: str) -> None:
    fields = [{"id": 1, "name": "n", "required": False, "type": "int"}]
    http.put(f"{topic}-t", json={"format": "typed", "schema": {"type": "struct", "schema-id": 0, "fields": fields}})
    found = problem(http, f"{topic}-t", naming("x"), 422, "invalid-messages")
    assert "typed" in found["detail"]


def test_arrow_takes_none(http: httpx.Client, topic: str) -> None:
    table = pa.table({"value": ["1"], "_reference": pa.array([{"uri": "file:///etc/passwd", "size": 1}])})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    answer = http.post(f"{topic}/messages", content=bytes(sink.getvalue()), headers={"content-type": ARROW})
    assert answer.status_code == 422, answer.text


def test_repeats_of_producers(http: httpx.Client, topic: str) -> None:
    made = upload(http, topic, b"once")
    for messages, sequence in ([naming(made)], 0), ([naming(made), {"value": 1}, naming(made)], 1):
        producer = {"Producer_Id": "p", "Producer_Sequence": str(sequence)}
        ids = publish(http, topic, *messages, **producer)
        assert publish(http, topic, *messages, **producer) == ids
    assert len(read(http, topic)) == 4


def test_a_restart_keeps_them(broker: BrokerProcess, http: httpx.Client, topic: str) -> None:
    made = upload(http, topic, b"kept")
    publish(http, topic, naming(made), {"value": 1})
    before = read(http, topic)
    broker.kill()
    broker.start()
    after = read(http, topic)
    for message in (*before, *after):
        message.get("reference", {}).pop("url", None)
    assert after == before
    assert http.get(f"{topic}/segments/0/messages/0/payload").content == b"kept"
