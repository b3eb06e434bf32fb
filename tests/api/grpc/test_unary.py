"""The unary methods of the gRPC port: messages both ways, administration, errors with details, deadlines."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.api.grpc.methods import METHODS
from seaweedq.api.handlers import acks, fetch, publish, seek, segments, subscriptions, topics
from seaweedq.api.streams import subscription_stream
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.coordination.records import FlushPolicy
from seaweedq.rows import envelopes
from tests.support.grpc_door import Door, door, refused
from tests.support.http.asking import arrow_stream

pytestmark = pytest.mark.default


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Door]:
    async with door(tmp_path) as found:
        yield found


async def test_messages_come_back_as_they_were_published(opened: Door) -> None:
    calls = opened.calls
    sent = pb.NewMessage(key="UA", value=b'{"n": 1}', headers={"a": "b"})
    sent.timestamp.FromJsonString("2026-01-31T12:00:00.000001Z")
    done = await calls.Publish(topic="t", messages=[sent, pb.NewMessage(value=b"[2]")], return_ids=True)
    assert (done.count, list(done.ids)) == (2, ["0-0", "0-1"])
    assert [(one.segment, one.first_offset, one.count) for one in done.segments] == [(0, 0, 2)]
    found = await calls.Fetch(topic="t", segment=0)
    first, second = found.messages
    assert (first.id, first.key, first.value, dict(first.headers)) == ("0-0", "UA", b'{"n": 1}', {"a": "b"})
    assert first.timestamp.ToJsonString() == "2026-01-31T12:00:00.000001Z"
    assert (second.value, second.HasField("key"), second.offset, found.next_offset) == (b"[2]", False, 1, 2)


async def test_bytes_are_any_bytes(opened: Door) -> None:
    await opened.calls.CreateTopic(topic="raw", format="bytes")
    every = bytes(range(256))
    for values in ([every], [every, b""]):
        await opened.calls.Publish(topic="raw", messages=[pb.NewMessage(value=one) for one in values])
    found = await opened.calls.Fetch(topic="raw", segment=0)
    assert [one.value for one in found.messages] == [every, every, b""]


@pytest.mark.parametrize("size", [1, 100_000])
async def test_bytes_go_to_a_topic_that_another_broker_made(
    opened: Door, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened.calls.CreateTopic(topic="raw", format="bytes")
    known, get, is_known = Catalog.require, Catalog.get, False

    async def require(self: Catalog, name: str) -> Any:
        nonlocal is_known
        is_known = True
        return await known(self, name)

    monkeypatch.setattr(Catalog, "require", require)
    monkeypatch.setattr(Catalog, "get", lambda self, name: get(self, name) if is_known else None)
    await opened.calls.Publish(topic="raw", messages=[pb.NewMessage(value=b"\xff" * size)])


async def test_arrow_goes_both_ways(opened: Door) -> None:
    rows = arrow_stream(pa.table({"_key": ["a", "b"], "value": ["1", "2"]}))
    done = await opened.calls.Publish(topic="t", arrow=rows, return_ids=True)
    assert list(done.ids) == ["0-0", "0-1"]
    found = await opened.calls.Fetch(topic="t", segment=0, arrow=True, offset=1)
    assert pa.ipc.open_stream(found.arrow).read_all()["_key"].to_pylist() == ["b"]
    assert (found.next_offset, found.sealed, len(found.messages)) == (2, False, 0)


async def test_a_broadcast_counts_the_streams_of_its_topic(opened: Door) -> None:
    calls = opened.calls
    for topic in ("t", "u"):
        await calls.CreateTopic(topic=topic)
        await calls.CreateSubscription(topic=topic, subscription="s", mode="shared")
    reads = [calls.Read(topic=topic) for topic in ("t", "t", "u")]
    for stream in reads:
        await stream.read()
    start = pb.SubscribeStart(topic="t", subscription="s")
    subscribed = calls.Subscribe()
    await subscribed.write(pb.SubscribeRequest(start=start))
    await subscribed.initial_metadata()
    one = [pb.NewMessage(value=b"1")]
    for messages in (one, one * 2):
        done = await calls.Broadcast(topic="t", messages=messages, format="json")
        assert (done.count, done.streams, done.silent_brokers) == (len(messages), 3, 0)
    assert len(done.ids) == 2
    for stream in (*reads, subscribed):
        stream.cancel()
    async with asyncio.timeout(15), httpx.AsyncClient(base_url=opened.served.url) as http:
        while (await calls.Broadcast(topic="t", messages=one)).streams:
            await asyncio.sleep(0.01)
        answer = await http.post("/v1/topics/t/messages?count=1", json={"value": 1})
        assert (answer.json()["streams"], answer.json()["silent_brokers"]) == (0, 0)
        assert "streams" not in (await http.post("/v1/topics/t/messages?count=0", json={"value": 1})).json()
        assert (await http.post("/v1/topics/t/messages?count=3", json={"value": 1})).status_code == 422


async def test_a_repeat_of_a_producer_adds_nothing(opened: Door) -> None:
    wanted: dict[str, Any] = {"topic": "t", "producer_id": "p", "messages": [pb.NewMessage(value=b"1")]}
    first = await opened.calls.Publish(**wanted, producer_sequence=0)
    again = await opened.calls.Publish(**wanted, producer_sequence=0)
    assert (first.duplicate, again.duplicate, first.segments) == (False, True, again.segments)
    code, _, details = await refused(opened.calls.Publish(**wanted, producer_sequence=-1))
    assert (code, details["BadRequest"].field_violations[0].field) == ("INVALID_ARGUMENT", "producer_sequence")


async def test_administration_from_creation_to_deletion(opened: Door) -> None:
    calls, schema = opened.calls, {"type": "struct", "fields": [{"name": "n", "type": "long", "required": True}]}
    made = await calls.CreateTopic(topic="t", format="typed", schema=json.dumps(schema), initial_segments=2)
    assert (made.created, made.topic.segments, made.topic.schema_id) == (True, 2, 0)
    assert json.loads(made.topic.schema)["fields"][0]["id"] == 1
    assert not (await calls.CreateTopic(topic="t")).created
    changed = await calls.UpdateTopic(topic="t", flush=pb.Flush(max_age_s=5), retention=pb.Retention(max_bytes=9))
    assert (changed.topic.flush.max_age_s, changed.topic.retention.max_bytes) == (5, 9)
    reset = await calls.UpdateTopic(topic="t", update_mask={"paths": ["flush.max_age_s"]})
    assert not reset.topic.flush.HasField("max_age_s")
    assert reset.topic.retention.max_bytes == 9
    scaling = pb.Scaling(target_messages_per_s=250, target_bytes_per_s=1_000_000, min_segments=2)
    changed = await calls.UpdateTopic(topic="t", scaling=scaling)
    assert changed.topic.scaling.target_messages_per_s == 250
    assert (await calls.UpdateTopic(topic="t", scaling=changed.topic.scaling)).topic == changed.topic
    reset = await calls.UpdateTopic(topic="t", update_mask={"paths": ["scaling", "flush", "retention", "limits"]})
    assert reset.topic.scaling == made.topic.scaling
    assert not reset.topic.retention.HasField("max_bytes")
    page = await calls.ListTopics(page_size=1)
    assert [one.name for one in page.topics] == ["t"]
    assert [one.id for one in (await calls.ListSegments(topic="t")).segments] == [0, 1]
    assert (await calls.GetSegment(topic="t", segment=1)).segment.state == "open"
    backoff = pb.Backoff(delays_s=[1, 2])
    made = await calls.CreateSubscription(
        topic="t", subscription="s", mode="shared", start=pb.Place(end="earliest"), backoff=backoff
    )
    assert (made.created, made.subscription.start.end, made.subscription.backoff) == (True, "earliest", backoff)
    changed = await calls.UpdateSubscription(topic="t", subscription="s", paused=True, backoff=pb.Backoff())
    assert (changed.subscription.paused, list(changed.subscription.backoff.delays_s)) == (True, [])
    given = {
        "ack_deadline_s": 9,
        "max_attempts": 3,
        "dead_letter_topic": "d",
        "max_in_flight": 5,
        "expires_after_s": 60,
    }
    await calls.UpdateSubscription(topic="t", subscription="s", paused=True, backoff=backoff, **given)
    mask = {"paths": [*given, "paused", "backoff"]}
    reset = await calls.UpdateSubscription(topic="t", subscription="s", update_mask=mask)
    plain = (await calls.CreateSubscription(topic="t", subscription="plain")).subscription
    for name in (*given, "paused", "backoff"):
        assert getattr(reset.subscription, name) == getattr(plain, name), name
    await calls.DeleteSubscription(topic="t", subscription="plain")
    await calls.Publish(topic="t", messages=[pb.NewMessage(key="a", value=b'{"n": 1}')])
    [rows] = [one for one in (await calls.ListSegments(topic="t")).segments if one.end_offset]
    place = pb.Place(offsets=pb.Offsets(by_segment={rows.id: 1}))
    sought = await calls.SeekSubscription(topic="t", subscription="s", to=place, id="one")
    assert (sought.id, [(one.segment, one.to) for one in sought.segments]) == ("one", [(rows.id, 1)])
    assert [one.name for one in (await calls.ListSubscriptions(topic="t")).subscriptions] == ["s"]
    await calls.DeleteSubscription(topic="t", subscription="s")
    assert (await refused(calls.GetSubscription(topic="t", subscription="s")))[0] == "NOT_FOUND"
    await calls.DeleteTopic(topic="t")
    assert (await refused(calls.GetTopic(topic="t")))[0] == "NOT_FOUND"


INVALID = "INVALID_ARGUMENT", "INVALID_REQUEST"
NAN, EXPIRES = float("nan"), "messages[0].expires_in_s"
LATE, BEFORE = {"seconds": 2**60}, {"seconds": 1, "nanos": -1}
BAD_NAME = "INVALID_ARGUMENT", "INVALID_NAME", ""
ERRORS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("GetTopic", {"topic": "none"}, ("NOT_FOUND", "TOPIC_NOT_FOUND", "")),
    ("GetTopic", {"topic": "../x"}, BAD_NAME),
    ("GetTopic", {}, BAD_NAME),
    ("GetTopic", {"topic": "t/subscriptions"}, BAD_NAME),
    ("GetSubscription", {"topic": "t", "subscription": "a?b"}, BAD_NAME),
    ("CreateTopic", {"topic": "t", "format": "bytes"}, ("ALREADY_EXISTS", "TOPIC_EXISTS", "")),
    ("CreateTopic", {"topic": "u", "schema": "{"}, (*INVALID, "schema")),
    ("CreateTopic", {"topic": "u", "initial_segments": 0}, (*INVALID, "initial_segments")),
    ("UpdateTopic", {"topic": "t", "update_mask": {"paths": ["a.b.c"]}}, (*INVALID, "update_mask")),
    ("Fetch", {"topic": "t", "segment": -1}, (*INVALID, "segment")),
    ("Fetch", {"topic": "t", "offset": 5}, ("OUT_OF_RANGE", "OFFSET_OUT_OF_RANGE", "")),
    ("Fetch", {"topic": "t", "wait_s": float("nan")}, (*INVALID, "wait_s")),
    ("Fetch", {"topic": "t", "limit": -3}, (*INVALID, "limit")),
    ("Publish", {"topic": "t"}, (*INVALID, "messages")),
    ("Publish", {"topic": "t", "arrow": b"no"}, ("INVALID_ARGUMENT", "UNREADABLE_BODY", "")),
    ("Publish", {"topic": "t", "format": "bytes", "messages": [{"value": b"1"}]}, (*INVALID, "format")),
    (
        "Publish",
        {"topic": "t", "messages": [{"value": b"1"}, {}]},
        ("INVALID_ARGUMENT", "INVALID_MESSAGES", "messages[1]"),
    ),
    ("Publish", {"topic": "t", "messages": [{"value": b'1,"key":"x"'}]}, (*INVALID, "messages[0].value")),
    (
        "Publish",
        {"topic": "t", "messages": [{"value": b"1", "key": "k" * 2**21}]},
        ("INVALID_ARGUMENT", "MESSAGE_TOO_LARGE", ""),
    ),
    (
        "Publish",
        {"topic": "t", "producer_id": "p", "messages": [{"value": b"1"}]},
        (*INVALID, "producer_sequence"),
    ),
    ("SeekSubscription", {"topic": "t", "subscription": "s"}, (*INVALID, "")),
    ("Publish", {"topic": "t", "messages": [{"value": b"1", "timestamp": LATE}]}, (*INVALID, "messages[0].timestamp")),
    ("Publish", {"topic": "t", "messages": [{"value": b"1", "expires_in_s": NAN}]}, (*INVALID, EXPIRES)),
    (
        "CreateSubscription",
        {"topic": "t", "subscription": "s", "mode": "shared", "start": {"timestamp": LATE}},
        (*INVALID, "start.timestamp"),
    ),
    ("SeekSubscription", {"topic": "t", "subscription": "s", "to": {"timestamp": BEFORE}}, (*INVALID, "to.timestamp")),
    ("UpdateTopic", {"topic": "t", "retention": {"max_age_s": NAN}}, (*INVALID, "retention.max_age_s")),
    (
        "UpdateSubscription",
        {"topic": "t", "subscription": "s", "ack_deadline_s": float("-inf")},
        (*INVALID, "ack_deadline_s"),
    ),
    (
        "UpdateSubscription",
        {"topic": "t", "subscription": "s", "backoff": {"delays_s": [1, float("inf")]}},
        (*INVALID, "backoff.delays_s"),
    ),
]


async def test_an_error_has_its_reason_and_names_the_field(opened: Door) -> None:
    await opened.calls.CreateTopic(topic="t")
    for name, fields, (code, reason, field) in ERRORS:
        found, text, details = await refused(getattr(opened.calls, name)(**fields))
        info = details["ErrorInfo"]
        assert (found, info.reason, info.domain) == (code, reason, "seaweedq"), (name, fields, text)
        assert info.metadata["type"] == f"/problems/{reason.lower().replace('_', '-')}"
        if field:
            [violation] = details["BadRequest"].field_violations
            assert violation.field == field
            assert violation.description


async def test_each_invalid_message_is_a_violation(opened: Door) -> None:
    schema = {"type": "struct", "fields": [{"name": "k", "type": "long", "required": True}]}
    await opened.calls.CreateTopic(topic="t", format="typed", schema=json.dumps(schema))
    values = [b'{"k": 1}', b"{}", b'{"k": "x"}']
    code, _, details = await refused(
        opened.calls.Publish(topic="t", messages=[pb.NewMessage(value=value) for value in values])
    )
    assert (code, details["ErrorInfo"].reason) == ("INVALID_ARGUMENT", "INVALID_MESSAGES")
    fields = [one.field for one in details["BadRequest"].field_violations]
    assert fields
    assert set(fields) <= {"messages[1]", "messages[2]"}
    values = [b'{"k":', b'{"k": 1}', b"no"]  # which no route sees
    code, _, details = await refused(
        opened.calls.Publish(topic="t", messages=[pb.NewMessage(value=value) for value in values])
    )
    assert (code, details["ErrorInfo"].reason) == ("INVALID_ARGUMENT", "INVALID_MESSAGES")
    found = {one.field: one.description for one in details["BadRequest"].field_violations}
    assert found.keys() == {"messages[0]", "messages[2]"}
    assert found["messages[0]"] == "the value is not JSON: it is cut off"
    assert not (await opened.calls.Fetch(topic="t")).messages


async def test_a_deadline_ends_a_wait(opened: Door) -> None:
    await opened.calls.CreateTopic(topic="t")
    before = asyncio.all_tasks()
    code, _, _ = await refused(opened.calls.Fetch(topic="t", wait_s=30, timeout=0.3))
    assert code == "DEADLINE_EXCEEDED"
    async with asyncio.timeout(15):
        while any("ask" in repr(task.get_coro()) for task in asyncio.all_tasks() - before):
            await asyncio.sleep(0.01)


async def test_a_fetch_waits_for_a_message(opened: Door) -> None:
    await opened.calls.CreateTopic(topic="t")
    waiting = asyncio.ensure_future(opened.calls.Fetch(topic="t", wait_s=20))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await opened.calls.Publish(topic="t", messages=[pb.NewMessage(value=b"1")])
    assert [one.value for one in (await waiting).messages] == [b"1"]


def names(message: Any) -> set[str]:
    renamed = {"backoff": "backoff_s", "upload_id": "reference"}
    return {renamed.get(one.name, one.name) for one in message.DESCRIPTOR.fields}


SAME: list[tuple[type[msgspec.Struct], Any, set[str], set[str]]] = [
    (topics.TopicAnswer, pb.Topic, set(), set()),
    (topics.TopicSummary, pb.TopicSummary, set(), set()),
    (topics.TopicList, pb.ListTopicsResponse, set(), set()),
    (topics.TopicRequest, pb.CreateTopicRequest, {"topic"}, set()),
    (topics.PatchRequest, pb.UpdateTopicRequest, {"topic", "update_mask"}, set()),
    (topics.TopicLimitsRequest, pb.TopicLimits, set(), set()),
    (topics.TopicBounds, pb.TopicBounds, set(), set()),
    (topics.RetentionAnswer, pb.Retention, set(), set()),
    (ScalingPolicy, pb.Scaling, set(), set()),
    (FlushPolicy, pb.Flush, set(), set()),
    (segments.SegmentMap, pb.ListSegmentsResponse, set(), set()),
    (segments.SegmentAnswer, pb.Segment, {"ended", "removed_at"}, set()),
    (segments.Rates, pb.Rates, set(), set()),
    (segments.HotKey, pb.HotKey, set(), set()),
    (segments.NextSplit, pb.NextSplit, set(), set()),
    (subscriptions.SubscriptionAnswer, pb.Subscription, set(), set()),
    (subscriptions.SubscriptionList, pb.ListSubscriptionsResponse, set(), set()),
    (subscriptions.SubscriptionRequest, pb.CreateSubscriptionRequest, {"topic", "subscription"}, set()),
    (subscriptions.SubscriptionChange, pb.UpdateSubscriptionRequest, {"topic", "subscription", "update_mask"}, set()),
    (subscriptions.TotalLagAnswer, pb.Lag, set(), set()),
    (subscriptions.LagAnswer, pb.SegmentLag, set(), set()),
    (subscriptions.Filter, pb.Filter, set(), set()),
    (seek.SeekRequest, pb.SeekSubscriptionRequest, {"topic", "subscription"}, set()),
    (seek.SeekAnswer, pb.SeekSubscriptionResponse, set(), set()),
    (seek.SoughtSegment, pb.SoughtSegment, set(), set()),
    (publish.PublishAnswer, pb.PublishResponse, set(), {"streams", "silent_brokers"}),
    (publish.PublishAnswer, pb.BroadcastResponse, set(), set()),
    (publish.SegmentRows, pb.SegmentRows, set(), set()),
    (fetch.FetchAnswer, pb.FetchResponse, {"arrow"}, set()),
    (fetch.Message, pb.Message, set(), {"value_base64"}),
    (acks.AckRequest, pb.Ack, set(), set()),
    (acks.NackRequest, pb.Nack, set(), set()),
    (acks.ExtendRequest, pb.Extend, set(), set()),
    (subscription_stream.CreditRequest, pb.Credit, set(), set()),
    (acks.AckAnswer, pb.Acked, set(), set()),
    (acks.NackAnswer, pb.Nacked, set(), {"late"}),
    (acks.ExtendAnswer, pb.Extended, set(), {"late"}),
    (fetch.MessageReference, pb.MessageReference, set(), set()),
    (envelopes.Envelope, pb.NewMessage, {"reference"}, set()),
]


@pytest.mark.parametrize(("struct", "message", "more", "fewer"), SAME, ids=lambda one: getattr(one, "__name__", ""))
def test_messages_have_the_fields_of_http(struct: Any, message: Any, more: set[str], fewer: set[str]) -> None:
    assert names(message) - more == set(struct.__struct_encode_fields__) - fewer


def test_one_segment_has_its_fields() -> None:
    assert set(segments.OneSegment.__struct_fields__) <= names(pb.Segment)


def test_the_topic_is_found_before_the_rest_is_decoded() -> None:
    fields = [kind.DESCRIPTOR.fields_by_name["topic"] for kind in (pb.GetTopicRequest, pb.PublishRequest)]
    assert fields[0].number == fields[1].number
    assert len(pb.GetTopicRequest.DESCRIPTOR.fields) == 1


def test_each_method_of_the_file_is_served() -> None:
    for name, service in pb.DESCRIPTOR.services_by_name.items():
        assert [one.name for one in METHODS[name]] == [one.name for one in service.methods]
