"""Messages that are refused alone, or before they are sent."""

import httpx
import pytest

from seaweedq import Client
from seaweedq.client.core.calls import publish
from seaweedq.client.core.delivery import Route
from seaweedq.client.core.effects import NDJSON
from seaweedq.client.core.pulling import REPORT_S, LateAcks
from seaweedq.errors import (
    InvalidMessages,
    InvalidName,
    MessageTooLarge,
    TopicNotFound,
)
from tests.support.client.fake_cluster import FakeCluster, problem

MIB = 1024 * 1024


@pytest.mark.process
@pytest.mark.parametrize("large", [{"headers": {"h": "x" * (MIB + 1)}}, {"key": "ü" * MIB}])
def test_one_message_with_too_large_a_header_or_key_fails_alone(real_client, large):
    topic = real_client.create_topic(f"alone-{next(iter(large))}")["name"]
    producer = real_client.producer(topic, linger_ms=10_000)
    before = [producer.send(n) for n in range(50)]
    bad = [producer.send("large", **large), producer.send("x" * (MIB + 1)), producer.send("large too", **large)]
    after = [producer.send(n) for n in range(50)]
    with pytest.raises(MessageTooLarge, match="key and headers of message"):
        producer.close()
    assert len({receipt.result() for receipt in (*before, bad[1], *after)}) == 101
    assert [type(receipt.exception()) for receipt in bad] == [MessageTooLarge, type(None), MessageTooLarge]
    assert real_client.topic(topic)["messages"] == 101


@pytest.mark.process
def test_a_value_that_is_too_large_for_a_typed_topic_fails_alone(real_client):
    schema = {
        "type": "struct",
        "fields": [{"id": 1, "name": "text", "required": True, "type": "string"}],
    }
    real_client.create_topic("alone-typed", format="typed", schema=schema)
    producer = real_client.producer("alone-typed", linger_ms=10_000)
    receipts = [producer.send({"text": text}) for text in ("a", "x" * (MIB + 1), "b")]
    receipts.append(producer.send({"none": 1}))
    with pytest.raises((MessageTooLarge, InvalidMessages)):
        producer.close()
    assert [receipt.exception() is None for receipt in receipts] == [True, False, True, False]
    assert real_client.topic("alone-typed")["messages"] == 2


@pytest.mark.process
def test_each_receipt_has_the_error_of_its_own_message(real_client):
    real_client.create_topic("own-errors")
    producer = real_client.producer("own-errors", linger_ms=10_000)
    large, wrong, good = producer.send(1, headers={"h": "x" * (MIB + 1)}), producer.send(b"x"), producer.send(2)
    with pytest.raises((MessageTooLarge, InvalidMessages)):
        producer.close()
    assert isinstance(large.exception(), MessageTooLarge)
    assert isinstance(wrong.exception(), InvalidMessages)
    assert good.result() == "0-0"


@pytest.mark.process
def test_more_invalid_messages_than_are_named_take_no_valid_one_with_them(real_client):
    """A broker names a thousand of a request, and a batch with one more failed as a whole."""
    topic = real_client.create_topic("many-invalid")["name"]
    producer = real_client.producer(topic, linger_ms=10_000)
    receipts = [producer.send(b"x" if n % 2 else n) for n in range(2_402)]
    with pytest.raises(InvalidMessages):
        producer.close()
    assert [isinstance(each.exception(), InvalidMessages) for each in receipts] == [bool(n % 2) for n in range(2_402)]
    assert real_client.topic(topic)["messages"] == 1_201


def test_messages_that_are_all_invalid_are_sent_once():
    """They were sent again for each thousand that a broker names: a full batch cost it three seconds of CPU."""
    cluster, rows = FakeCluster(), [{"index": n, "reason": "no"} for n in range(1_000)]
    cluster.faults = [lambda request: problem(422, "invalid-messages", errors=rows, invalid=2_500)]
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t", linger_ms=10_000)
        receipts = [producer.send(n, headers={"a": "b"}) for n in range(2_500)]
        with pytest.raises(InvalidMessages):
            producer.close()
    assert all(isinstance(each.exception(), InvalidMessages) for each in receipts)
    assert len(cluster.requests) == 1
    assert not cluster.messages


def test_a_repeat_of_what_was_taken_in_part_is_sent_as_it_was():
    """The same number with fewer messages is another request, which brokers refuse."""
    cluster, taken = FakeCluster(), [{"segment": 0, "first_offset": 0, "count": 1}]
    rows = [{"index": 0, "reason": "its upload has expired"}]
    cluster.faults = [lambda request: problem(422, "invalid-messages", errors=rows, invalid=1, taken=taken)]
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t", linger_ms=10_000)
        receipts = [producer.send(n, headers={"a": "b"}) for n in range(2)]
        with pytest.raises(InvalidMessages):
            producer.close()
    assert [each.exception().fields["taken"] for each in receipts] == [taken, taken]
    assert len(cluster.requests) == 1


def test_after_a_second_refusal_of_the_rest_each_has_its_own_reason():
    """The second one counts the messages that were left, so each had the reason of another one."""

    def refusal(*reasons):
        rows = [{"index": at, "reason": reason} for at, reason in enumerate(reasons)]
        return InvalidMessages("some are not valid", errors=rows, invalid=len(rows))

    refusals = iter([refusal("the first"), refusal("the second", "the third")])

    class Refused(Route):
        def _publish(self, stream, batch, lines):
            raise next(refusals)
            yield

    class Three:
        error = upload_id = None
        content_type, lines = NDJSON, [b"1", b"2", b"3"]

        @staticmethod
        def unroll() -> None:
            pass

    route = Refused("t", None, str)
    with pytest.raises(StopIteration) as done:
        next(route.deliver(None, Three))
    outcome = done.value.value
    reasons = [error.fields["errors"][0]["reason"] for error in map(outcome.error_of, range(3))]
    assert reasons == ["the first", "the second", "the third"]
    assert outcome.published is None
    assert outcome.error.fields["errors"][0]["reason"] == "the first"


def test_a_message_that_is_too_large_is_found_among_those_left():
    """Its index was taken for one of the whole batch, so another message failed in its place."""
    cluster = FakeCluster()
    cluster.faults = [
        lambda _: problem(422, "invalid-messages", errors=[{"index": 0, "reason": "no"}], invalid=1),
        lambda _: problem(413, "message-too-large", limit_bytes=500, index=2),
    ]
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t", linger_ms=10_000)
        receipts = [producer.send(n, key="x" * 600 if n == 3 else None, headers={"a": "b"}) for n in range(5)]
        with pytest.raises(InvalidMessages):
            producer.close()
    errors = [type(receipt.exception()) for receipt in receipts]
    assert errors == [InvalidMessages, type(None), type(None), MessageTooLarge, type(None)]
    assert cluster.published() == [1, 2, 4]
    assert [receipts[n].result() for n in (1, 2, 4)] == ["0-0", "0-1", "0-2"]
    assert len(cluster.requests) == 3


def test_a_refused_message_keeps_its_reason_if_the_others_fail_in_the_end():
    cluster = FakeCluster()
    cluster.faults = [
        lambda _: problem(422, "invalid-messages", errors=[{"index": 1, "reason": "no"}], invalid=1),
        lambda _: problem(404, "topic-not-found"),
    ]
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t", linger_ms=10_000)
        receipts = [producer.send(n, headers={"a": "b"}) for n in range(3)]
        with pytest.raises(InvalidMessages):
            producer.close()
    assert [type(each.exception()) for each in receipts] == [TopicNotFound, InvalidMessages, TopicNotFound]


@pytest.mark.parametrize("named", [[{"index": 3, "reason": "no"}], []])
def test_a_refusal_that_names_no_message_of_the_request_is_one_of_all(named):
    cluster = FakeCluster(faults=[lambda _: problem(422, "invalid-messages", errors=named, invalid=1)])
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t", linger_ms=10_000)
        receipts = [producer.send(n, headers={"a": "b"}) for n in range(3)]
        with pytest.raises(InvalidMessages):
            producer.close()
    assert all(isinstance(each.exception(), InvalidMessages) for each in receipts)


@pytest.mark.process
@pytest.mark.parametrize("name", ["a/b", "..", ".", "", "../../b"])
def test_a_name_that_leads_elsewhere_is_refused_here(real_client, name):
    for work in (real_client.topic, real_client.delete_topic, real_client.create_topic):
        with pytest.raises(InvalidName, match=r"invalid (topic|subscription) name"):
            work(name)
    with pytest.raises(InvalidName, match=r"invalid (topic|subscription) name"):
        real_client.delete_subscription("a", name)
    with pytest.raises(TypeError, match="a topic name must be a str"):
        real_client.topic(None)


@pytest.mark.parametrize("given", ["hello", b"hello", 5, ["hello"], [{"value": 1}, 2]])
def test_what_is_no_message_is_refused_by_name(given):
    with pytest.raises(TypeError, match="a message must be a mapping such as"):
        next(publish("t", given, None))


@pytest.mark.process
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": 5}, r"key must be a str, not 5 \(int\)"),
        ({"key": b"k"}, r"key must be a str, not b'k' \(bytes\)"),
        ({"headers": "h"}, "headers must be a dict of str to str, not 'h'"),
        ({"headers": {"h": 1}}, r"headers must be a dict of str to str, not \{'h': 1\}"),
        ({"headers": {1: "h"}}, r"headers must be a dict of str to str, not \{1: 'h'\}"),
        ({"timestamp": 5}, "timestamp must be a datetime or a str, not 5"),
        ({"expires_in_s": "5"}, "expires_in_s must be .*, not '5'"),
        ({"expires_in_s": True}, "expires_in_s must be .*, not True"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused_as_it_is_sent(real_client, fields, said):
    with real_client.producer("never-made") as producer, pytest.raises(TypeError, match=said):
        producer.send("a", **fields)


def test_late_acks_are_reported_at_once_and_then_now_and_then():
    late = LateAcks()
    assert late.count_late([], 0.0) == 0
    assert late.count_late(["0-1", "0-2", "0-3"], 1.0) == 3
    assert late.count_late(["0-4", "0-5"], 2.0) == 0
    assert late.count_late([], 1.0 + REPORT_S) == 2
    assert late.example == "0-4", "one of those that are reported, though this ack had none"
    assert late.count_late([], 2.0 + 2 * REPORT_S) == 0
