"""The stream of a subscription over a WebSocket, with a client of another library over a real port."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from seaweedq.api.streams import session
from tests.support.brokers import inside
from tests.support.brokers.in_process import running
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.serving import Served, served
from tests.support.http.socket_frames import closed, told

TOPIC = "/v1/topics/t"
SUB = f"{TOPIC}/subscriptions/s"
MIB = 1 << 20


class Client:
    """Requests to a broker, and WebSockets."""

    def __init__(self, here: Served, http: httpx.AsyncClient) -> None:
        self.here = here
        self.http = http

    async def make(self, count: int = 0, **settings: Any) -> None:
        assert (await self.http.put(TOPIC, json={})).status_code == 201
        assert (await self.http.put(SUB, json={"start": "earliest", **settings})).status_code == 201
        await self.publish(*range(count))

    async def publish(self, *values: Any) -> None:
        if values:
            body = {"messages": [{"value": value} for value in values]}
            assert (await self.http.post(f"{TOPIC}/messages", json=body)).status_code == 200

    def socket(self, asked: str = "", **options: Any) -> connect:
        return connect(f"ws{self.here.url.removeprefix('http')}{SUB}/stream{asked}", proxy=None, **options)

    async def pulled(self, **more: Any) -> list[Any]:
        answer = await self.http.post(f"{SUB}/pull", json=more)
        return [(message["value"], message["attempt"]) for message in answer.json()["messages"]]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with (
        running(tmp_path, shutdown_s=60) as found,
        served(found) as here,
        httpx.AsyncClient(base_url=here.url, timeout=30, trust_env=False) as http,
    ):
        yield Client(here, http)


async def values(socket: ClientConnection, count: int) -> list[Any]:
    """The values of so many messages, of frames that hold nothing else."""
    found: list[Any] = []
    while len(found) < count:
        frame = await told(socket)
        assert set(frame) == {"messages", "lease"}
        found += [message["value"] for message in frame["messages"]]
    return found


async def asked(socket: ClientConnection, **said: Any) -> dict[str, Any]:
    """The answer to a message."""
    await socket.send(json.dumps(said))
    return await told(socket)


async def test_messages_go_out_and_answers_come_in_order(client: Client) -> None:
    await client.make(4, mode="shared")
    offered = [Subprotocol("another.v1"), Subprotocol("seaweedq.v1")]
    async with client.socket("?max_in_flight=4", subprotocols=offered) as socket:
        assert socket.subprotocol == "seaweedq.v1"
        frame = await told(socket)
        assert [message["value"] for message in frame["messages"]] == [0, 1, 2, 3]
        for said in (
            {"extend": {"lease": frame["lease"], "ack_deadline_s": 60}},
            {"ack": {"ids": ["0-1"]}},
            {"nack": {"ids": ["0-2", "0-9"], "delay_s": 600}},
            {"ack": {"lease": "unknown"}},
        ):
            await socket.send(json.dumps(said))
        assert await told(socket) == {"extended": 4, "late": 0, "unknown": []}
        assert await told(socket) == {"acked": 1, "late": 0, "unknown": []}
        assert await told(socket) == {"nacked": 1, "late": 0, "unknown": ["0-9"]}
        assert (await told(socket))["error"]["type"] == "/problems/lease-ended"
        await client.publish("a", "b", "c")
        assert await values(socket, 2) == ["a", "b"], "max_in_flight"
        frames = [await asked(socket, ack={"ids": ["0-0", "0-3"]}), await told(socket)]
        (pushed,) = (frame for frame in frames if "messages" in frame)  # it may come before the answer
        assert [message["value"] for message in pushed["messages"]] == ["c"]
        assert {"acked": 2, "late": 0, "unknown": []} in frames


async def test_its_close_frees_its_leases_at_once(client: Client) -> None:
    await client.make(3, mode="shared", ack_deadline_s=600)
    async with client.socket() as socket:
        assert await values(socket, 3) == [0, 1, 2]
        await asked(socket, ack={"ids": ["0-1"]})
        assert await client.pulled() == []
    assert await client.pulled(wait_s=5) == [(0, 2), (2, 2)]
    await client.publish(3)
    socket = await client.socket()
    assert await values(socket, 1) == [3]
    socket.transport.abort()
    assert await client.pulled(wait_s=5) == [(3, 2)]


async def test_an_ack_for_a_topic_that_is_being_deleted_is_refused_as_over_http(client: Client) -> None:
    """It went to the subscription that was still open here."""
    await client.make(1)
    topic = inside.catalog(client.here.broker).topic("t")
    async with client.socket() as socket:
        assert await values(socket, 1) == [0]
        topic.record = msgspec.structs.replace(topic.record, state="deleting")
        over_http = (await client.http.post(f"{SUB}/ack", json={"ids": ["0-0"]})).json()
        found = (await asked(socket, ack={"ids": ["0-0"]}))["error"]
        assert found["type"] == over_http["type"] == "/problems/topic-being-deleted"


async def test_what_is_no_message_is_an_error_frame_and_it_stays_open(client: Client) -> None:
    await client.make()
    async with client.socket() as socket:
        for text, slug in (
            ("{", "unreadable-body"),
            ("[" * 5000, "invalid-request"),
            ("", "unreadable-body"),
            ("[]", "invalid-request"),
            ("{}", "invalid-request"),
            ('{"ack": {}}', "invalid-request"),
            ('{"ack": {"ids": []}}', "invalid-request"),
            ('{"ack": {"ids": ["0-0"]}, "nack": {"ids": ["0-0"]}}', "invalid-request"),
            ('{"acked": {"ids": ["0-0"]}}', "invalid-request"),
            ('{"extend": {"ids": ["0-0"], "ack_deadline_s": NaN}}', "unreadable-body"),
            ('{"nack": {"ids": ["0-0"], "delay_s": 43201}}', "invalid-request"),
        ):
            await socket.send(text)
            error = (await told(socket))["error"]
            assert error["type"] == f"/problems/{slug}", (text, error)
        await socket.send(b"\x00")
        assert "error" in await told(socket)
        assert await asked(socket, ack={"ids": ["strange", "0-99"]}) == {
            "acked": 0,
            "late": 0,
            "unknown": ["strange", "0-99"],
        }
        await client.publish(1)
        assert await values(socket, 1) == [1]
        await socket.send("1" + " " * MIB)
        assert await closed(socket) == 1009
    async with client.socket() as socket:
        await socket.send(b"\xff", text=True)
        assert await closed(socket) == 1007
    await until(lambda: not inside.budget(client.here.broker).incomplete)


async def test_no_more_messages_than_credits_are_sent(client: Client) -> None:
    await client.make(5, mode="shared")
    async with client.socket("?credits=2") as socket:
        assert await values(socket, 2) == [0, 1]
        assert await asked(socket, ack={"ids": ["0-0", "0-1"]}) == {"acked": 2, "late": 0, "unknown": []}
        assert await asked(socket, credit={"messages": 1}) == {"credits": 1}
        assert await values(socket, 1) == [2]
        assert "999999999" in (await asked(socket, credit={"messages": 999_999_999}))["error"]["detail"]
    async with client.socket() as socket:
        assert len(await values(socket, 3)) == 3
        assert "without" in (await asked(socket, credit={"messages": 1}))["error"]["detail"]
    answer = await client.http.get(f"{SUB}/stream?credits=1", headers={"seaweedq-client": "test"})
    assert (answer.status_code, answer.json()["field"]) == (422, "credits")


@pytest.mark.parametrize(
    ("asked_for", "options", "status", "slug"),
    [
        ("?max_in_flight=0", {}, 422, "invalid-request"),
        ("?credits=-1", {}, 422, "invalid-request"),
        ("", {"origin": "http://elsewhere.test"}, 403, "foreign-origin"),
        ("", {"additional_headers": {"last-event-id": "nonsense"}}, 400, "invalid-positions"),
    ],
)
async def test_what_is_refused_never_becomes_a_web_socket(
    client: Client, asked_for: str, options: dict[str, Any], status: int, slug: str
) -> None:
    await client.make()
    with pytest.raises(InvalidStatus) as found:
        await client.socket(asked_for, **options)
    assert found.value.response.status_code == status
    assert f"/problems/{slug}".encode() in (found.value.response.body or b"")


@pytest.mark.parametrize("options", ["", "?credits=0"])
async def test_it_ends_if_the_broker_leaves_or_its_subscription_is_deleted(
    client: Client, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "COMMENT_S", 0.2)  # at which one without credits looks
    await client.make()
    async with client.socket(options) as socket:
        await client.http.delete(SUB)
        assert (await told(socket))["bye"]["type"] == "/problems/subscription-not-found"
        assert await closed(socket) == 1001
    await client.http.put(SUB, json={})
    async with client.socket() as socket:
        client.here.stop.ask()
        assert (await told(socket))["bye"]["type"] == "/problems/not-ready"
        assert await closed(socket) == 1012
    await asyncio.wait_for(client.here.ended, 15)


@pytest.mark.long
async def test_a_client_that_reads_nothing_is_bounded_others_get_its_messages(client: Client) -> None:
    """15 MB are published; the slow one gets what its sockets take, whose deadline is over after 1 s."""
    await client.make(0, mode="shared", ack_deadline_s=1)
    budget = inside.budget(client.here.broker)
    reader, writer = await asyncio.open_connection(*client.here.url.removeprefix("http://").split(":"), limit=4096)
    writer.write(f"GET {SUB}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nSeaweedq-Client: test\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    count, text = 150, "x" * 100_000
    most = 0
    for n in range(count):
        await client.publish([n, text])
        most = max(most, budget.answers)
    assert most < 4 * 256 * 1024
    seen: set[int] = set()
    async with asyncio.timeout(30):
        while len(seen) < count:
            answer = await client.http.post(f"{SUB}/pull", json={"wait_s": 2, "max_messages": 50})
            found = answer.json()["messages"]
            seen |= {message["value"][0] for message in found}
            if found:
                ids = [message["id"] for message in found]
                assert (await client.http.post(f"{SUB}/ack", json={"ids": ids})).status_code == 200
    writer.close()
