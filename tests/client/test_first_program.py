"""First programs: the default address, keywords, reprs, and the log line of a handler that failed."""

import asyncio
import inspect
import logging
from typing import Any

import pytest

from seaweedq import AsyncBatch, AsyncClient, AsyncMessage, Batch, Client, Message, Published
from seaweedq.cli.shared import common
from seaweedq.client.http import DEFAULT_URL
from seaweedq.errors import TopicConflict


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
    async with AsyncClient(real_client._urls) as client:
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
                async with AsyncClient(real_client._urls) as client:
                    await client.work(topic, "billing", failing, start="earliest", idle_timeout_s=0.2, **settings)

            asyncio.run(work())
        else:
            real_client.work(topic, "billing", failing, start="earliest", idle_timeout_s=0.2, **settings)
    where = f"topic {topic}, subscription billing, attempt"
    assert [record.message for record in caplog.records] == [
        f"the handler of message 0-0 failed ({where} 1 of 3); it comes again in 0.001 s",
        f"the handler of message 0-0 failed ({where} 2 of 3); it comes again in 0.002 s",
        f"the handler of message 0-0 failed ({where} 3 of 3); it becomes a dead letter in lost",
    ]
    assert all(record.exc_info for record in caplog.records)
