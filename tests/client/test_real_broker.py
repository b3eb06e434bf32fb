"""The client against a real broker: every call once, a broker killed under producers and subscribers, and first
programs: the default address, keywords, reprs, and the log line of a handler that failed.
"""

import asyncio
import inspect
import logging
import subprocess
import sys
import threading
import traceback
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from seaweedq import AsyncBatch, AsyncClient, AsyncMessage, Batch, Client, Message, Published
from seaweedq.cli.shared import common
from seaweedq.client.http import DEFAULT_URL
from seaweedq.errors import InvalidMessages, OffsetOutOfRange, SubscriptionNotFound, TopicConflict, TopicNotFound
from tests.support import privates


@pytest.mark.process
def test_topics_come_change_and_go(real_client):
    made = real_client.create_topic("life", key_field="k", initial_segments=2)
    assert made["key_field"] == "k"
    assert real_client.create_topic("life") == real_client.topic("life")
    with pytest.raises(TopicConflict) as conflict:
        real_client.create_topic("life", key_field="other")
    assert "key_field" in conflict.value.fields["differences"]
    assert str(conflict.value).endswith(
        """topic 'life' already exists: key_field is "k", but the request states "other\""""
    )
    assert len(traceback.extract_tb(conflict.tb)) == 3, "the caller's line, the method and the call"
    assert "life" in [topic["name"] for topic in real_client.topics()]
    assert len(real_client.segments("life")) == 2
    assert real_client.update_topic("life", flush={"max_age_s": 7})["flush"]["max_age_s"] == 7
    real_client.delete_topic("life")
    with pytest.raises(TopicNotFound):
        real_client.topic("life")


@pytest.mark.process
def test_publish_fetch_and_the_fields_of_a_message(real_client):
    at = datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    one = {"value": {"a": [1, None]}, "key": "k", "headers": {"h": "x"}, "timestamp": at}
    published = real_client.publish("fields", one)
    assert (published.count, published.ids, published.duplicate) == (1, ["0-0"], False)
    assert real_client.publish("fields", [{"value": 1}, {"value": None}]).ids == ["0-1", "0-2"]
    page = real_client.fetch("fields", 0, 0)
    first = page.messages[0]
    assert (first.id, first.key, first.value, first.headers, first.timestamp) == (
        "0-0",
        "k",
        one["value"],
        {"h": "x"},
        at,
    )
    assert [message.value for message in page.messages[1:]] == [1, None]
    assert page.next_offset == 3
    with pytest.raises(OffsetOutOfRange):
        real_client.fetch("fields", 0, 4)


@pytest.mark.process
def test_receipts_name_every_message_and_a_wrong_kind_of_value_is_refused(real_client):
    with real_client.producer("ids") as producer:
        receipts = [producer.send(n, key=str(n)) for n in range(1000)]
    assert producer.acknowledged == 1000
    assert len({receipt.result() for receipt in receipts}) == 1000
    with pytest.raises(InvalidMessages), real_client.producer("ids") as producer:
        producer.send(b"no bytes here")


@pytest.mark.process
def test_subscriptions_keep_their_place_and_show_lag(real_client):
    real_client.publish("place", [{"value": n} for n in range(10)])
    for message in real_client.subscribe("place", "s", start="earliest", idle_timeout_s=2):
        message.ack()
        if message.offset == 5:
            break
    assert [sub["name"] for sub in real_client.subscriptions("place")] == ["s"]
    assert sum(segment["messages"] for segment in real_client.subscription("place", "s")["lag"]) == 4
    real_client.delete_subscription("place", "s")
    with pytest.raises(SubscriptionNotFound):
        real_client.subscription("place", "s")


@pytest.mark.process
def test_a_live_table_has_what_is_flushed_and_what_is_not(real_client):
    real_client.create_topic("table", initial_segments=3)
    with real_client.producer("table") as producer:
        for n in range(12_000):
            producer.send(n, key=str(n))
    real_client.flush("table")
    with real_client.producer("table") as producer:
        for n in range(12_000, 40_000):
            producer.send(n, key=str(n))
    live = real_client.read_table("table", columns=["value", "_key", "segment", "_offset"], live=True)
    assert sorted(int(value) for value in live["value"].to_pylist()) == list(range(40_000))
    assert live["_key"].to_pylist() == live["value"].to_pylist()
    assert len(set(zip(live["segment"].to_pylist(), live["_offset"].to_pylist(), strict=True))) == 40_000
    assert real_client.read_table("table", live=False).num_rows == 12_000
    assert real_client.read_table("table", live=True).schema.names == real_client.read_table("table").schema.names


@pytest.mark.process
def test_tables_go_to_typed_and_bytes_topics_in_pieces(real_client):
    fields = [
        {"id": 1, "name": "n", "required": False, "type": "long"},
        {"id": 2, "name": "s", "required": False, "type": "string"},
    ]
    real_client.create_topic(
        "typed", format="typed", schema={"type": "struct", "schema-id": 0, "fields": fields}, key_field="s"
    )
    real_client.create_topic("octets", format="bytes")
    typed = pa.table({"n": pa.array(range(5000), pa.int64()), "s": [f"x{n}" for n in range(5000)]})
    octets = pa.table({"value": pa.array([bytes([n % 256]) * 3000 for n in range(5000)], pa.binary())})
    with real_client.producer("typed") as first, real_client.producer("octets") as second:
        assert len(first.send_table(typed)) == 1
        pieces = second.send_table(octets)
        assert len(pieces) == 2
        assert sum(piece.result(30).count for piece in pieces) == 5000
    found = real_client.read_table("typed", columns=["n", "s", "_key"], live=True).sort_by("n")
    assert found.select(["n", "s"]).equals(typed)
    assert found["_key"].equals(typed["s"])
    page = real_client.fetch("octets", 0, 0, limit=2)
    assert [message.value for message in page.messages] == [b"\x00" * 3000, b"\x01" * 3000]
    assert real_client.fetch("typed", 0, 7, limit=1).messages[0].value == {"n": 7, "s": "x7"}


@pytest.mark.process
def test_a_kill_under_producer_and_subscriber_loses_and_doubles_nothing(real_broker, real_client):
    """The broker dies twice while messages go in and out: all are there once, in order, and every one is delivered."""
    values, delivered = 30_000, []

    def consume():
        for message in real_client.subscribe("killed", "s", start="earliest", idle_timeout_s=None):
            delivered.append(message.value)
            message.ack()
            if message.value == values - 1:
                return

    real_client.create_topic("killed")
    consumer = threading.Thread(target=consume)
    consumer.start()
    with real_client.producer("killed", batch_messages=200, max_buffer_bytes=20_000) as producer:
        for n in range(values):
            if n in (10_000, 20_000):
                real_broker.kill()
                real_broker.start()
            producer.send(n)
    consumer.join(60)
    assert not consumer.is_alive()
    stored = real_client.read_table("killed", columns=["value", "_offset"], live=True).sort_by("_offset")
    assert [int(value) for value in stored["value"].to_pylist()] == list(range(values))
    assert set(delivered) == set(range(values))


@pytest.mark.process
async def test_the_async_client_does_the_same(real_broker):
    async with AsyncClient(real_broker.url) as client:
        await client.create_topic("async", initial_segments=2)
        async with client.producer("async") as producer:
            receipts = [await producer.send(n, key=str(n)) for n in range(3000)]
        assert len({await receipt for receipt in receipts}) == 3000
        seen = []
        async for message in client.subscribe("async", "s", start="earliest", idle_timeout_s=1):
            seen.append(message.value)
            message.ack()
        assert sorted(seen) == list(range(3000))
        lag = (await client.subscription("async", "s"))["lag"]
        assert sum(segment["messages"] for segment in lag) == 0
        assert (await client.read_table("async", live=True)).num_rows == 3000


@pytest.mark.process
def test_a_program_that_forgets_to_close_still_sends(real_broker, real_client):
    program = "from seaweedq import Client; import sys; Client(sys.argv[1]).producer('forgot', linger_ms=60000).send(7)"
    subprocess.run([sys.executable, "-W", "error", "-c", program, real_broker.url], check=True, timeout=60)
    assert real_client.fetch("forgot", 0, 0).messages[0].value == 7


@pytest.mark.process
def test_the_example_of_the_api_page(real_client):
    real_client.create_topic("flights", key_field="carrier")
    with real_client.producer("flights") as producer:
        producer.send({"carrier": "UA", "delay": 12})
    keys = []
    for message in real_client.subscribe("flights", "billing", start="earliest", idle_timeout_s=1):
        keys.append(message.key)
        message.ack()
    assert keys == ["UA"]
    table = real_client.read_table("flights", columns=["value"], live=True)
    assert table.to_pylist() == [{"value": '{"carrier":"UA","delay":12}'}]


@pytest.mark.process
def test_a_crashed_process_first_gets_by_its_name_what_it_held_before(real_broker, real_client):
    """10 and on were handled before 0 to 9."""
    with real_client.producer("crashing") as producer:
        for n in range(30):
            producer.send(n, key="k")
    program = (
        "import os, sys; from seaweedq import Client; "
        "got = Client(sys.argv[1]).subscribe('crashing', 's', start='earliest', max_messages=10, consumer='mine'); "
        "print([next(got).value for _ in range(12)], flush=True); os._exit(9)"
    )
    crashed = subprocess.run(
        [sys.executable, "-c", program, real_broker.url], capture_output=True, text=True, timeout=60
    )
    assert (crashed.returncode, crashed.stdout) == (9, f"{list(range(12))}\n")
    seen = []
    for message in real_client.subscribe("crashing", "s", idle_timeout_s=1, max_messages=8, consumer="mine"):
        seen.append(message.value)
        message.ack()
    assert seen == list(range(30))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("variable", "urls"),
    [(None, DEFAULT_URL), ("", DEFAULT_URL), ("http://one:1,http://two:2", "http://one:1,http://two:2")],
)
def test_without_an_address_it_is_that_of_the_environment(
    kind: Any, variable: str | None, urls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEAWEEDQ_URL", raising=False)
    if variable is not None:
        monkeypatch.setenv("SEAWEEDQ_URL", variable)
    assert repr(kind()) == f"{kind.__name__}({urls!r})"
    assert repr(kind("http://three:3")) == f"{kind.__name__}('http://three:3')"
    assert common.DEFAULT_URL == DEFAULT_URL


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("method", ["create_topic", "create_subscription", "subscribe", "batches", "work"])
def test_settings_are_keywords_with_types(kind: type, method: str) -> None:
    parameters = inspect.signature(getattr(kind, method)).parameters.values()
    assert all(one.kind is not one.VAR_KEYWORD and one.annotation is not one.empty for one in list(parameters)[1:])
    with pytest.raises(TypeError, match="max_atempts"):
        getattr(kind("http://a"), method)("t", "s", max_atempts=5)


@pytest.mark.process
def test_keywords_reach_the_broker_and_units_with_them(real_client: Client) -> None:
    config: dict[str, Any] = {"retention": {"max_age_s": "7d"}, "flush": {"max_bytes": "1MiB"}, "ndjson": "bare"}
    made = real_client.create_topic("worded", key_field="k", initial_segments=2, **config)
    assert (made["retention"]["max_age_s"], made["flush"]["max_bytes"], made["key_field"]) == (604_800, 2**20, "k")
    assert real_client.create_topic("worded")["initial_segments"] == 2
    with pytest.raises(TopicConflict, match="key_field"):
        real_client.create_topic("worded", key_field="other")
    found = real_client.create_subscription("worded", "s", mode="keyed", ack_deadline_s="2m", backoff_s=["1s", 60])
    assert (found["mode"], found["ack_deadline_s"], found["backoff_s"]) == ("keyed", 120, [1, 60])
    list(real_client.subscribe("worded", "t", idle_timeout_s=0, max_in_flight=5, filter={"key_prefix": "a"}))
    found = real_client.subscription("worded", "t")
    assert (found["max_in_flight"], found["filter"]["key_prefix"]) == (5, "a")


@pytest.mark.process
def test_a_repr_has_ids_and_values(real_client: Client) -> None:
    real_client.create_topic("shown", initial_segments=1)
    published = real_client.publish("shown", [{"value": {"n": n}, "key": f"k{n}"} for n in range(7)])
    assert isinstance(published, Published)
    assert repr(published) == (
        "Published(count=7, ids=['0-0', '0-1', '0-2', '0-3', '0-4', ... 2 more], duplicate=False)"
    )
    first, *_ = real_client.fetch("shown", 0, 0).messages
    assert repr(first) == "Message(id='0-0', key='k0', value={'n': 0})"
    real_client.publish("shown", {"value": "x" * 200})
    assert repr(real_client.fetch("shown", 0, 7).messages[0]) == (
        f"Message(id='0-7', key=None, value=\"{'x' * 79}... (202 bytes))"
    )
    with real_client.producer("shown", linger_ms=10_000) as producer:
        receipt = producer.send(5)
        assert repr(receipt) == "Receipt(waiting)"
        producer.flush()
        assert repr(receipt) == "Receipt(id='0-8')"
    batch = next(real_client.batches("shown", "b", start="earliest"))
    assert isinstance(batch, Batch)
    assert batch.table.num_rows == 9
    assert repr(batch).endswith(", rows=9)")


@pytest.mark.process
async def test_the_async_reprs_too(real_client: Client) -> None:
    async with AsyncClient(privates.urls(real_client)) as client:
        async with client.producer("awaited") as producer:
            receipt = await producer.send({"a": 1})
            await receipt
            assert repr(receipt) == "AsyncReceipt(id='0-0')"
        message = (await client.fetch("awaited", 0, 0)).messages[0]
        assert isinstance(message, AsyncMessage)
        assert repr(message) == "AsyncMessage(id='0-0', key=None, value={'a': 1})"
    assert AsyncBatch is Batch


class Broken(Exception):
    """Raised by the handlers here."""


def failing(message: Message | AsyncMessage) -> None:
    raise Broken


@pytest.mark.process
@pytest.mark.parametrize("is_async", [False, True])
def test_a_failed_handlers_line_says_where_and_what_comes(
    real_client: Client, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"broken-{is_async}".lower()
    real_client.publish(topic, {"value": 1})
    settings: dict[str, Any] = {"max_attempts": 3, "dead_letter_topic": "lost", "backoff_s": ["1ms", "2ms"]}
    with caplog.at_level(logging.WARNING):
        if is_async:

            async def work() -> None:
                async with AsyncClient(privates.urls(real_client)) as client:
                    await client.work(topic, "billing", failing, start="earliest", idle_timeout_s=0.2, **settings)

            asyncio.run(work())
        else:
            real_client.work(topic, "billing", failing, start="earliest", idle_timeout_s=0.2, **settings)
    assert [record.message for record in caplog.records] == [
        f"handler failed for {topic}/billing 0-0 (attempt 1 of 3); retrying in 0.001 s",
        f"handler failed for {topic}/billing 0-0 (attempt 2 of 3); retrying in 0.002 s",
        f"handler failed for {topic}/billing 0-0 (attempt 3 of 3); moving it to dead-letter topic lost",
    ]
    assert all(record.exc_info for record in caplog.records)
