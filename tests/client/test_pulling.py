"""A subscriber's pulls: arguments that no broker could fulfil, leases by name, repeats and answers against a fake
broker, and the end of an idle one, whose acks on their way may hold up messages.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import ClientError, Forbidden, InvalidRequest, SubscriptionConflict
from tests.support import privates
from tests.support.client.fake_cluster import FakeCluster, problem
from tests.support.http.with_tokens import ByHost, access

NOWHERE = "http://127.0.0.1:1"
SUBSCRIBERS = [
    ({"max_messages": 0}, ValueError, "max_messages must be a whole number from 1 to 10,000, not 0"),
    ({"max_messages": 10_001}, ValueError, "max_messages must be a whole number from 1 to 10,000, not 10001"),
    ({"max_messages": 2.5}, TypeError, r"max_messages must be a whole number from 1 to 10,000, not 2.5 \(float\)"),
    ({"max_messages": True}, TypeError, "max_messages must be .*, not True"),
    ({"idle_timeout_s": -1}, ValueError, "idle_timeout_s must be a finite number of seconds, at least 0, .*, not -1"),
    ({"idle_timeout_s": nan}, ValueError, "idle_timeout_s must be .*, not nan"),
    ({"idle_timeout_s": inf}, ValueError, "idle_timeout_s must be .*, not inf"),
    ({"idle_timeout_s": "1"}, TypeError, r"idle_timeout_s must be .*, not '1' \(str\)"),
    ({"consumer": ""}, ValueError, "consumer must have 1 to 255 characters, not ''"),
    ({"consumer": "x" * 256}, ValueError, "consumer must have 1 to 255 characters"),
    ({"consumer": 7}, TypeError, r"consumer must be a str.*, not 7 \(int\)"),
]
POOLS = [
    ({"handler": None}, TypeError, r"handler must be a function that accepts a message, not None \(NoneType\)"),
    ({"workers": 0}, ValueError, "workers must be a whole number from 1 to 10,000, not 0"),
    ({"workers": 1.5}, TypeError, r"workers must be a whole number from 1 to 10,000, not 1.5 \(float\)"),
    ({"max_extension_s": -1}, ValueError, "max_extension_s must be at least 0 seconds, not -1"),
    ({"max_extension_s": nan}, ValueError, "max_extension_s must be .*, not nan"),
    ({"max_extension_s": None}, TypeError, "max_extension_s must be .*, not None"),
]


@pytest.mark.parametrize(("wrong", "error", "says"), SUBSCRIBERS)
def test_a_subscriber_is_refused_at_the_call(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    client = AsyncClient(NOWHERE)
    with Client(NOWHERE) as here:
        for call in (here.subscribe, here.batches, client.subscribe, client.batches):
            with pytest.raises(error, match=says):
                call("t", "s", **wrong)


@pytest.mark.parametrize(("wrong", "error", "says"), SUBSCRIBERS + POOLS)
def test_a_pool_is_refused_at_the_call(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    arguments: dict[str, Any] = {"handler": print, **wrong}
    with Client(NOWHERE) as here, pytest.raises(error, match=says):
        here.work("t", "s", **arguments)
    with pytest.raises(error, match=says):
        asyncio.run(AsyncClient(NOWHERE).work("t", "s", **arguments))


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(messages=[{"value": n} for n in range(20)])


@pytest.fixture
def client(cluster: FakeCluster) -> Any:
    with Client("http://test", transport=httpx.MockTransport(cluster), timeout_s=2) as client:
        yield client


def pulls(cluster: FakeCluster) -> list[dict[str, Any]]:
    return [json.loads(one.content) for one in cluster.requests if one.url.path.endswith("/pull")]


def nothing(request: httpx.Request) -> None:
    return None


def test_each_pull_has_a_name_of_its_own_and_one_consumer(cluster: FakeCluster, client: Client) -> None:
    assert len(list(client.subscribe("t", "s", idle_timeout_s=0, max_messages=5))) == 20
    names = [one["lease"] for one in pulls(cluster)]
    assert len(set(names)) == len(names) == 5
    assert len({one["consumer"] for one in pulls(cluster)}) == 1
    list(client.subscribe("t", "s", idle_timeout_s=0, consumer="me"))
    assert pulls(cluster)[-1]["consumer"] == "me"


def test_a_pull_whose_answer_was_lost_is_repeated_under_its_name(cluster: FakeCluster, client: Client) -> None:
    """It skipped what the lost answer had: 0 to 4 came never, or after their deadline."""
    cluster.faults = [nothing, cluster.lost]
    messages = client.subscribe("t", "s", idle_timeout_s=0, max_messages=5)
    assert [one.value for one in messages] == list(range(20))
    assert pulls(cluster)[0]["lease"] == pulls(cluster)[1]["lease"]


def test_a_name_whose_lease_has_ended_is_not_used_again(cluster: FakeCluster, client: Client) -> None:
    def ended(request: httpx.Request) -> httpx.Response:
        return problem(410, "lease-ended")

    cluster.faults = [nothing, ended]
    assert len(list(client.subscribe("t", "s", idle_timeout_s=0))) == 20
    first, second, _ = (one["lease"] for one in pulls(cluster))
    assert first != second


def test_another_refusal_is_raised(cluster: FakeCluster, client: Client) -> None:
    cluster.faults = [nothing, lambda _: problem(422, "invalid-request", "max_messages is 7: expected 1")]
    with pytest.raises(InvalidRequest, match="max_messages is 7"):
        list(client.subscribe("t", "s", max_messages=7))


def test_nacks_and_extensions_name_message_and_lease(cluster: FakeCluster, client: Client) -> None:
    for message in client.subscribe("t", "s", idle_timeout_s=0):
        if message.value == 0:
            message.nack()
        elif message.value == 1:
            message.nack(delay_s=5, reason="busy")
        elif message.value == 2:
            message.nack(reject=True, reason="broken")
        elif message.value == 3:
            message.extend(60)
        else:
            message.ack()
    (consumer,) = {one["consumer"] for one in pulls(cluster)}
    about = {"lease": pulls(cluster)[0]["lease"], "consumer": consumer}
    assert sorted(cluster.answers, key=lambda one: one[1]["ids"]) == [
        ("nack", {"ids": ["0-0"], **about}),
        ("nack", {"ids": ["0-1"], **about, "delay_s": 5, "reason": "busy"}),
        ("nack", {"ids": ["0-2"], **about, "reject": True, "reason": "broken"}),
        ("extend", {"ids": ["0-3"], **about, "ack_deadline_s": 60}),
    ]
    assert cluster.acked == [f"0-{n}" for n in range(4, 20)]


def test_breaking_off_gives_back_what_was_not_yielded(cluster: FakeCluster, client: Client) -> None:
    for message in client.subscribe("t", "s", max_messages=10):
        if message.value == 6:
            break
    ((verb, body),) = cluster.answers
    assert (verb, body["ids"], body["attempted"]) == ("nack", ["0-7", "0-8", "0-9"], False)
    assert body["lease"] == pulls(cluster)[0]["lease"]


def test_a_pull_that_is_interrupted_is_given_back(cluster: FakeCluster, client: Client) -> None:
    def interrupt(request: httpx.Request) -> httpx.Response:
        cluster.handle(request)
        raise KeyboardInterrupt

    cluster.faults = [nothing, interrupt]
    with pytest.raises(KeyboardInterrupt):
        next(client.subscribe("t", "s"))
    assert cluster.answers == [
        ("nack", {"consumer": pulls(cluster)[0]["consumer"], "lease": pulls(cluster)[0]["lease"], "attempted": False})
    ]


async def test_the_async_client_gives_back_what_nobody_got(cluster: FakeCluster) -> None:
    async with AsyncClient("http://test", transport=httpx.MockTransport(cluster)) as client:
        messages: Any = client.subscribe("t", "s", max_messages=10)
        await anext(messages)
        await messages.aclose()
        cluster.delivered = 0
        others: Any = client.subscribe("t", "s", max_messages=10)
        waiting = asyncio.create_task(anext(others))
        while privates.pull(others) is None:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([privates.pull(others)])
        await others.aclose()
    first, second = (body for _, body in cluster.answers)
    assert first["ids"] == [f"0-{n}" for n in range(1, 10)]
    assert "ids" not in second
    assert second["lease"] == pulls(cluster)[1]["lease"]


def test_a_subscription_of_another_mode_than_named_is_no_surprise(cluster: FakeCluster, client: Client) -> None:
    conflict = problem(409, "subscription-exists", differences={"mode": {"current": "shared", "requested": "keyed"}})
    cluster.faults = [lambda _: conflict]
    with pytest.raises(SubscriptionConflict):
        client.subscribe("t", "s", mode="keyed")
    cluster.faults = [lambda _: conflict]
    assert next(client.subscribe("t", "s")).offset == 0, "unnamed: as it is"


@pytest.mark.brokers
async def test_who_may_consume_needs_no_right_to_create(tmp_path: Path) -> None:
    """As the roles of docs/operate/security.md say."""
    async with access(tmp_path, 1) as http:
        await http("PUT", "/v1/topics/t", http.admin, json={})
        await http("PUT", "/v1/topics/t/subscriptions/s", http.admin, json={"mode": "shared", "start": "earliest"})
        await http("POST", "/v1/topics/t/messages", http.admin, json={"value": 1})
        await http.principal("billing", [{"actions": ["consume", "describe"], "topics": ["t"], "subscriptions": ["s"]}])
        token = await http.token(principal="billing")
        async with AsyncClient("http://b0", transport=ByHost(http), token=token) as client:
            async for message in client.subscribe("t", "s", mode="shared", idle_timeout_s=0):
                assert message.value == 1
                message.ack()
                break
            else:
                raise AssertionError("no message came")
            for refused in (("t", "s", {"mode": "keyed"}), ("t", "other", {}), ("none", "s", {})):
                with pytest.raises(Forbidden, match="subscribe"):
                    await anext(aiter(client.subscribe(refused[0], refused[1], **refused[2])))


def test_settings_go_with_the_creation(cluster: FakeCluster, client: Client) -> None:
    client.subscribe("t", "s", mode="keyed", max_in_flight=7, backoff_s=[1, 2])
    assert json.loads(cluster.requests[0].content) == {
        "mode": "keyed",
        "start": "latest",
        "ack_deadline_s": 30,
        "max_in_flight": 7,
        "backoff_s": [1, 2],
    }


@pytest.mark.process
def test_batches_are_tables_and_acked_by_their_leases(real_client: Client) -> None:
    real_client.create_topic("batches")
    real_client.publish("batches", [{"value": {"n": n}, "key": f"k{n}"} for n in range(1000)])
    offsets: list[int] = []
    for batch in real_client.batches(
        "batches", "s", start="earliest", idle_timeout_s=0.1, max_messages=300, mode="shared"
    ):
        offsets += batch.table.column("_offset").to_pylist()
        assert set(batch.table.column("segment").to_pylist()) == {0}
        assert batch.table.num_rows <= 300
        batch.extend(60)
        batch.ack()
    assert sorted(offsets) == list(range(1000))
    shown = real_client.subscription("batches", "s")
    assert (shown["mode"], shown["lag_total"]["messages"], shown["lag_total"]["in_flight"]) == ("shared", 0, 0)


@pytest.mark.process
def test_a_nacked_batch_comes_again(real_client: Client) -> None:
    real_client.create_topic("nacked")
    real_client.publish("nacked", [{"value": n} for n in range(10)])
    attempts = []
    for batch in real_client.batches("nacked", "s", start="earliest", idle_timeout_s=0.1):
        attempts.append(batch.table.column("_attempt").to_pylist())
        (batch.ack if len(attempts) > 1 else batch.nack)()
    assert attempts == [[1] * 10, [2] * 10]


class SlowAcks(FakeCluster):
    """A broker whose messages have one key: each comes once the one before is acked, and an ack takes until a pull has
    found nothing."""

    def __init__(self) -> None:
        super().__init__(messages=[{"value": n, "key": "k"} for n in range(3)])
        self.found_nothing = threading.Event()
        self.is_last_acked = True

    def handle(self, request: httpx.Request) -> httpx.Response:
        """Answers a pull with one message at most."""
        if request.url.path.endswith("/pull"):
            if self.is_last_acked and self.delivered < len(self.messages):
                self.is_last_acked = False
                self.delivered += 1
                return httpx.Response(200, json={"lease": "one", "messages": [self.read(self.delivered - 1)]})
            self.found_nothing.set()
            return httpx.Response(200, json={"lease": None, "messages": []})
        answer = super().handle(request)
        if request.url.path.endswith("/ack"):
            self.is_last_acked = True
            self.found_nothing.clear()
        return answer

    def wait(self, request: httpx.Request) -> None:
        """Waits until this request may be answered."""
        if request.url.path.endswith("/ack"):
            assert self.found_nothing.wait(30)


def subscribe(client: Client) -> None:
    for message in client.subscribe("t", "s", "earliest", 0, mode="keyed"):
        message.ack()


def work(client: Client) -> None:
    client.work("t", "s", lambda message: None, 2, "earliest", 0, mode="keyed")


async def subscribe_async(client: AsyncClient) -> None:
    async for message in client.subscribe("t", "s", "earliest", 0, mode="keyed"):
        message.ack()


async def work_async(client: AsyncClient) -> None:
    await client.work("t", "s", lambda message: None, 2, "earliest", 0, mode="keyed")


@pytest.mark.parametrize("consume", [subscribe, work])
def test_acks_on_their_way_are_no_idle_time(consume: Callable[[Client], None]) -> None:
    """It ended while its own acks kept the rest of the key back: beside load `work` left messages behind."""
    cluster = SlowAcks()

    def answer(request: httpx.Request) -> httpx.Response:
        cluster.wait(request)
        return cluster(request)

    with Client("http://test", transport=httpx.MockTransport(answer), timeout_s=5) as client:
        consume(client)
    assert cluster.acked == ["0-0", "0-1", "0-2"]


@pytest.mark.parametrize("consume", [subscribe_async, work_async])
async def test_acks_on_their_way_are_no_idle_time_of_tasks(consume: Callable[[AsyncClient], asyncio.Future]) -> None:
    """The same of the async client."""
    cluster = SlowAcks()

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.to_thread(cluster.wait, request)
        return cluster(request)

    async with AsyncClient("http://test", transport=httpx.MockTransport(answer), timeout_s=5) as client:
        await consume(client)
    assert cluster.acked == ["0-0", "0-1", "0-2"]


@pytest.mark.parametrize("media", ["text/html", "application/json", None])
def test_an_arrow_pull_that_is_answered_with_something_else_is_an_error(media: str | None) -> None:
    """It was an empty answer, as a page of a proxy has no lease: the client pulled for ever."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/pull"):
            return httpx.Response(200, content=b"<html>", headers={"content-type": media} if media else {})
        return httpx.Response(200, json={})

    says = "a pull asked for an Arrow stream, but the broker answered with"
    with Client("http://test", transport=httpx.MockTransport(answer)) as client, pytest.raises(ClientError, match=says):
        next(client.batches("t", "s", idle_timeout_s=1))
