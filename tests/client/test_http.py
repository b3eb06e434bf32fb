"""The token of a client, options that cannot work, and a closed client."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.client.core.attempts import Brokers
from seaweedq.client.http import Credentials
from seaweedq.errors import ClientError, Forbidden, Unauthenticated


def shown(credentials: Credentials) -> str | None:
    return credentials.headers().get("Authorization")


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("of-a-file\n")
    both = {"SEAWEEDQ_TOKEN": "of-the-environment", "SEAWEEDQ_TOKEN_FILE": str(tmp_path / "t")}
    assert shown(Credentials(environment={})) is None
    assert shown(Credentials(token="given", environment=both)) == "Bearer given"
    assert shown(Credentials(token_file=tmp_path / "t", environment=both)) == "Bearer of-a-file"
    assert shown(Credentials(environment=both)) == "Bearer of-the-environment"
    del both["SEAWEEDQ_TOKEN"]
    assert shown(Credentials(environment=both)) == "Bearer of-a-file"


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("first")
    credentials = Credentials(token_file=tmp_path / "t")
    assert shown(credentials) == "Bearer first"
    (tmp_path / "t").write_text("another")
    assert shown(credentials) == "Bearer another"
    (tmp_path / "t").write_text("se cret")
    with pytest.raises(ClientError, match="contains no token") as refused:
        credentials.headers()
    assert "cret" not in str(refused.value)
    (tmp_path / "t").unlink()
    with pytest.raises(ClientError, match="cannot be read"):
        credentials.headers()


def test_each_request_says_that_no_web_page_has_sent_it() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        """Keeps the request."""
        seen.append(request)
        return httpx.Response(200, json={"topics": []})

    with Client("http://a", transport=httpx.MockTransport(answer)) as client:
        client.topics()
    assert {one.headers["seaweedq-client"] for one in seen} == {"python"}


def test_tokens_that_are_none() -> None:
    with pytest.raises(ValueError, match="not both"):
        Credentials(token="a", token_file="b")
    for text in ("", "a b", "a\r\nX: y", "é"):
        with pytest.raises(ValueError, match="not valid in a token"):
            Credentials(token=text)
    with pytest.raises(ValueError, match=r"^SEAWEEDQ_TOKEN contains a blank"):
        Credentials(environment={"SEAWEEDQ_TOKEN": "a b"})
    assert "hidden" not in repr(Credentials(token="hidden"))


@pytest.mark.parametrize(
    ("named", "learned", "used"),
    [
        ("http://a", "http://b", False),
        ("http://a", "http://127.0.0.1:1", True),
        ("http://a", "http://localhost:1", True),
        ("http://a", "http://localhost.evil:1", False),
        ("https://a", "https://b", True),
        ("https://a", "http://127.0.0.1:1", False),
    ],
)
def test_which_learned_brokers_see_a_token(named: str, learned: str, used: bool) -> None:
    brokers = Brokers([named], lambda: 0.0)
    brokers.has_secret = True
    assert (learned in brokers.order([learned])) is used
    assert named in brokers.order([learned])


REFUSALS = [("unauthenticated", 401, Unauthenticated), ("forbidden", 403, Forbidden)]


@pytest.mark.parametrize(("slug", "status", "kind"), REFUSALS)
async def test_refusals_are_raised_at_once(slug: str, status: int, kind: Any) -> None:
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(status, json={"type": f"/problems/{slug}", "detail": "no"})

    with Client("http://a,http://b", token="t", transport=httpx.MockTransport(answer)) as client, pytest.raises(kind):
        client.topic("x")
    async with AsyncClient("http://a,http://b", token="t", transport=httpx.MockTransport(answer)) as other:
        with pytest.raises(kind):
            await other.topic("x")
    assert seen == ["Bearer t"] * 2


URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("make", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout_s": 0}, "timeout_s=0 must be"),
        ({"timeout_s": -1}, "timeout_s=-1 must be"),
        ({"timeout_s": float("nan")}, "timeout_s=nan must be"),
        ({"headers": {"X-Token": "a\r\nHost: b"}}, "the value of header 'X-Token' contains a line break"),
        ({"headers": {"X-Token": "a\n"}}, "the value of header 'X-Token' contains a line break"),
        ({"headers": {"X Token": "a"}}, "'X Token' is not a valid name"),
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
    while not broker.pulls:
        await asyncio.sleep(0.01)
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
    while not broker.pulls:
        await asyncio.sleep(0.01)
    del found
    gc.collect()
    for _ in range(200):
        if broker.cancelled:
            break
        await asyncio.sleep(0.01)
    assert broker.cancelled == 1
    await client.close()
