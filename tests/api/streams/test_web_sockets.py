"""Streams over WebSockets, with a client of another library over a real port: their frames and their bounds. After a
wrong frame a stream ends as if its client had gone, and the log has no error."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from seaweedq.api.connections import answers, web_sockets
from seaweedq.api.connections.connections import Connections
from seaweedq.api.request import CONNECTION, Answer, ClientGone, Receive, Scope, Send
from seaweedq.api.routes import SOCKET
from seaweedq.api.streams import transports
from seaweedq.broker.streams.topic_streams import TopicStreams
from seaweedq.broker.topics.catalog import Topic
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, running
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.serving import Served, served
from tests.support.http.raw_web_socket import WRONG_FRAMES, close_code, frame, next_frame, opened, raw
from tests.support.http.requests import request_of
from tests.support.http.serving_protocol import Limits
from tests.support.http.socket_frames import closed, told

MIB = 1 << 20


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Served]:
    async with running(tmp_path, shutdown_s=60) as found, served(found) as serving_:
        yield serving_


@pytest.fixture
async def topic(here: Served) -> Topic:
    return await make_topic(here.broker)


def stream(here: Served, asked: str = "", **options: Any) -> connect:
    """A connection to the stream of the topic `t`."""
    return connect(f"ws{here.url.removeprefix('http')}/v1/topics/t/stream{asked}", proxy=None, **options)


async def test_messages_come_with_positions_from_which_it_goes_on(here: Served, topic: Topic) -> None:
    async with stream(here) as socket:
        begun = await told(socket)
        assert begun == {"positions": f"{topic.record.incarnation}:0-0"}
        await publish(here.broker, topic, "1")
        first = await told(socket)
        assert [message["value"] for message in first["messages"]] == [1]
        assert first["positions"].endswith(":0-1")
        assert socket.subprotocol is None
    await publish(here.broker, topic, "2")
    offered = [Subprotocol("another.v1"), Subprotocol("seaweedq.v1")]
    async with stream(here, f"?start={first['positions']}", subprotocols=offered) as socket:
        assert socket.subprotocol == "seaweedq.v1"
        await told(socket)
        assert [message["value"] for message in (await told(socket))["messages"]] == [2]


async def test_what_is_not_meant_for_it_is_an_error_frame_and_it_stays_open(here: Served, topic: Topic) -> None:
    async with stream(here) as socket:
        await told(socket)
        for text, slug in (
            ("{", "unreadable-body"),
            ("[" * 5000, "unreadable-body"),
            ("", "unreadable-body"),
            ('{"ack": {}}', "invalid-request"),
            ("1" + " " * (MIB - 1), "invalid-request"),
        ):
            await socket.send(text)
            assert (await told(socket))["error"]["type"] == f"/problems/{slug}"
        await socket.send(b"\x00")
        assert "error" in await told(socket)
        await publish(here.broker, topic, "1")
        assert "messages" in await told(socket)


async def test_messages_are_bounded(here: Served, topic: Topic) -> None:
    async with stream(here) as socket:
        await socket.send("1" + " " * MIB)
        assert await closed(socket) == 1009
    async with stream(here) as socket:
        await socket.send(" " for _ in range(web_sockets.MAX_FRAGMENTS + 2))
        assert await closed(socket) == 1009
    async with stream(here) as socket:
        await socket.send(["[1", "\r\n]"])
        await told(socket)
        assert (await told(socket))["error"]["type"] == "/problems/invalid-request"
        await socket.send(b"\xff", text=True)
        assert await closed(socket) == 1007
    await until(lambda: not inside.budget(here.broker).incomplete)
    await until(lambda: not len(inside.watches(here.broker)))


@pytest.mark.parametrize(
    ("path", "options", "status", "slug"),
    [
        ("/v1/topics/none/stream", {}, 404, "topic-not-found"),
        ("/v1/topics/t/subscriptions/s/none/stream", {}, 404, "not-found"),
        ("/v1/topics/t/stream?start=never", {}, 422, "invalid-request"),
        ("/v1/topics/t/stream", {"origin": "http://elsewhere.test"}, 403, "foreign-origin"),
        ("/v1/topics/t/stream", {"additional_headers": {"x": "y" * 10_000}}, 400, "unreadable-request"),
        ("/healthz", {}, 200, None),
    ],
)
async def test_what_is_refused_never_becomes_a_web_socket(
    here: Served, topic: Topic, path: str, options: dict[str, Any], status: int, slug: str | None
) -> None:
    with pytest.raises(InvalidStatus) as found:
        await connect(f"ws{here.url.removeprefix('http')}{path}", proxy=None, **options)
    assert found.value.response.status_code == status
    assert slug is None or f"/problems/{slug}".encode() in (found.value.response.body or b"")


async def test_it_ends_when_the_broker_leaves(here: Served, topic: Topic) -> None:
    async with stream(here) as socket:
        await told(socket)
        here.stop.ask()
        assert (await told(socket))["bye"]["type"] == "/problems/not-ready"
        assert await closed(socket) == 1012
    await asyncio.wait_for(here.ended, 15)


# The protocol alone.


class Floods:
    """An application that sends as much as is taken, and counts what comes."""

    def __init__(self) -> None:
        self.sent = self.came = 0
        self.gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        await receive()
        await out({"type": "websocket.accept"})
        sending = asyncio.create_task(self.send(scope, out)) if scope["path"].startswith("/send") else None
        while (await receive())["type"] != "websocket.disconnect":
            self.came += 1
            if scope["path"].startswith("/hold"):
                await asyncio.sleep(3600)
        if sending:
            sending.cancel()
        self.gone.set()

    async def send(self, scope: Scope, out: Send) -> None:
        connection = scope["extensions"][CONNECTION]
        assert connection
        while True:
            await connection.drained()
            await out({"type": "websocket.send", "text": "x" * 100_000})
            self.sent += 1


async def test_a_client_that_takes_nothing_costs_one_buffer_and_is_ended() -> None:
    app, limits = Floods(), Limits()
    async with raw(app, limits, "/send"):
        await until(lambda: limits.budget.answers)
        sent = app.sent
        await asyncio.sleep(0.05)
        assert app.sent == sent
        assert limits.budget.answers <= 200_000
        limits.clock.more_s += limits.timeout_s
        limits.answers.tick()
        await asyncio.wait_for(app.gone.wait(), 20)
    await until(lambda: not limits.budget.answers)
    assert not len(limits.connections)


@pytest.mark.long
async def test_pings_of_a_client_that_takes_nothing_are_not_answered_without_end() -> None:
    app, limits = Floods(), Limits()
    async with raw(app, limits, "/ping") as (_, writer):
        for _ in range(400):
            writer.write(frame(9, bytes(125)) * 1000)
            await asyncio.sleep(0)
        await until(lambda: limits.budget.answers)
        await asyncio.sleep(0.1)
        assert limits.budget.answers < MIB
        limits.clock.more_s += limits.timeout_s
        limits.answers.tick()
        await asyncio.wait_for(app.gone.wait(), 20)


async def test_messages_wait_outside_until_they_are_taken() -> None:
    app, limits = Floods(), Limits()
    async with raw(app, limits, "/hold") as (_, writer):
        writer.write(frame(1, b"") * 200_000)
        await until(lambda: app.came)
        await asyncio.sleep(0.1)
        assert app.came == 1


async def test_a_message_that_does_not_come_whole_is_counted_and_ends_in_time() -> None:
    app, limits = Floods(), Limits()
    async with raw(app, limits, "/take") as (reader, writer):
        writer.write(frame(1, bytes(500_000), MIB))
        await until(lambda: limits.budget.incomplete >= 500_000)
        assert limits.budget.incomplete < 600_000
        assert app.came == 0
        (place,) = privates.regular(limits.connections)
        privates.too_slow(place.transport.get_protocol())()  # type: ignore[attr-defined]
        closing = await asyncio.wait_for(reader.readexactly(4), 20)
        assert int.from_bytes(closing[2:4], "big") == 1008
        await asyncio.wait_for(app.gone.wait(), 20)
    await until(lambda: not limits.budget.incomplete)


async def test_a_web_socket_is_busy_and_makes_no_room() -> None:
    app, limits = Floods(), Limits(connections=Connections(1, 0))
    async with raw(app, limits, "/take") as (_, writer):
        (place,) = privates.regular(limits.connections)
        assert place not in privates.quiet(limits.connections)
        writer.write(frame(1, b"x"))
        await until(lambda: app.came)
        assert place not in privates.quiet(limits.connections)
    await until(lambda: not len(limits.connections))


async def test_an_answer_to_one_that_has_just_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def heard() -> dict[str, Any]:
        return {"type": "websocket.receive", "text": "{}"}

    async def gone(message: Any) -> None:
        raise OSError("it has gone")

    async def answer(text: str | None) -> bytes:
        return b"{}"

    request = request_of(SOCKET, "/v1/topics/t/stream", subprotocols=[])
    request.receive = heard
    await transports.listen(request, transports.WebSocket(gone), answer)
    await answers.SocketOutgoing(request, gone).answer(Answer(404, b"{}", {}))
    with pytest.raises(ClientGone):  # which no log shows
        await transports.accept(request, gone)
    assert caplog.records == []


async def test_one_that_hangs_at_the_stop_is_cancelled_without_a_word_in_the_log(
    here: Served, topic: Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def hang(*_: Any) -> None:
        begun.set()
        await never.wait()

    here.server.config.timeout_graceful_shutdown = 1
    monkeypatch.setattr(TopicStreams, "open", hang)
    connecting = asyncio.create_task(stream(here).__aenter__())
    await begun.wait()
    here.stop.ask()
    with pytest.raises(InvalidStatus):
        await asyncio.wait_for(connecting, 20)
    await asyncio.wait_for(here.ended, 20)
    await asyncio.sleep(0)
    assert "Cancel 1 running task(s)" in caplog.text
    assert "Exception in ASGI application" not in caplog.text


async def test_a_handshake_under_way_is_refused_when_the_broker_stops(
    here: Served, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(self: web_sockets.BoundedWebSocket) -> None:
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(web_sockets.BoundedWebSocket, "run_asgi", wait)
    connecting = asyncio.create_task(stream(here).__aenter__())
    await begun.wait()
    here.stop.ask()
    with pytest.raises(InvalidStatus) as found:
        await asyncio.wait_for(connecting, 20)
    go_on.set()
    answer = found.value.response
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert json.loads(answer.body or b"")["type"] == "/problems/not-ready"
    await asyncio.wait_for(here.ended, 20)


TOPIC = "/v1/topics/t"
SUB = f"{TOPIC}/subscriptions/s"


@asynccontextmanager
async def messages_flow(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Publishes without end; begins with as many messages as there are wrong frames."""

    async def publish() -> None:
        body = {"messages": [{"value": "x" * 100}] * len(WRONG_FRAMES)}
        assert (await http.post(f"{TOPIC}/messages", json=body)).status_code == 200

    async def publish_on() -> None:
        while True:
            await publish()

    await publish()
    publishing = asyncio.create_task(publish_on())
    try:
        yield
        assert not publishing.done()
    finally:
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing


@pytest.mark.parametrize("path", [f"{TOPIC}/stream?start=0-", f"{SUB}/stream?max_in_flight=1"])
async def test_a_stream_with_a_wrong_frame_leaves_nothing(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(tmp_path) as broker,
        served(broker) as here,
        httpx.AsyncClient(base_url=here.url, timeout=30, trust_env=False) as http,
    ):
        assert (await http.put(TOPIC, json={})).status_code == 201
        settings = {"mode": "shared", "start": "earliest", "ack_deadline_s": 600}
        assert (await http.put(SUB, json=settings)).status_code == 201
        port = int(here.url.rpartition(":")[2])
        async with messages_flow(http):
            for n, (wrong, code) in enumerate(WRONG_FRAMES.values()):
                async with opened(port, f"{path}{n}") as (reader, writer):
                    while n % 2 and b'"messages"' not in (await next_frame(reader))[1]:
                        pass
                    writer.write(frame(1, b'{"ack":{"ids":["0-0"]}}') + wrong)
                    assert await close_code(reader) == code
        await until(lambda: not len(inside.watches(broker)))
        assert not inside.budget(broker).incomplete
        async with asyncio.timeout(30):
            while (await http.get(SUB)).json()["lag_total"]["in_flight"]:
                await asyncio.sleep(0.01)
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
