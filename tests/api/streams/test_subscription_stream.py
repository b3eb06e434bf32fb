"""The stream of a subscription as server-sent events: leased messages, bounds, reconnections, and its ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.streams import session
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at
from tests.support.http.listening import Listener, listening
from tests.support.tiers import later

pytestmark = pytest.mark.brokers

TOPIC = "/v1/topics/t"
SUB = f"{TOPIC}/subscriptions/s"
STREAM = f"{SUB}/stream"


class Client:
    """Requests to one broker, and the streams of its application."""

    def __init__(self, together: InLoop, number: int, http: httpx.AsyncClient) -> None:
        self.broker = together.brokers[number]
        self.app = together.apps[self.broker.process.url]
        self.http = http

    async def make(self, count: int = 0, segments: int = 1, **settings: Any) -> None:
        """The topic, the subscription, and messages whose values are their numbers."""
        assert (await self.http.put(TOPIC, json={"initial_segments": segments})).status_code in (200, 201)
        made = await self.http.put(SUB, json={"start": "earliest", **settings})
        assert made.status_code == 201, made.text
        if count:
            await self.publish(*range(count))

    async def publish(self, *values: Any, key: str | None = None) -> None:
        messages = [{"value": value, "key": key} for value in values]
        answer = await self.http.post(f"{TOPIC}/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text

    async def tell(self, verb: str, ids: list[str] | None = None, **more: Any) -> dict[str, Any]:
        body = {**({"ids": ids} if ids else {}), **more}
        answer = await self.http.post(f"{SUB}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def pulled(self, count: int = 100, **more: Any) -> list[int]:
        answer = await self.http.post(f"{SUB}/pull", json={"max_messages": count, **more})
        assert answer.status_code == 200, answer.text
        return [message["value"] for message in answer.json()["messages"]]

    def stream(self, asked: str = "", last_id: str | None = None, taking: bool = True) -> Any:
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        return listening(self.app, f"{STREAM}{asked}", headers, taking)


@asynccontextmanager
async def clients(folder: Path, count: int = 1) -> AsyncIterator[list[Client]]:
    async with in_loop(folder, count) as together:
        https = [at(together, broker) for broker in together.brokers]
        try:
            yield [Client(together, number, http) for number, http in enumerate(https)]
        finally:
            for http in https:
                await http.aclose()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with clients(tmp_path) as (one,):
        yield one


def ids_of(listener: Listener) -> list[str]:
    return [event.last_id for event in listener.parsed.events if event.kind == "message"]


async def test_messages_are_leased_as_they_come_and_acked_by_requests(client: Client) -> None:
    await client.make(2)
    async with client.stream() as one:
        await one.until(2)
        await client.publish("new")
        await one.until(3)
        assert one.values == [0, 1, "new"]
        assert one.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert one.parsed.retry_ms == 1000
        first = one.messages[0]
        assert set(first) == {"id", "key", "value", "headers", "timestamp", "segment", "offset", "attempt"}
        assert first["attempt"] == 1
        leases = [text.rpartition(".")[0] for text in ids_of(one)]
        assert leases[0] == leases[1]
        assert await client.tell("ack", lease=leases[0]) == {"acked": 2, "late": 0, "unknown": []}
        assert await client.tell("ack", ["0-2"]) == {"acked": 1, "late": 0, "unknown": []}
    assert await client.pulled() == []


@pytest.mark.parametrize("mode", [later("ordered"), "shared", later("keyed")])
async def test_no_more_than_max_in_flight_are_unacked(client: Client, mode: str) -> None:
    await client.make(10, mode=mode)
    async with client.stream("?max_in_flight=3") as one:
        await one.until(3)
        await asyncio.sleep(0.05)
        assert len(one.messages) == 3
        await client.tell("ack", ["0-1"])
        await one.until(4)
        await asyncio.sleep(0.05)
        assert one.values == [0, 1, 2, 3]
        await client.tell("ack", ["0-0", "0-2", "0-3"])
        await one.until(7)
        assert one.values == list(range(7))


async def test_a_reconnection_gets_the_unacked_behind_its_last_event_in_order(
    client: Client,
) -> None:
    await client.make(6, ack_deadline_s=600)
    async with client.stream("?max_in_flight=4") as one:
        await one.until(4)
        await client.tell("ack", ["0-0", "0-2"])
        await one.until(6)
        ids = ids_of(one)
    assert len({text.rpartition(".")[0] for text in ids}) > 1
    for at_, expected in ((0, [1, 3, 4, 5]), (1, [3, 4, 5]), (2, [3, 4, 5]), (3, [4, 5]), (4, [5]), (5, [])):
        async with client.stream("?max_in_flight=4", ids[at_]) as again:
            await again.until(len(expected))
            await asyncio.sleep(0.02)
            assert again.values == expected, ids[at_]
            assert ids_of(again) == [ids[value] for value in expected]
            assert all(message["attempt"] == 1 for message in again.messages)
    await client.publish(6)
    async with client.stream("?max_in_flight=5", ids[5]) as again:
        await again.until(1)
        assert again.values == [6]


async def test_a_client_that_loses_the_first_messages_gets_them_in_order(client: Client) -> None:
    await client.make(2, ack_deadline_s=600)
    async with client.stream("?consumer=c") as one:
        await one.until(2)
        begun = one.parsed.first_id
    await client.publish(2)
    async with client.stream("?consumer=c", begun) as again:
        await again.until(3)
        assert again.values == [0, 1, 2]
        assert again.parsed.first_id == begun


async def test_an_id_of_a_gone_lease_begins_with_the_first_unacked(client: Client) -> None:
    await client.make(3, mode="shared")
    for last_id in ("gone.0", "gone.7.3", "a" * 60 + ".1.0", "x.000.0"):
        async with client.stream("", last_id) as one:
            await one.until(3)
            assert one.values == [0, 1, 2]
        await client.tell("nack", lease=ids_of(one)[0].rpartition(".")[0], delay_s=0)


@pytest.mark.long
async def test_a_deadline_that_is_over_gives_the_messages_to_the_next_who_asks(client: Client) -> None:
    await client.make(2, mode="shared", ack_deadline_s=1)
    async with client.stream() as one:
        await one.until(2)
        before = ids_of(one)
    assert await client.pulled(wait_s=10) == [0, 1]
    async with client.stream("", before[0]) as again:
        await again.until(2)
        assert [message["attempt"] for message in again.messages] == [3, 3], "not extended by the stream"


REFUSED = [
    ("", {"Last-Event-ID": "nonsense"}, 400, "invalid-positions"),
    ("", {"Last-Event-ID": "a.01"}, 400, "invalid-positions"),
    ("", {"Last-Event-ID": "a.-1"}, 400, "invalid-positions"),
    ("", {"Last-Event-ID": "a." + "1" * 60}, 400, "invalid-positions"),
    ("", {"Last-Event-ID": "a b.1"}, 400, "invalid-positions"),
    ("", {"Last-Event-ID": ".1"}, 400, "invalid-positions"),
    ("?max_in_flight=0", {}, 422, "invalid-request"),
    ("?max_in_flight=1000001", {}, 422, "invalid-request"),
    ("?max_in_flight=ten", {}, 422, "invalid-request"),
    ("?consumer=", {}, 422, "invalid-request"),
    ("?consumer=" + "c" * 256, {}, 422, "invalid-request"),
    ("", {"Accept": "application/json"}, 406, "not-acceptable"),
    ("", {"Origin": "http://elsewhere.test"}, 403, "foreign-origin"),
]


async def test_what_cannot_be_is_refused(client: Client) -> None:
    await client.make()
    for asked, headers, status, slug in REFUSED:
        async with listening(client.app, f"{STREAM}{asked}", headers) as one:
            problem = json.loads(one.content)
            assert (one.status, problem["type"]) == (status, f"/problems/{slug}"), (asked, headers)
    for path, slug in (
        (f"{TOPIC}/subscriptions/none/stream", "subscription-not-found"),
        ("/v1/topics/none/subscriptions/s/stream", "topic-not-found"),
    ):
        async with listening(client.app, path) as one:
            assert (one.status, json.loads(one.content)["type"]) == (404, f"/problems/{slug}")
    async with listening(client.app, f"{STREAM}?consumer=c&max_in_flight=1000") as one:
        assert one.status == 200


async def test_a_sign_of_life(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "COMMENT_S", 0.01)
    await client.make(1)
    async with client.stream("?max_in_flight=1") as one:
        await until(lambda: one.parsed.comments >= 3)
        assert one.values == [0]


async def test_a_client_that_takes_nothing_holds_only_leases_its_socket_took(client: Client) -> None:
    await client.make(0, mode="shared")
    async with client.stream(taking=False) as slow:
        size = len(slow.content)
        await client.publish(0)  # for a pull that waited before its socket was full
        async with asyncio.timeout(30):
            while not (await client.http.get(SUB)).json()["lag_total"]["in_flight"]:
                await asyncio.sleep(0.01)
        await client.publish(1, 2, 3, 4)
        assert await client.pulled() == [1, 2, 3, 4]
        assert len(slow.content) == size
        slow.taking.set()
        await slow.until(1)
        assert slow.values == [0]


async def test_a_client_that_goes_while_its_stream_waits_is_given_nothing(tmp_path: Path) -> None:
    async with clients(tmp_path, 2) as both:
        await both[0].make(1, mode="shared")
        for client in both:
            async with client.stream() as one:
                await one.until(1 if client is both[0] else 0)
            await both[0].publish("next")
            assert await both[0].pulled(wait_s=5) == ["next"], "nobody else holds it"


async def test_a_stream_ends_with_its_subscription_its_topic_and_its_broker(client: Client) -> None:
    await client.make(1)
    async with client.stream() as one:
        await one.until(1)
        assert (await client.http.delete(SUB)).status_code == 204
        await until(lambda: one.complete)
        assert one.bye is not None
        assert one.bye["type"] == "/problems/subscription-not-found"
    await client.http.put(SUB, json={})
    async with client.stream() as one:
        await client.http.delete(TOPIC)
        await until(lambda: one.complete)
        assert one.bye is not None
        assert one.bye["type"] in ("/problems/topic-being-deleted", "/problems/topic-not-found")
    await client.make()
    async with client.stream() as one, client.stream("?consumer=b", taking=False) as full:
        client.broker.leave()
        await until(lambda: one.complete)
        assert one.bye is not None
        assert one.bye["type"] == "/problems/not-ready"
        await until(lambda: full.ended and full.ended.done())
        assert full.aborted


async def test_a_paused_subscription_sends_nothing_until_it_goes_on(client: Client) -> None:
    await client.make(1)
    await client.http.patch(SUB, json={"paused": True})
    async with client.stream() as one:
        await asyncio.sleep(0.05)
        assert one.messages == []
        await client.http.patch(SUB, json={"paused": False})
        await one.until(1)
