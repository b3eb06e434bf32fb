"""Producers: batches that are sent again, under which sequence, and who learns of failures."""

import asyncio
import threading
import time

import httpx
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import (
    ClientError,
    ConnectionFailed,
    InvalidMessages,
    Overloaded,
    ServerProblem,
)
from tests.support.client import kinds
from tests.support.client.fake_cluster import FakeCluster, problem

MIB = 1024 * 1024


@pytest.fixture(params=["lines", "rows"], autouse=True)
def kind(request, monkeypatch):
    """What the batches are: most brokers' faults are the same for both."""
    kinds.use(request.param, monkeypatch)
    return request.param


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def client(cluster):
    with Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        yield client


def _sequences(cluster):
    return [(r.headers["producer-id"], int(r.headers["producer-sequence"])) for r in cluster.requests]


def test_a_lost_answer_is_asked_for_again_under_the_same_sequence(cluster, client):
    cluster.faults = [lambda _: None, cluster.lost]
    with client.producer("t") as producer:
        assert producer.send("a").result(30) == "0-0"
        assert producer.send("b").result(30) == "0-1"
    assert cluster.published() == ["a", "b"]
    (first, *_), (second, *_), (third, *_) = _sequences(cluster), _sequences(cluster)[1:], _sequences(cluster)[2:]
    assert (first[1], second[1], third[1]) == (0, 1, 1)
    assert len({first[0], second[0], third[0]}) == 1
    assert len(first[0]) == 32
    assert int(first[0], 16) >= 0


@pytest.mark.parametrize(("status", "slug"), [(503, "overloaded"), (503, "partly-taken"), (429, "x"), (408, "y")])
def test_refusals_that_pass_are_tried_again(cluster, client, status, slug):
    cluster.faults = [lambda _: problem(status, slug, retry_after="0")] * 2
    with client.producer("t") as producer:
        producer.send("a")
    assert cluster.published() == ["a"]
    assert len(cluster.requests) == 3


def test_a_batch_that_fails_for_good_fails_its_messages_and_is_raised_once(cluster, client, kind):
    producer = client.producer("t")
    bad = producer.send("bad")
    with pytest.raises(InvalidMessages) as raised:
        producer.flush()
    assert raised.value.fields["errors"] == [{"index": 0, "reason": "bad"}]
    assert bad.exception() is raised.value
    good = producer.send("good")
    producer.close()
    assert good.result() == "0-0"
    again = [0] if kind == "rows" else []  # as lines, of which brokers name the bad one
    assert [sequence for _, sequence in _sequences(cluster)] == [0, *again, 1]


def test_invalid_messages_take_no_valid_one_with_them(cluster, client):
    producer = client.producer("t", linger_ms=10_000)
    receipts = [producer.send(value) for value in ("a", "bad", "b", "bad", "c")]
    with pytest.raises(InvalidMessages):
        producer.flush()
    assert cluster.published() == ["a", "b", "c"]
    assert [receipts[n].result() for n in (0, 2, 4)] == ["0-0", "0-1", "0-2"]
    assert all(isinstance(receipts[n].exception(), InvalidMessages) for n in (1, 3))
    assert producer.acknowledged == 3
    last = producer.send("d")
    producer.close()
    assert last.result() == "0-3"


def test_a_lost_answer_after_a_rejection_doubles_nothing(cluster, client):
    cluster.faults = [lambda _: None, cluster.lost]
    producer = client.producer("t", linger_ms=10_000)
    for value in ("a", "bad", "b"):
        producer.send(value)
    with pytest.raises(InvalidMessages):
        producer.close()
    assert cluster.published() == ["a", "b"]


def test_the_error_comes_out_at_the_next_send_which_takes_nothing(cluster, client, kind):
    producer = client.producer("t")
    producer.send("bad").exception(30)
    assert len(cluster.requests) == (2 if kind == "rows" else 1)
    with pytest.raises(InvalidMessages):
        _send_until_raised(producer)
    producer.close()


def _send_until_raised(producer):
    # The receipt is settled a moment before the producer itself knows.
    for _ in range(1000):
        producer.send("good")
        threading.Event().wait(0.001)


def test_leaving_the_block_raises_failures_and_a_users_error_comes_first(client):
    with pytest.raises(InvalidMessages), client.producer("t") as producer:
        producer.send("bad")
    with pytest.raises(KeyError) as raised:
        _send_and_stumble(client)
    assert "also failed" in raised.value.__notes__[0]


def _send_and_stumble(client):
    with client.producer("t") as producer:
        producer.send("bad")
        raise KeyError("mine")


def test_an_interrupt_does_not_wait_for_a_broker_that_is_gone(cluster):
    cluster.faults = [lambda _: problem(503, "overloaded", retry_after="0")] * 10_000
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Client("http://test", transport=httpx.MockTransport(cluster)) as client:
        _send_and_be_interrupted(client)
    assert time.monotonic() - began_s < 20


def _send_and_be_interrupted(client):
    with client.producer("t") as producer:
        producer.send("a")
        raise KeyboardInterrupt


def test_patience_ends_with_the_last_failure(cluster, client):
    cluster.faults = [lambda _: problem(503, "overloaded", budget_bytes=7)] * 1000
    with client.producer("t", delivery_timeout_s=0.2) as producer:
        error = producer.send("a").exception(30)
        assert isinstance(error, Overloaded)
        assert error.fields["budget_bytes"] == 7
        with pytest.raises(Overloaded):
            producer.flush()


def test_patience_counts_from_send_so_that_what_waits_behind_fails_with_it(cluster, client):
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    cluster.faults = [refuse] * 1000
    producer = client.producer("t", batch_messages=1, delivery_timeout_s=0.5)
    began_s = time.monotonic()
    receipts = [producer.send(n) for n in range(20)]
    assert all(isinstance(receipt.exception(30), ConnectionFailed) for receipt in receipts)
    assert time.monotonic() - began_s < 10  # 20 batches, one after another
    with pytest.raises(ConnectionFailed):
        producer.close()


def test_no_broker_at_all_is_connection_failed(cluster, client):
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    cluster.faults = [refuse] * 1000
    producer = client.producer("t", delivery_timeout_s=0.1)
    assert isinstance(producer.send("a").exception(30), ConnectionFailed)
    with pytest.raises(ConnectionFailed, match="http://test"):
        producer.close()


def test_send_blocks_at_the_bound_until_a_batch_is_settled(cluster, client):
    gate, entered = threading.Event(), threading.Event()

    def hold(_):
        entered.set()
        gate.wait(30)

    cluster.faults = [hold]
    producer = client.producer("t", linger_ms=0, max_buffer_bytes=100)
    producer.send("x" * 80)
    entered.wait(30)
    second = threading.Thread(target=producer.send, args=("y" * 80,))
    second.start()
    second.join(0.05)
    assert second.is_alive()
    gate.set()
    second.join(30)
    assert not second.is_alive()
    producer.close()
    assert len(cluster.messages) == 2


def test_many_messages_go_in_few_requests_in_order(cluster, client):
    with client.producer("t", batch_messages=1000) as producer:
        receipts = [producer.send(n) for n in range(10_000)]
    assert cluster.published() == list(range(10_000))
    assert [r.result() for r in receipts[::999]] == [f"0-{n}" for n in range(0, 10_000, 999)]
    assert 10 <= len(cluster.requests) < 100


def test_closing_the_client_closes_its_producers(cluster):
    client = Client("http://test", transport=httpx.MockTransport(cluster))
    producer = client.producer("t", linger_ms=10_000)
    producer.send("a")
    client.close()
    assert cluster.published() == ["a"]
    with pytest.raises(ClientError, match="closed"):
        producer.send("b")


def test_unknown_problems_keep_status_type_and_fields(cluster, client):
    cluster.faults = [lambda _: problem(418, "teapot", "short and stout", spout=1)]
    with pytest.raises(ServerProblem, match="short and stout") as raised:
        client.publish("t", {"value": 1})
    assert raised.value.fields == {"status": 418, "type": "/problems/teapot", "spout": 1}


async def test_the_async_producer_does_the_same(cluster):
    cluster.faults = [cluster.lost, lambda _: problem(503, "not-ready", retry_after="0")]
    async with AsyncClient("http://test", transport=httpx.MockTransport(cluster)) as client:
        async with client.producer("t", batch_messages=100) as producer:
            receipts = [await producer.send(n, key="k") for n in range(250)]
            await producer.flush()
            assert await receipts[249] == "0-249"
        assert cluster.published() == list(range(250))
        assert len({id for id, _ in _sequences(cluster)}) == 1


async def test_the_async_producer_raises_what_failed_and_goes_on(cluster):
    async with AsyncClient("http://test", transport=httpx.MockTransport(cluster)) as client:
        producer = client.producer("t")
        receipt = await producer.send("bad")
        with pytest.raises(InvalidMessages):
            await producer.flush()
        with pytest.raises(InvalidMessages):
            await receipt
        assert await (await producer.send("good")) == "0-0"
        await producer.close()


async def test_the_async_producer_waits_at_the_bound(cluster):
    async with AsyncClient("http://test", transport=httpx.MockTransport(cluster)) as client:
        async with client.producer("t", max_buffer_bytes=1000, batch_bytes=500) as producer:
            async with asyncio.timeout(30):
                for n in range(500):
                    await producer.send("x" * 100 + str(n))
                    assert n + 1 - len(cluster.messages) <= 10
        assert len(cluster.messages) == 500


async def test_an_async_close_that_is_cancelled_still_sends_what_waits(cluster):
    gate = asyncio.Event()

    async def answer(request):
        if request.url.path.endswith("/messages"):
            await gate.wait()
        return cluster(request)

    async with AsyncClient("http://test", transport=httpx.MockTransport(answer)) as client:
        producer = client.producer("t")
        receipts = [await producer.send(value) for value in ("a", "b")]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await producer.close()
        gate.set()
        await producer.close()
        assert [await receipt.result() for receipt in receipts] == ["0-0", "0-1"]
    assert cluster.published() == ["a", "b"]
