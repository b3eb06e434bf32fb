"""Connections to other brokers, at a real port: which are used again, and what becomes of answers of all forms."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from seaweedq.broker.rpc import peer_connections
from seaweedq.broker.rpc.peer_connections import PeerConnections, Request
from seaweedq.errors import Unavailable

GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nok"
ASK = Request("POST", "/a?b=c", {"Name": "v"}, b"body", 5)


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, PeerConnections, list[tuple[int, bytes]]]]:
    """A server that gives these answers in turn, none for an empty one; its base, connections to it, and the requests,
    each with the number of its connection."""
    left, heard, connected = iter(answers), list[tuple[int, bytes]](), [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected[0] += 1
        number = connected[0]
        while data := await reader.read(65536):
            heard.append((number, data))
            writer.write(next(left, b""))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connections = PeerConnections(None)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base", connections, heard
    finally:
        await connections.close()
        server.close()
        await asyncio.sleep(0.05)


async def test_a_request_has_all_parts_and_so_has_its_answer() -> None:
    async with answering(GOOD) as (base, connections, heard):
        found = await connections.send(base, ASK, {"Stamp": "s"})
    assert (found.status, dict(found.headers), found.body) == (200, {"Content-Length": "2", "X": "y"}, b"ok")
    head, _, body = heard[0][1].partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /base/a?b=c HTTP/1.1"
    assert {b"Name: v", b"Stamp: s", b"Content-Length: 4"} <= {*head.split(b"\r\n")}
    assert body == b"body"


@pytest.mark.parametrize(
    ("first", "method", "used"),
    [
        (GOOD, "POST", [1, 1]),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD, "POST", [1, 1]),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "GET", [1, 1]),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", "POST", [1, 2]),
        (GOOD + GOOD, "POST", [1, 2]),  # the second one was not asked for
        (GOOD[:-2], "HEAD", [1, 2]),
    ],
    ids=["whole", "continue", "chunked", "closing", "two", "head"],
)
async def test_a_connection_is_used_again_if_it_can_be(first: bytes, method: str, used: Sequence[int]) -> None:
    async with answering(first, GOOD) as (base, connections, heard):
        one = await connections.send(base, Request(method, "/", {}, b"", 5), {})
        two = await connections.send(base, ASK, {})
    assert (one.status, one.body) == (200, b"" if method == "HEAD" else b"ok")
    assert two.body == b"ok"
    assert [number for number, _ in heard] == used


async def test_two_requests_at_once_have_a_connection_each() -> None:
    async with answering(GOOD, GOOD, GOOD) as (base, connections, heard):
        await asyncio.gather(*(connections.send(base, ASK, {}) for _ in range(2)))
        await connections.send(base, ASK, {})
    assert sorted(number for number, _ in heard[:2]) == [1, 2]
    assert heard[2][0] in (1, 2)


@pytest.mark.parametrize("how", ["late", "cancelled"])
async def test_no_other_request_gets_an_answer_that_is_late(how: str) -> None:
    async with answering(b"", GOOD) as (base, connections, heard):
        asking = asyncio.create_task(connections.send(base, Request("GET", "/", {}, b"", 0.2), {}))
        while not heard:
            await asyncio.sleep(0.01)
        if how == "cancelled":
            asking.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else Unavailable):
            await asking
        assert (await connections.send(base, ASK, {})).body == b"ok"
        assert [number for number, _ in heard] == [1, 2]


@pytest.mark.parametrize(
    "answer", [b"what?\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"]
)
async def test_an_answer_that_is_none_is_unavailable(answer: bytes) -> None:
    async with answering(answer) as (base, connections, _):
        with pytest.raises(Unavailable, match="does not answer"):
            await connections.send(base, ASK, {})


async def test_a_connection_that_was_idle_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_connections, "IDLE_S", 0.0)
    async with answering(GOOD, GOOD) as (base, connections, heard):
        for _ in range(2):
            await connections.send(base, ASK, {})
    assert [number for number, _ in heard] == [1, 2]


async def test_nothing_is_kept_of_connections_that_are_gone() -> None:
    async with answering(GOOD, GOOD) as (base, connections, _):
        await asyncio.gather(*(connections.send(base, ASK, {}) for _ in range(2)))
        assert connections.idle == 2
        await connections.close()
        await asyncio.sleep(0.05)
        assert connections.idle == 0


async def test_what_waits_at_the_end_is_unavailable() -> None:
    async with answering(b"") as (base, connections, heard):
        asking = asyncio.create_task(connections.send(base, ASK, {}))
        while not heard:
            await asyncio.sleep(0.01)
        await connections.close()
        with pytest.raises(Unavailable, match="does not answer"):
            await asking
