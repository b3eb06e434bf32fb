"""Answers that nobody takes: their memory is bounded, and they end; requests that are pipelined come out in order."""

import asyncio
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from seaweedq.api.connections.answers import Outgoing
from seaweedq.api.connections.memory import TICK_S, UnreadAnswers, UnreadBuffer
from seaweedq.api.request import Answer, Receive, Scope, Send, send
from seaweedq.broker.context import Readiness
from seaweedq.errors import Overloaded
from tests.support.brokers.in_process_cluster import until
from tests.support.http.requests import request_of
from tests.support.http.serving_protocol import Limits, serving

MIB = 1 << 20
TIMEOUT_S = 60.0


@dataclass
class Reader:
    """A client that takes what the test says."""

    answers: UnreadAnswers
    left: int = 0
    gone: bool = False

    def __post_init__(self) -> None:
        self.unread = UnreadBuffer(lambda: self.left, self.cut)

    def cut(self) -> None:
        self.gone = True

    def given(self, size: int) -> "Reader":
        self.answers.admit(size)
        self.left = size
        self.answers.begin(self.unread)
        return self


class World(Limits):
    """The server's bounds, and time."""

    def later(self, seconds: float) -> None:
        """Let so much time go by, with its ticks."""
        for _ in range(int(seconds)):
            self.clock.more_s += TICK_S
            self.answers.tick()


@pytest.fixture
def world() -> World:
    return World()


async def test_a_share_is_held_and_no_more(world: World) -> None:
    readers = [Reader(world.answers).given(4 * MIB) for _ in range(4)]
    with pytest.raises(Overloaded):
        Reader(world.answers).given(MIB)
    Reader(world.answers).given(1000)  # small ones are never refused
    assert world.budget.answers == 16 * MIB + 1000
    assert world.budget.excess < 0
    world.answers.end(readers[0].unread)
    world.answers.end(readers[0].unread)
    Reader(world.answers).given(MIB)
    assert world.refusals.counts["answers"] == 1


async def test_a_connection_with_several_answers_is_ended_once(world: World) -> None:
    cuts: list[int] = []
    answers = [UnreadBuffer(lambda: MIB, lambda: [cuts.append(1), *map(world.answers.end, answers)]) for _ in range(3)]
    for one in answers:
        world.answers.begin(one)
    world.later(TIMEOUT_S + 2)
    assert (len(cuts), world.refusals.counts["unread_answer"], world.budget.answers) == (1, 1, 0)


async def test_the_first_large_one_is_never_refused(world: World) -> None:
    Reader(world.answers).given(1000)
    Reader(world.answers).given(100 * MIB)
    with pytest.raises(Overloaded):
        Reader(world.answers).given(MIB)


async def test_the_slowest_go_first_and_fast_ones_never(world: World) -> None:
    readers = [Reader(world.answers).given(4 * MIB) for _ in range(4)]
    for _ in range(6):
        for n, reader in enumerate(readers[:3]):
            reader.left -= n * 50_000
        world.later(1)
    Reader(world.answers).given(4 * MIB)
    assert [reader.gone for reader in readers] == [True, False, False, False] or readers[3].gone
    Reader(world.answers).given(4 * MIB)
    assert [reader.gone for reader in readers] == [True, False, False, True]
    Reader(world.answers).given(4 * MIB)
    with pytest.raises(Overloaded):
        Reader(world.answers).given(4 * MIB)
    assert [reader.gone for reader in readers] == [True, True, False, True]
    assert world.refusals.counts["slow_reader"] == 3


async def test_who_takes_nothing_ends_and_who_takes_a_byte_does_not(world: World) -> None:
    silent, slow = (Reader(world.answers).given(MIB) for _ in range(2))
    for _ in range(int(TIMEOUT_S) + 1):
        slow.left -= 1
        world.later(1)
    assert (silent.gone, slow.gone) == (True, False)
    assert world.budget.answers == MIB
    assert world.refusals.counts["unread_answer"] == 1


def of(make: Callable[[], Any]) -> Callable[[], Awaitable[Callable[[], Any]]]:
    async def maker() -> Callable[[], Any]:
        return make

    return maker


async def test_a_large_answer_is_made_beside_the_loop_and_one_at_a_time(world: World) -> None:
    making, most, threads = 0, 0, set()

    def make() -> bytes:
        nonlocal making, most
        making += 1
        most = max(most, making)
        threads.add(threading.get_ident())
        time.sleep(0.02)
        making -= 1
        return b"answer"

    asked: list[int] = []

    async def maker() -> Any:
        asked.append(making)
        return make

    found = await asyncio.gather(*(world.answers.made(MIB, maker) for _ in range(4)))
    assert (found, most, asked) == ([b"answer"] * 4, 1, [0] * 4)
    assert threading.get_ident() not in threads
    assert await world.answers.made(1_000, of(threading.get_ident)) == threading.get_ident()  # a hop costs more
    Reader(world.answers).given(world.answers.limit_bytes)
    asked.clear()
    assert await world.answers.made(MIB, maker) is None
    assert not asked, "no link is signed for an answer without room"


async def test_rows_that_wait_to_be_made_into_answers_are_bounded(world: World) -> None:
    loop = threading.get_ident()
    made: list[int] = []

    def make() -> None:
        made.append(threading.get_ident())

    one = world.answers.limit_bytes // 4
    waiting = [asyncio.create_task(world.answers.made(one, of(make))) for _ in range(6)]
    await asyncio.sleep(0)
    assert made.count(loop) == 2, "the share is full of four"
    waiting[3].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (len(made), made.count(loop)) == (5, 2)
    waiting = [asyncio.create_task(world.answers.made(one, of(make))) for _ in range(4)]
    await asyncio.gather(*waiting)
    assert made.count(loop) == 2, "nothing is left behind"


async def test_a_stream_holds_what_is_on_its_way(world: World) -> None:
    with world.answers.streaming(10 * MIB):
        assert world.budget.answers == 10 * MIB
        with pytest.raises(Overloaded), world.answers.streaming(10 * MIB):
            pass
    assert world.budget.answers == 0


async def test_an_answer_without_room_is_a_503(world: World) -> None:
    Reader(world.answers).given(16 * MIB)
    for size, status in ((MIB, 503), (100, 200)):
        sent: list[Any] = []

        async def out(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await send(
            Answer(200, bytes(size)), Outgoing(request_of("GET", "/"), out, world.answers, Readiness(lambda: True))
        )
        assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
        assert sent[0]["status"] == status


# Over sockets.


class Echo:
    """Answers with the body, or with so many bytes as the path says."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        self.asked.append(scope["path"])
        content, more = b"", True
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)
        size = int(scope["path"][1:] or 0)
        await send(Answer(200, bytes(size) if size else content), out)


@asynccontextmanager
async def connected(world: World, app: Any) -> AsyncIterator[socket.socket]:
    """A connection whose socket takes little."""
    async with serving(app, world) as port:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        try:
            yield client
        finally:
            client.close()


def request(path: str, body: bytes = b"", chunks: int = 0) -> bytes:
    if not chunks:
        return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    size = max(1, -(-len(body) // chunks))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % (path.encode(), coded)


async def answers(client: socket.socket, count: int) -> list[bytes]:
    """The bodies of so many answers."""
    loop, data, found = asyncio.get_running_loop(), bytearray(), []
    while len(found) < count:
        start = data.find(b"\r\n\r\n")
        length = int(data[:start].lower().split(b"content-length: ")[1].split(b"\r\n")[0]) if start >= 0 else 0
        if start < 0 or len(data) < start + 4 + length:
            more = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 30)
            assert more, "the connection ended"
            data += more
            continue
        found.append(bytes(data[start + 4 : start + 4 + length]))
        del data[: start + 4 + length]
    return found


async def test_pipelined_requests_begin_once_the_answer_before_is_taken(world: World) -> None:
    app, size = Echo(), 8 * MIB
    async with connected(world, app) as client:
        await asyncio.get_running_loop().sock_sendall(client, request(f"/{size}") * 300)
        await until(lambda: world.budget.answers)
        await asyncio.sleep(0.05)
        assert len(app.asked) == 1
        assert 0 < world.budget.answers <= size
        assert [len(one) for one in await answers(client, 3)] == [size] * 3
        assert len(app.asked) <= 6
    await until(lambda: not world.budget.answers)


async def test_small_answers_do_not_pile_up_either(world: World) -> None:
    app, size = Echo(), 1000
    async with connected(world, app) as client:
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(client, request(f"/{size}") * 4_000))
        await until(lambda: world.budget.answers)
        assert world.budget.answers < MIB
        assert len(await answers(client, 4_000)) == 4_000
        await sending
    assert len(app.asked) == 4_000


async def test_a_connection_that_takes_nothing_is_ended(world: World) -> None:
    async with connected(world, Echo()) as client:
        await asyncio.get_running_loop().sock_sendall(client, request(f"/{16 * MIB}"))
        await until(lambda: world.budget.answers)
        world.clock.more_s += TIMEOUT_S
        world.answers.tick()
        assert world.budget.answers == 0
        with pytest.raises((ConnectionResetError, AssertionError)):
            await answers(client, 1)


@pytest.mark.parametrize("seed", range(6))
async def test_requests_come_out_as_they_were_however_they_are_cut(world: World, seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice([0, 1, 17, 300, 5000, 70_000, 300_000]) for _ in range(60)]
    wanted = [draw.randbytes(size) for size in sizes]
    data = b"".join(request("/", body, draw.choice([0, 0, 1, 7])) for body in wanted)

    async def cut(client: socket.socket) -> None:
        at = 0
        while at < len(data):
            size = draw.choice([1, 100, 4096, 5000, 65_536, 1 << 20])
            await asyncio.get_running_loop().sock_sendall(client, data[at : at + size])
            at += size
            await asyncio.sleep(0)

    async with connected(world, Echo()) as client:
        sending = asyncio.create_task(cut(client))
        assert await answers(client, len(wanted)) == wanted
        await sending


async def test_a_client_that_goes_is_noticed_also_behind_pipelined_requests(world: World) -> None:
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, out: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        await send(Answer(200), out)  # to nobody, which is no error

    async with connected(world, app) as client:
        await asyncio.get_running_loop().sock_sendall(client, request("/") * 3)
        await asyncio.sleep(0.05)
        client.close()
        await asyncio.wait_for(gone.wait(), 30)


async def test_a_head_that_the_broker_has_not_read_yet_is_not_slow() -> None:
    """Requests are parsed a few at a time, so that a head stays cut while those before it are answered."""
    world, answering = World(head_timeout_s=1.0), asyncio.Event()

    async def app(scope: Scope, receive: Receive, out: Send) -> None:
        await answering.wait()
        await send(Answer(200, b"taken"), out)

    async with connected(world, app) as client:
        await asyncio.get_running_loop().sock_sendall(client, request("/") * 300)
        await asyncio.sleep(1.2)
        answering.set()
        assert await answers(client, 300) == [b"taken"] * 300
    assert not any(world.refusals.counts.values())
