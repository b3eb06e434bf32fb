"""Messages that are a key and a value alone: when they are rows of Arrow, when lines, and that both say the same."""

import json
import subprocess
import sys

import httpx
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq import AsyncClient, Client
from seaweedq.client.core.batching import FEWEST, MOST_BYTES, Batcher, Limits, ProducerBatch, Rows, line_of, row_of
from seaweedq.client.core.effects import ARROW, NDJSON
from seaweedq.client.core.segment_map import STALE_S
from seaweedq.client.core.wire import envelope
from seaweedq.errors import InvalidMessages, MessageTooLarge
from tests.support import privates
from tests.support.client import kinds
from tests.support.client.fake_cluster import FakeCluster, lines_of, problem

ARROW_BATCHES = "seaweedq.client.core.arrow_batches"
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
KEYS = st.none() | TEXTS
JSON = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS | st.lists(TEXTS, max_size=3)


def added(batcher: Batcher[object], key: str | None, value: object) -> int:
    """Adds a message as producers do; returns its index."""
    row = row_of(value, key, MOST_BYTES)
    assert row
    return (batcher.join_row(key, *row) or batcher.add_row(key, *row, 0.0))[1]


@given(KEYS, JSON | st.binary(max_size=50))
def test_a_row_as_a_line_is_an_envelope_and_no_larger_than_was_counted(key: str | None, value: object) -> None:
    row = row_of(value, key, MOST_BYTES)
    assert row
    data, is_binary, size = row
    line = line_of(key, data, is_binary)
    assert line == envelope(value, key)
    assert len(line) + 1 <= size


@given(st.lists(st.tuples(KEYS, JSON), min_size=1), st.booleans())
def test_a_stream_of_rows_says_what_their_lines_say(rows: list[tuple[str | None, object]], is_binary: bool) -> None:
    texts = [json.dumps(value).encode() for _, value in rows]
    mine = Rows(is_binary, [key for key, _ in rows], texts)
    stream, lines = (
        httpx.Request("POST", "http://x", headers={"content-type": content_type}, content=content)
        for content_type, content in ((ARROW, mine.stream()), (NDJSON, b"\n".join(mine.lines())))
    )
    assert lines_of(stream) == lines_of(lines)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (msgspec.Raw(b"1\n"), None),
        (bytearray(b"x"), None),
        (memoryview(b"x"), None),
        (b"x" * (MOST_BYTES + 1), None),
        ("x" * MOST_BYTES, None),
        (1, "\ud800"),
        (1, 7),
    ],
)
def test_what_has_to_be_looked_at_again_is_no_row(value: object, key: str | None) -> None:
    assert row_of(value, key, MOST_BYTES) is None


def test_bytes_of_a_subclass_are_bytes() -> None:
    value = np.bytes_(b"x")
    assert row_of(value, None, MOST_BYTES) is None
    assert envelope(value) == envelope(b"x")


def test_what_json_cannot_express_is_refused_by_send_itself() -> None:
    with pytest.raises(TypeError):
        row_of({1, object()}, None, MOST_BYTES)
    assert row_of("12345", None, 6) is None, "over the producer's limit for one message"


def test_lines_and_both_kinds_of_rows_share_a_batch_in_their_order() -> None:
    batcher: Batcher[object] = Batcher(Limits(linger_ms=0), object)
    assert [added(batcher, "a", 1), added(batcher, None, "two")] == [0, 1]
    assert batcher.add_line(envelope(3, headers={"h": "x"}), 0.0)[1] == 2
    assert [added(batcher, None, 4), added(batcher, "b", b"five")] == [3, 4]
    batch = batcher.next_batch()
    assert batch.rows is None
    assert batch.content_type == NDJSON
    found = [msgspec.json.decode(line) for line in batch.lines]
    assert [one.get("value", one.get("value_base64")) for one in found] == [1, "two", 3, 4, "Zml2ZQ=="]
    assert [one.get("key") for one in found] == ["a", None, None, None, "b"]


@given(st.lists(st.sampled_from([1, b"x"]), min_size=1), st.integers(1, 7))
def test_batches_of_rows_end_at_their_limits(values: list[object], most: int) -> None:
    batcher: Batcher[object] = Batcher(Limits(linger_ms=0, batch_messages=most), object)
    assert [added(batcher, None, value) for value in values] == [n % most for n in range(len(values))]
    batcher.close_open()
    left = len(values)
    while left:
        assert batcher.ready_in_s(0.0) == 0
        batch: ProducerBatch[object] = batcher.next_batch()
        assert batch.count == min(most, left)
        left -= batch.count
        batcher.finish()


def types(cluster: FakeCluster) -> list[str]:
    """The content types of the publishes."""
    return [request.headers["content-type"] for request in cluster.requests]


def sent(monkeypatch: pytest.MonkeyPatch, value: object, facts: dict[str, str], count: int) -> FakeCluster:
    """Sends so many messages at once to a topic that the producer knows."""
    kinds.use("rows", monkeypatch)
    monkeypatch.setattr("seaweedq.client.core.streams.FEWEST", FEWEST)
    cluster = FakeCluster(facts=facts)
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t", linger_ms=10_000)
        privates.use_rule(producer._partition, None)
        privates.follow(producer)()
        for n in range(count):
            producer.send(value, key=str(n))
        producer.close()
    assert [one["key"] for one in cluster.messages] == [str(n) for n in range(count)]
    return cluster


@pytest.mark.parametrize(
    ("value", "facts", "count", "expected"),
    [
        ("x", {}, FEWEST, ARROW),
        ("x", {}, FEWEST - 1, NDJSON),
        (b"x", {"format": "bytes"}, FEWEST, ARROW),
        (b"x", {}, FEWEST, NDJSON),
        ("x", {"format": "bytes"}, FEWEST, NDJSON),
        ({"n": 1}, {"format": "typed"}, FEWEST, NDJSON),
    ],
)
def test_rows_are_arrow_where_the_topic_takes_them_and_they_are_many(
    monkeypatch: pytest.MonkeyPatch, value: object, facts: dict[str, str], count: int, expected: str
) -> None:
    assert types(sent(monkeypatch, value, facts, count)) == [expected]


def test_a_topic_that_is_another_now_gets_lines_until_its_rule_is_known() -> None:
    cluster = FakeCluster(facts={"format": "bytes"})
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t", linger_ms=10_000)
        privates.follow(producer)()
        refresh = producer._map_refresh
        refresh.begin()  # as if a fetch were under way, so that none begins
        cluster.facts = {"format": "json"}
        cluster.faults = [lambda request: problem(422, "invalid-request", "the column 'value' is binary")]
        for batch in range(3):
            for n in range(FEWEST):
                producer.send(b"x", key=f"{batch}-{n}")
            producer.flush()
        assert types(cluster) == [ARROW, NDJSON, NDJSON, NDJSON]
        refresh.end(now_s := producer._now_s(), seen=True)
        assert refresh.due(now_s + STALE_S), "its rule is asked for at once"
        assert len(cluster.messages) == 3 * FEWEST
        privates.follow(producer)()
        for _ in range(FEWEST):
            producer.send("x")
        producer.close()
        assert types(cluster)[-1] == ARROW


@given(st.lists(st.tuples(KEYS, st.binary(max_size=20)), min_size=1), st.booleans())
def test_a_stream_of_rows_is_valid_arrow(rows: list[tuple[str | None, bytes]], is_binary: bool) -> None:
    keys, values = map(list, zip(*rows, strict=True))
    if not is_binary:
        values = [json.dumps(value.hex()).encode() for value in values]
    table = pa.ipc.open_stream(Rows(is_binary, keys, values).stream()).read_all()
    table.validate(full=True)
    kind = pa.binary() if is_binary else pa.string()
    keyed = keys.count(None) < len(keys)
    assert table.schema == pa.schema([("_key", pa.string()), ("value", kind)] if keyed else [("value", kind)])
    assert table["value"].cast(pa.binary()).to_pylist() == values
    assert not keyed or table["_key"].to_pylist() == keys


ANSWERS = f"""
import httpx
def answer(request):
    if request.method == "POST":
        types.append(request.headers["content-type"])
        return httpx.Response(200, json={{"count": {FEWEST}, "segments": [], "ids": ["0-0"] * {FEWEST}}})
    whole = {{"id": 0, "low": 0, "high": 2**31 - 1, "state": "open", "owner": "b", "owner_url": "http://test"}}
    return httpx.Response(200, json={{"segments": [whole], "format": "json"}})
types = []
"""


@pytest.mark.process
def test_a_program_that_sends_rows_imports_neither_pyarrow_nor_numpy() -> None:
    program = f"""{ANSWERS}
import sys
sys.modules["pyarrow"] = sys.modules["numpy"] = None
from seaweedq import Client
with Client("http://test", transport=httpx.MockTransport(answer)) as client:
    with client.producer("t", linger_ms=10_000) as producer:
        producer._follow()
        for n in range({FEWEST}):
            producer.send(n, key="k")
assert types == [{ARROW!r}], types
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.process
@pytest.mark.parametrize("topic_format", ["json", "bytes"])
def test_a_broker_stores_rows_as_it_stores_lines_and_names_them(real_client: Client, topic_format: str) -> None:
    name = f"rows-{topic_format}"
    real_client.create_topic(name, format=topic_format, initial_segments=2)
    value = {"n": 1, "text": "\u00e4 \u2028"} if topic_format == "json" else b"\x00\xff"
    with real_client.producer(name) as producer:
        privates.follow(producer)()
        receipts = [producer.send(value, key=f"k{n}" if n % 3 else None) for n in range(3 * FEWEST)]
    ids = [receipt.result() for receipt in receipts]
    assert len(set(ids)) == len(ids)
    found = {}
    for segment in (0, 1):
        for message in real_client.fetch(name, segment, 0, limit=1000).messages:
            found[message.id] = (message.key, message.value)
    assert [found[id] for id in ids] == [(f"k{n}" if n % 3 else None, value) for n in range(3 * FEWEST)]


@pytest.mark.process
def test_one_row_that_a_broker_refuses_fails_alone(real_client: Client) -> None:
    real_client.create_topic("some-rows")
    producer = real_client.producer("some-rows", linger_ms=10_000)
    privates.follow(producer)()
    receipts = [producer.send(n, key="x" * (2 << 20) if n == 7 else None) for n in range(2 * FEWEST)]
    with pytest.raises((InvalidMessages, MessageTooLarge)):
        producer.close()
    assert [n for n, receipt in enumerate(receipts) if receipt.exception()] == [7]
    assert real_client.topic("some-rows")["messages"] == 2 * FEWEST - 1
    assert len({receipt.result() for n, receipt in enumerate(receipts) if n != 7}) == 2 * FEWEST - 1


@pytest.mark.process
async def test_the_async_producer_sends_rows_too(real_broker) -> None:
    async with AsyncClient(real_broker.url) as client:
        await client.create_topic("async-rows", format="bytes")
        async with client.producer("async-rows") as producer:
            await privates.follow(producer)()
            receipts = [await producer.send(b"%d" % n) for n in range(3 * FEWEST)]
        assert [await receipt for receipt in receipts] == [f"0-{n}" for n in range(3 * FEWEST)]


@pytest.mark.process
def test_arrow_is_answered_with_ids_where_they_are_asked_for(real_broker) -> None:
    table = pa.table({"value": ["1", "2"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()
    with httpx.Client(base_url=real_broker.url, headers={"content-type": ARROW}, timeout=30, trust_env=False) as http:
        http.put("/v1/topics/asked", json={})
        at = "/v1/topics/asked/messages"
        assert "ids" not in http.post(at, content=body).json()
        assert http.post(at, content=body, params={"ids": "1"}).json()["ids"] == ["0-2", "0-3"]
        for content, kind in ((body, ARROW), (b"1", NDJSON)):
            refused = http.post(at, content=content, params={"ids": "perhaps"}, headers={"content-type": kind})
            assert refused.status_code == 422
        assert http.get("/v1/topics/asked").json()["messages"] == 4, "what is refused is not stored"


@pytest.mark.process
def test_a_topic_that_was_made_anew_as_bytes_takes_no_json_texts(real_client: Client) -> None:
    real_client.create_topic("anew")
    producer = real_client.producer("anew", linger_ms=10_000)
    privates.follow(producer)()
    real_client.delete_topic("anew")
    real_client.create_topic("anew", format="bytes")
    receipts = [producer.send({"n": n}) for n in range(FEWEST)]
    with pytest.raises(InvalidMessages):
        producer.close()
    assert all(receipt.exception() for receipt in receipts)
    assert real_client.topic("anew")["messages"] == 0


@pytest.mark.process
def test_a_request_for_a_topic_of_another_format_stores_nothing(real_broker) -> None:
    with httpx.Client(base_url=real_broker.url, timeout=30, trust_env=False) as http:
        http.put("/v1/topics/formats", json={"format": "bytes"})
        at = "/v1/topics/formats/messages"
        refused = http.post(at, json={"value_base64": ""}, params={"format": "json"})
        assert refused.status_code == 422
        assert refused.json()["field"] == "format"
        assert http.post(at, json={"value_base64": ""}, params={"format": "bytes"}).status_code == 200
        assert http.get("/v1/topics/formats").json()["messages"] == 1


@pytest.mark.process
def test_an_async_producer_imports_what_cuts_tables_in_a_thread() -> None:
    program = f"""{ANSWERS}
import asyncio, sys, threading
found = []
class Seen:
    def find_spec(self, name, path=None, target=None):
        if name == {ARROW_BATCHES!r}:
            found.append(threading.current_thread() is threading.main_thread())
sys.meta_path.insert(0, Seen())
from seaweedq import AsyncClient
async def main():
    import pyarrow
    async with AsyncClient("http://test", transport=httpx.MockTransport(answer)) as client:
        async with client.producer("t") as producer:
            for _ in range(2):
                await producer.send_table(pyarrow.table({{"value": ["1"]}}))
asyncio.run(main())
assert found == [False], found
"""
    subprocess.run([sys.executable, "-c", program], check=True)
