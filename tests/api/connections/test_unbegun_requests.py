"""What a connection may send beside the content of a body, and ahead of a request: bounded in size, time and memory."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from seaweedq.api.connections.protocol import AHEAD_BYTES, MAX_BESIDE_BYTES, MAX_HEAD_LINES
from seaweedq.api.request import Answer, Receive, Scope, Send, send
from tests.support.brokers.in_process_cluster import until
from tests.support.http.serving_protocol import Limits, serving

CHUNKED = b"POST /%b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
MIB = 1 << 20


class App:
    """Answers `/at-once` before the body has come, any other request behind it, with the content."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        self.scopes.append(scope)
        content, more = b"", scope["path"] != "/at-once"
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)
        await self.may_answer.wait()
        await send(Answer(200, content), out)


@asynccontextmanager
async def connected(app: Any, limits: Limits, count: int = 1) -> AsyncIterator[list[socket.socket]]:
    loop = asyncio.get_running_loop()
    async with serving(app, limits) as port:
        clients = [socket.socket() for _ in range(count)]
        try:
            for client in clients:
                client.setblocking(False)
                await loop.sock_connect(client, ("127.0.0.1", port))
            yield clients
        finally:
            for client in clients:
                client.close()


async def put(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def heard(client: socket.socket, until_text: bytes | None = None) -> bytes:
    """All that comes until a text, or until the connection ends."""
    data = b""
    while until_text is None or until_text not in data:
        try:
            more = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 65536), 30)
        except ConnectionError:
            more = b""
        if not more:
            assert until_text is None, data
            break
        data += more
    return data


BESIDE = {
    "trailers": b"3\r\nabc\r\n0\r\n" + b"a: b\r\n" * 4_000,
    "one trailer": b"3\r\nabc\r\n0\r\na: " + b"b" * 24_000,
    "a chunk's extension": b"3\r\nabc\r\n1;x=" + b"y" * 24_000,
}


@pytest.mark.parametrize("path", [b"", b"at-once"])
@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE)
async def test_what_a_body_has_beside_its_content_is_bounded(path: bytes, beside: bytes) -> None:
    limits, app = Limits(), App()
    async with connected(app, limits) as [client]:
        await put(client, CHUNKED % path)
        if path:
            await heard(client, b"\r\n\r\n")
        await put(client, beside)
        data = await heard(client)
        assert path or (data.startswith(b"HTTP/1.1 400 ") and f"more than {MAX_BESIDE_BYTES} bytes".encode() in data)
        assert limits.refusals.counts["unread_body"] == 1
        assert [name for name, _ in app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]


async def test_a_few_trailers_are_taken_and_not_kept() -> None:
    app = App()
    async with connected(app, Limits()) as [client]:
        for _ in range(2):
            await put(client, CHUNKED % b"" + b"3\r\nabc\r\n0\r\nA: b\r\n")
            await put(client, b"C: d\r\n\r\n")
            assert b"200 OK" in await heard(client, b"abc")
        assert [len(scope["headers"]) for scope in app.scopes] == [2, 2]


async def test_small_chunks_are_content() -> None:
    async with connected(App(), Limits()) as [client]:
        await put(client, CHUNKED % b"" + b"1\r\na\r\n" * 30_000 + b"0\r\n\r\n")
        assert b"200 OK" in await heard(client, b"a" * 30_000)


async def test_a_body_behind_its_answer_has_its_time() -> None:
    limits = Limits(message_timeout_s=0.3)
    async with connected(App(), limits) as [client]:
        await put(client, CHUNKED % b"at-once")
        await heard(client, b"\r\n\r\n")
        await put(client, b"3\r\nabc\r\n0\r\n\r\n")
        await asyncio.sleep(0.4)  # its time is over, and it came before
        await put(client, CHUNKED % b"at-once")
        await heard(client, b"\r\n\r\n")
        dripping = asyncio.create_task(_drip(client))
        assert await heard(client) == b""
        await dripping
        assert limits.refusals.counts["unread_body"] == 1


async def test_a_request_in_one_read_with_the_end_of_such_a_body_has_its_time() -> None:
    limits, app = Limits(keep_alive_s=0.2), App()
    async with connected(app, limits) as [client]:
        await put(client, CHUNKED % b"at-once" + b"1\r\na\r\n")
        await heard(client, b"\r\n\r\n")
        app.may_answer.clear()
        await put(client, b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        await until(lambda: len(app.scopes) == 2)
        await asyncio.sleep(0.4)  # a connection without a request would be closed by now
        app.may_answer.set()
        assert b"200 OK" in await heard(client, b"\r\n\r\n")


async def _drip(client: socket.socket) -> None:
    try:
        while True:
            await put(client, b"1\r\na\r\n")
            await asyncio.sleep(0.05)
    except OSError:
        pass


def _get(lines: int) -> bytes:
    return b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * lines + b"\r\n"


async def test_a_head_has_so_many_lines() -> None:
    async with connected(App(), Limits(), 2) as [few, many]:
        await put(few, _get(MAX_HEAD_LINES))
        assert b"200 OK" in await heard(few, b"\r\n\r\n")
        await put(many, _get(MAX_HEAD_LINES + 1))
        data = await heard(many)
        assert data.startswith(b"HTTP/1.1 400 ")
        assert f"more than {MAX_HEAD_LINES} headers".encode() in data


async def test_heads_that_have_come_in_part_count_with_bodies() -> None:
    limits = Limits()
    half = b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 100 + b"c: " + b"d" * 30_000
    async with connected(App(), limits, 2) as [one, other]:
        await put(one, half)
        await until(lambda: limits.budget.incomplete > len(half) + 100 * 100)
        held, limits.budget.incomplete = limits.budget.incomplete, limits.bodies.limit_bytes
        await put(other, half)
        assert (await heard(other)).startswith(b"HTTP/1.1 503 ")
        assert limits.refusals.counts["bodies"] == 1
        limits.budget.incomplete = held
        await put(one, b"\r\n\r\n")
        assert b"200 OK" in await heard(one, b"\r\n\r\n")
        assert limits.budget.incomplete == 0
        await put(one, half)
        await until(lambda: limits.budget.incomplete > len(half))
    await until(lambda: limits.budget.incomplete == 0)


async def test_slow_heads_make_room() -> None:
    limits = Limits()
    async with connected(App(), limits, 2) as [slow, other]:
        await put(slow, b"GET / HTTP/1.1\r\na: ")
        await until(lambda: limits.budget.incomplete)
        limits.clock.more_s += 10
        limits.budget.incomplete += limits.bodies.limit_bytes - 4096
        await put(other, b"GET / HTTP/1.1\r\na: ")
        assert await heard(slow) == b""
        assert limits.refusals.counts["slow_head"] == 1
        limits.budget.incomplete -= limits.bodies.limit_bytes - 4096
        await put(other, b"b\r\n\r\n")
        assert b"200 OK" in await heard(other, b"\r\n\r\n")
    assert limits.budget.incomplete == 0


@pytest.mark.parametrize("requests", [100, 1_000])  # in one read that is parsed at once, and in several
async def test_requests_that_wait_for_their_turn_count_with_bodies(requests: int) -> None:
    limits, app = Limits(), App()
    app.may_answer.clear()
    async with connected(app, limits) as [client]:
        await put(client, b"GET / HTTP/1.1\r\n\r\n" * requests)
        await until(lambda: limits.budget.incomplete > min(18 * 700, AHEAD_BYTES * 90))
        assert len(app.scopes) == 1
        app.may_answer.set()
        data, count = b"", 0
        while count < requests:
            data = await heard(client, b"\r\n\r\n")
            count += data.count(b"200 OK")
        await until(lambda: limits.budget.incomplete == 0)


SOCKET = (
    b"GET /v1/topics/t/subscriptions/s/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize("head", [b"GET /at-once HTTP/1.1\r\nHost: x\r\n\r\n", SOCKET], ids=["http", "socket"])
async def test_a_request_whose_client_has_gone_keeps_its_place(head: bytes) -> None:
    """Else clients that ask and go would have requests without end while a journal stands still."""
    app, limits = App(), Limits()
    app.may_answer.clear()
    async with serving(app, limits) as port:
        for count in range(1, 4):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            await until(lambda count=count: len(app.scopes) == count)  # type: ignore[misc]
            writer.transport.abort()
        await asyncio.sleep(0.1)
        assert len(limits.connections) == 3
        app.may_answer.set()
        await until(lambda: not len(limits.connections))
