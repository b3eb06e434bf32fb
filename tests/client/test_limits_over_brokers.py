"""A limit over three brokers and the Python client: it is slowed down, fails nothing, and loses and doubles nothing."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from seaweedq import AsyncClient
from tests.support.brokers import inside
from tests.support.http.with_tokens import ByHost, Http, access

pytestmark = pytest.mark.brokers

GRANTS = [{"actions": ["publish", "describe"], "topics": ["a"]}]
RATE, BATCH, BATCHES = 300, 400, 4


class Living(ByHost):
    """As its base; at the URL of a broker that was killed nobody listens."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As its base."""
        if f"http://{request.url.host}" not in self._apps:
            raise httpx.ConnectError("refused", request=request)
        return await super().handle_async_request(request)


async def messages_of(http: Http, broker: int) -> int:
    return int((await http("GET", "/v1/topics/a", http.admin, broker)).json()["messages"])


@pytest.mark.long
@pytest.mark.parametrize("disturbed", ["nothing", "leader killed", "broker silent"])
async def test_a_producer_over_its_limit_is_slowed_and_loses_and_doubles_nothing(
    tmp_path: Path, disturbed: str
) -> None:
    async with access(tmp_path, 3) as http:
        assert await http.status("PUT", "/v1/topics/a", http.admin, json={"initial_segments": 3}) == 201
        await http.principal("writes", GRANTS, limits={"messages": RATE})
        brokers, urls = http.together.brokers, list(http.together.apps)
        leader = next(one for one in brokers if inside.election(one).is_leader)
        client = AsyncClient(urls, transport=Living(http), token=await http.token(principal="writes"))
        begun_s = time.monotonic()
        async with client, client.producer("a", batch_messages=BATCH, linger_ms=1) as producer:
            for batch in range(BATCHES):  # each larger than a broker's burst
                for number in range(BATCH):
                    await producer.send(batch * BATCH + number, key=f"k{number}")
                await producer.flush()
                if batch == 0 and disturbed == "leader killed":
                    await http.together.crash(leader)
                elif batch == 0 and disturbed == "broker silent":
                    http.together.silent.add(next(one for one in brokers if one is not leader).process.url)
            assert producer.acknowledged == BATCH * BATCHES
        took_s = time.monotonic() - begun_s
        http.together.silent.clear()
        living = next(at for at, one in enumerate(brokers) if one.process.url in http.together.apps)
        assert await messages_of(http, living) == BATCH * BATCHES
        assert took_s >= (BATCH * (BATCHES - 1) - 2 * RATE) / (1.3 * RATE), "it was slowed down"


async def test_a_client_without_a_producer_waits_as_it_is_told(tmp_path: Path) -> None:
    async with access(tmp_path, 3) as http:
        assert await http.status("PUT", "/v1/topics/a", http.admin, json={}) == 201
        await http.principal("writes", GRANTS, limits={"requests": 30})
        token = await http.token(principal="writes")
        client = AsyncClient(list(http.together.apps), transport=Living(http), token=token)
        async with client:
            await asyncio.gather(*(client.publish("a", {"value": number}) for number in range(45)))
        assert await messages_of(http, 0) == 45
