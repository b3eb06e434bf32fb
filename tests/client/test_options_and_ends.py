"""Options that cannot work are refused at once, a closed client says so, and a wait ends no iteration."""

import asyncio
import gc
from typing import Any

import httpx
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.errors import ClientError

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_s": 0}, "timeout_s=0 is not"),
        ({"timeout_s": -1}, "timeout_s=-1 is not"),
        ({"timeout_s": float("nan")}, "timeout_s=nan is not"),
        ({"headers": {"X-Token": "a\r\nHost: b"}}, "the value of header 'X-Token' has a line break"),
        ({"headers": {"X-Token": "a\n"}}, "the value of header 'X-Token' has a line break"),
        ({"headers": {"X Token": "a"}}, "'X Token' is not the name"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(URL, **options)


def test_a_closed_client_says_so() -> None:
    client = Client(URL)
    client.close()
    with pytest.raises(ClientError, match="this client is closed"):
        client.topics()


async def test_a_closed_async_client_says_so() -> None:
    client = AsyncClient(URL)
    await client.close()
    with pytest.raises(ClientError, match="this client is closed"):
        await client.topics()


class Pulls(httpx.AsyncBaseTransport):
    """A broker whose pulls wait until a test lets them go, and then bring one message each."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.pulls = self.cancelled = 0
        self.acked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        if request.url.path.endswith("/pull"):
            self.pulls += 1
            number = self.pulls
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            message = {"id": f"0-{number}", "segment": 0, "offset": number, "key": "k", "value": number, "attempt": 1}
            message |= {"timestamp": "2026-01-01T00:00:00Z", "headers": {}}
            return httpx.Response(200, json={"messages": [message]})
        if request.url.path.endswith("/ack"):
            self.acked.append(request.content.decode())
            return httpx.Response(200, json={"acked": 1, "unknown": []})
        return httpx.Response(200, json={})


async def test_a_wait_that_is_cancelled_ends_no_iteration_and_loses_nothing() -> None:
    broker = Pulls()
    client = AsyncClient(URL, transport=broker)
    found: Any = client.subscribe("t", "s")
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(found), 0.05)
    assert broker.pulls == 1, "the pull goes on"
    broker.go_on.set()
    first, second = await asyncio.wait_for(anext(found), 30), await asyncio.wait_for(anext(found), 30)
    assert (first.id, second.id) == ("0-1", "0-2")
    first.ack()
    await found.aclose()
    assert len(broker.acked) == 1
    with pytest.raises(StopAsyncIteration):
        await anext(found)
    await client.close()


async def test_an_iteration_that_another_task_ends_ends_for_all_who_wait() -> None:
    broker = Pulls()
    client = AsyncClient(URL, transport=broker)
    found: Any = client.subscribe("t", "s")
    waiting = asyncio.gather(anext(found, "ended"), anext(found, "ended"))
    while not broker.pulls:
        await asyncio.sleep(0.01)
    await found.aclose()
    assert await asyncio.wait_for(waiting, 30) == ["ended", "ended"]
    await client.close()


async def test_an_iteration_that_nobody_has_any_more_pulls_no_more() -> None:
    broker = Pulls()
    client = AsyncClient(URL, transport=broker)
    found = client.subscribe("t", "s")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(found), 0.05)
    del found
    gc.collect()
    for _ in range(200):
        if broker.cancelled:
            break
        await asyncio.sleep(0.01)
    assert broker.cancelled == 1
    await client.close()
