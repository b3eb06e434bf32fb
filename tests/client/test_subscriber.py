"""The subscribers against a fake broker: pulls, acks in batches, restarts on the way, and how they end."""

import base64
import json
import threading

import httpx
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import ClientError, ConnectionFailed, SubscriptionNotFound
from tests.support.client.fake_cluster import FakeCluster, problem


@pytest.fixture
def cluster():
    return FakeCluster(messages=[{"value": {"n": n}, "key": f"k{n}"} for n in range(1200)])


@pytest.fixture
def client(cluster):
    with Client("http://test", transport=httpx.MockTransport(cluster), timeout_s=2) as client:
        yield client


def _posted(cluster, verb):
    return [json.loads(r.content) for r in cluster.requests if r.url.path.endswith(verb)]


def test_all_messages_come_and_all_acks_are_sent(cluster, client):
    seen = []
    for message in client.subscribe("t", "s", start="earliest", idle_timeout_s=0):
        seen.append((message.id, message.key, message.value, message.offset))
        message.ack()
    assert seen == [(f"0-{n}", f"k{n}", {"n": n}, n) for n in range(1200)]
    assert cluster.acked == [f"0-{n}" for n in range(1200)]
    assert len(cluster.ack_requests) <= 6
    put = cluster.requests[0]
    assert json.loads(put.content) == {"mode": "ordered", "start": "earliest", "ack_deadline_s": 30}
    consumers = {body["consumer"] for body in _posted(cluster, "/pull") + _posted(cluster, "/ack")}
    assert len(consumers) == 1


def test_each_iterator_is_a_consumer_of_its_own(cluster, client):
    list(client.subscribe("t", "s", idle_timeout_s=0))
    list(client.subscribe("t", "s", idle_timeout_s=0))
    assert len({body["consumer"] for body in _posted(cluster, "/pull")}) == 2


def test_acks_go_out_while_the_iterator_waits(cluster, client):
    acked = threading.Event()
    handle = cluster.handle

    def watch(request):
        answer = handle(request)
        if request.url.path.endswith("/ack"):
            acked.set()
        return answer

    cluster.handle = watch
    messages = client.subscribe("t", "s")
    next(messages).ack()
    assert acked.wait(30)
    assert cluster.acked == ["0-0"]


def test_messages_acked_after_the_iteration_are_sent_by_closing(cluster):
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        for message in list(client.subscribe("t", "s", idle_timeout_s=0)):
            message.ack()
    assert len(cluster.acked) == 1200


def test_breaking_off_sends_what_was_acked(cluster, client):
    for message in client.subscribe("t", "s"):
        message.ack()
        if message.offset == 9:
            break
    assert len(cluster.acked) == 10


def test_a_restart_of_the_broker_goes_unseen(cluster, client):
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    messages = client.subscribe("t", "s", idle_timeout_s=0)
    cluster.faults = [refuse, lambda _: problem(503, "not-ready", retry_after="0")]
    assert len(list(messages)) == 1200


def test_patience_ends_and_the_outage_is_an_error_not_an_end(cluster):
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    with Client("http://test", transport=httpx.MockTransport(cluster), timeout_s=0.1) as client:
        messages = client.subscribe("t", "s", idle_timeout_s=0)
        cluster.faults = [refuse] * 1000
        with pytest.raises(ConnectionFailed):
            next(messages)
        cluster.faults = []


def test_an_ack_that_fails_is_raised(cluster, client):
    def gone(request):
        return problem(404, "subscription-not-found") if request.url.path.endswith("/ack") else None

    messages = client.subscribe("t", "s", max_messages=1)
    cluster.faults = [gone] * 1000
    with pytest.raises(SubscriptionNotFound):
        _ack_all(messages)
    cluster.faults = []


def _ack_all(messages):
    for message in messages:
        message.ack()


def test_an_existing_subscription_is_used_as_it_is(cluster, client):
    cluster.faults = [lambda _: problem(409, "subscription-exists", differences={"start": 1})]
    assert next(client.subscribe("t", "s", start="earliest")).offset == 0


def test_idle_waits_add_up_over_long_polls(cluster, client):
    cluster.messages = []
    assert list(client.subscribe("t", "s", idle_timeout_s=70)) == []
    assert [body["wait_s"] for body in _posted(cluster, "/pull")] == [30, 30, 10]


def test_bytes_values_headers_and_times(cluster, client):
    coded = base64.b64encode(b"\x00\xff").decode()
    cluster.messages = [{"value_base64": coded, "headers": {"a": "b"}, "attempt": 3}]
    message = next(client.subscribe("t", "s"))
    assert (message.value, message.raw, message.headers, message.attempt) == (b"\x00\xff", b"\x00\xff", {"a": "b"}, 3)
    assert message.timestamp.isoformat() == "2026-01-02T03:04:05.678901+00:00"
    assert json.loads(message.json) == cluster.read(0)


def test_a_fetched_message_has_no_ack(cluster, client):
    page = {"messages": [cluster.read(0)], "next_offset": 1, "sealed": True, "successors": [1, 2]}
    cluster.faults = [lambda _: httpx.Response(200, json=page)]
    answer = client.fetch("t", 0, 0)
    assert (answer.next_offset, answer.sealed, answer.successors) == (1, True, [1, 2])
    with pytest.raises(ClientError, match="0-0"):
        answer.messages[0].ack()


async def test_the_async_subscriber_does_the_same(cluster):
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    async with AsyncClient("http://test", transport=httpx.MockTransport(cluster)) as client:
        cluster.faults = [lambda _: None, refuse]
        offsets = []
        async for message in client.subscribe("t", "s", start="earliest", idle_timeout_s=0):
            offsets.append(message.offset)
            message.ack()
    assert offsets == list(range(1200))
    assert len(cluster.acked) == 1200
    assert len(cluster.ack_requests) <= 6


async def test_closing_the_async_client_sends_what_was_acked(cluster):
    async with AsyncClient("http://test", transport=httpx.MockTransport(cluster)) as client:
        async for message in client.subscribe("t", "s"):
            message.ack()
            break
    assert cluster.acked == ["0-0"]


def test_once_it_holds_messages_it_prefetches_and_says_so(cluster, client):
    """Its first pull gets what one of its name held that has crashed."""
    for _ in range(2):
        messages = client.subscribe("t", "s", idle_timeout_s=0, max_messages=100, consumer="mine")
        for message in messages:
            message.ack()
            if message.offset % 500 == 499:
                break
    pulls = _posted(cluster, "/pull")
    first = next(at for at, body in enumerate(pulls) if at and not body.get("ahead"))
    assert [body.get("ahead", False) for body in pulls] == [False, *[True] * (first - 1), False, *[True] * 4]
    assert {body["consumer"] for body in pulls} == {"mine"}
