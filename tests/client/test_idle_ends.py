"""The end of an idle subscriber: acks that are on their way may hold up messages, in `keyed` those of the same key."""

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest

from seaweedq import AsyncClient, Client
from tests.support.client.fake_cluster import FakeCluster


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
            assert self.found_nothing.wait(10)


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
