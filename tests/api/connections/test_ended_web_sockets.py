"""What is sent on a WebSocket that has ended, whoever ended it: the application learns that nobody is there, and the
log has no error."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from seaweedq.api.connections.web_sockets import BoundedWebSocket
from seaweedq.api.request import CONNECTION, Receive, Scope, Send
from tests.support import privates
from tests.support.brokers.in_process_cluster import until
from tests.support.http.raw_web_socket import WRONG_FRAMES, accepted, asked, close_code, frame, raw
from tests.support.http.serving_protocol import Limits, serving

ENDS: dict[str, tuple[Callable[[BoundedWebSocket], None], int]] = {
    "a message that comes slowly": (lambda protocol: privates.too_slow(protocol)(), 1008),
    "a message whose memory others need": (lambda protocol: privates.dismiss(protocol)(), 1013),
    "no pong": (lambda protocol: protocol.keepalive_timeout(), 1011),
    "the broker's stop": (lambda protocol: protocol.shutdown(), 1012),
}


@pytest.fixture(autouse=True)
def no_error_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Asserts that no test here leaves an error in the log."""
    yield
    logged = caplog.get_records("call")
    assert [one.getMessage() for one in logged if one.levelno >= logging.ERROR] == []


def protocol_of(scope: Scope) -> BoundedWebSocket:
    """The server's end of the connection."""
    protocol = scope["extensions"][CONNECTION].socket
    assert isinstance(protocol, BoundedWebSocket)
    return protocol


class SendsOn:
    """An application that hears its client until the end, which `ended` tells."""

    def __init__(self) -> None:
        self.protocol: BoundedWebSocket | None = None
        self.ended = asyncio.Event()
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        await receive()
        await out({"type": "websocket.accept"})
        self.protocol, self.out = protocol_of(scope), out
        while (await receive())["type"] != "websocket.disconnect":
            pass
        await self.send_on()
        self.ended.set()

    async def send_on(self) -> None:
        """Sends behind the end, and counts what is refused."""
        for message in SENT_ON:
            try:
                await self.out(message)
            except OSError:
                self.refused += 1


SENT_ON: list[dict[str, Any]] = [
    {"type": "websocket.send", "text": "late"},
    {"type": "websocket.close", "code": 1012},
    {"type": "websocket.send", "text": "later"},
]


@pytest.mark.parametrize(("wrong", "code"), WRONG_FRAMES.values(), ids=WRONG_FRAMES.keys())
async def test_what_is_sent_behind_a_wrong_frame_meets_nobody(wrong: bytes, code: int) -> None:
    app, limits = SendsOn(), Limits()
    async with raw(app, limits, "") as (reader, writer):
        writer.write(wrong)
        assert await close_code(reader) == code
        await until(app.ended.is_set)
    assert app.refused == len(SENT_ON)
    await until(lambda: not len(limits.connections))


@pytest.mark.parametrize(("end", "code"), ENDS.values(), ids=ENDS.keys())
async def test_what_is_sent_behind_an_end_by_the_broker_meets_nobody(
    end: Callable[[BoundedWebSocket], None], code: int
) -> None:
    app, limits = SendsOn(), Limits()
    async with raw(app, limits, "") as (reader, _):
        await until(lambda: app.protocol)
        assert app.protocol
        end(app.protocol)
        await app.send_on()
        assert app.refused == len(SENT_ON)
        assert await close_code(reader) == code
    await until(app.ended.is_set)
    await until(lambda: not len(limits.connections))


async def test_one_of_two_tasks_may_close_while_the_other_one_sends() -> None:
    limits, ended = Limits(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, out: Send) -> None:
        await receive()
        await out({"type": "websocket.accept"})
        sending = asyncio.create_task(send(scope, out))
        await scope["extensions"][CONNECTION].drained()
        await out({"type": "websocket.close", "code": 4401})
        with pytest.raises(OSError):
            await sending
        ended.set()

    async def send(scope: Scope, out: Send) -> None:
        while True:
            await out({"type": "websocket.send", "text": "x" * 1000})
            await asyncio.sleep(0)

    async with raw(app, limits, "") as (reader, writer):
        assert await close_code(reader) == 4401
        await asyncio.wait_for(ended.wait(), 20)
        writer.write(b"\x81\x02{}")  # instead of a close frame
    await until(lambda: not len(limits.connections))


@pytest.mark.parametrize(
    ("early", "heard", "code"),
    [
        (frame(1, b"early") + frame(8, b"\x03\xe8"), ["websocket.receive", "websocket.disconnect"], 1000),
        (frame(9, b"early") + b"\x81\x02{}", ["websocket.disconnect"], 1002),
    ],
)
async def test_frames_ahead_of_the_handshakes_end_wait_for_it(early: bytes, heard: list[str], code: int) -> None:
    limits, go_on = Limits(), asyncio.Event()
    found: list[str] = []
    protocols: list[BoundedWebSocket] = []

    async def app(scope: Scope, receive: Receive, out: Send) -> None:
        await receive()
        protocols.append(protocol_of(scope))
        await go_on.wait()
        await out({"type": "websocket.accept"})
        while "websocket.disconnect" not in found:
            found.append((await receive())["type"])

    async with serving(app, limits) as port:
        reader, writer = await asked(port, "/stream")
        await until(lambda: protocols)
        writer.write(early)
        await until(lambda: len(protocols[0]._unparsed) or protocols[0].disconnected)
        go_on.set()
        await accepted(reader)
        assert await close_code(reader) == code
        writer.close()
        await until(lambda: not len(limits.connections))
    assert found == heard


async def test_a_handshake_whose_client_has_just_gone_is_not_accepted() -> None:
    limits, refused = Limits(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, out: Send) -> None:
        await receive()
        scope["extensions"][CONNECTION].abort()
        with pytest.raises(OSError):
            await out({"type": "websocket.accept"})
        refused.set()

    async with serving(app, limits) as port:
        _, writer = await asked(port, "/stream")
        await asyncio.wait_for(refused.wait(), 20)
        writer.close()
        await until(lambda: not len(limits.connections))


async def test_the_brokers_stop_passes_over_one_that_is_closed_and_not_emptied() -> None:
    limits, full = Limits(), asyncio.Event()
    protocols: list[BoundedWebSocket] = []

    async def app(scope: Scope, receive: Receive, out: Send) -> None:
        await receive()
        await out({"type": "websocket.accept"})
        protocols.append(protocol_of(scope))
        while not protocols[0].transport.get_write_buffer_size():
            await out({"type": "websocket.send", "text": "x" * 1000})
        full.set()
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async with raw(app, limits, "") as (reader, writer):
        await asyncio.wait_for(full.wait(), 20)
        writer.write(frame(8, b"\x03\xe8"))
        await until(protocols[0].transport.is_closing)
        assert len(limits.connections), "it waits for its client to take the rest"
        protocols[0].shutdown()
        assert await close_code(reader) == 1000
    await until(lambda: not len(limits.connections))
