"""Asking a broker for as long as it lives.

What a broker still wants of others when it has ended is unavailable, and no error of the library's.

A refused connection is told from a time-out, an end, and any other answer, at real ports.

A request that got no answer is sent again by whoever knows that it was sent, and not by the HTTP library.

An owner that stands still, and whose lease ends: who asked it turns to the next owner, and waits for no answer.
"""

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from seaweedq.api.app import Application
from seaweedq.broker.rpc import client
from seaweedq.broker.rpc.client import Peers, ask_while, is_refused
from seaweedq.broker.rpc.messages import Heartbeat, HeartbeatCall
from seaweedq.broker.rpc.peer_connections import Request
from seaweedq.clock import SystemClock
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import SeaweedqError, Unavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.peer_client import peers_of, stranger_peers
from tests.support.brokers.serving import served
from tests.support.processes.broker_process import free_port


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    monkeypatch.setattr(client, "LOOK_S", 0.001)


def alive():
    pass


async def hangs(ended):
    try:
        await asyncio.sleep(60)
    finally:
        ended.append(True)


async def test_the_answer_comes():
    async def answers():
        await asyncio.sleep(0.01)
        return 7

    assert await ask_while(alive, answers()) == 7


async def test_an_error_of_the_call_is_raised():
    async def fails():
        raise ValueError("asked")

    with pytest.raises(ValueError, match="asked"):
        await ask_while(alive, fails())


async def test_one_that_has_gone_is_not_waited_for():
    looks, ended = [], []

    def gone():
        looks.append(True)
        if len(looks) == 3:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        await ask_while(gone, hangs(ended))
    await asyncio.sleep(0)
    assert ended, "the call is cancelled"


async def test_the_time_may_be_over():
    ended = []
    with pytest.raises(TimeoutError):
        await ask_while(alive, hangs(ended), Deadline(SystemClock(), 0.01))
    await asyncio.sleep(0)
    assert ended


async def test_a_future_may_be_asked():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.005, future.set_result, 3)
    assert await ask_while(alive, future) == 3


async def test_a_cancellation_cancels_the_call():
    ended = []
    asking = asyncio.create_task(ask_while(alive, hangs(ended)))
    await asyncio.sleep(0.005)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)
    assert ended


async def test_after_the_end_others_are_unavailable() -> None:
    peers, url = stranger_peers(), f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match="does not answer"):
        await peers.call(url, "status", None, bool, 1)
    await peers.close()
    with pytest.raises(Unavailable, match="stopping"):
        await peers.call(url, "status", None, bool, 1)


async def asked(peers: Peers, url: str, timeout_s: float = 20.0) -> SeaweedqError:
    """The error of a call."""
    with pytest.raises(SeaweedqError) as raised:
        await peers.call(url, "greet", HeartbeatCall(0), Heartbeat, timeout_s)
    return raised.value


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_at_which_nobody_listens_refuses(host: str) -> None:
    peers = stranger_peers()
    try:
        error = await asked(peers, f"http://{host}:{free_port()}")
    finally:
        await peers.close()
    assert isinstance(error, Unavailable)
    assert is_refused(error)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"])
async def test_silence_an_end_and_another_answer_are_no_refusal(answer: bytes | None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if answer is None:
            await reader.read()  # until the client gives up
        writer.write(answer or b"")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    peers = stranger_peers()
    try:
        error = await asked(peers, f"http://{host}:{port}", 0.3 if answer is None else 20.0)
    finally:
        await peers.close()
        server.close()
        await asyncio.sleep(0.05)
    assert not (isinstance(error, Unavailable) and is_refused(error))


async def test_a_full_backlog_is_no_refusal() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        peers = stranger_peers()
        try:
            error = await asked(peers, f"http://127.0.0.1:{listener.getsockname()[1]}", 0.3)
        finally:
            await peers.close()
    assert isinstance(error, Unavailable)
    assert not is_refused(error)


@pytest.mark.brokers
async def test_a_request_that_a_broker_holds_is_answered_when_it_stops(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        peers = peers_of(broker)
        async with served(broker) as serving:
            now = await peers.call(serving.url, "greet", HeartbeatCall(0), Heartbeat, 5)
            holding = asyncio.create_task(peers.call(serving.url, "greet", HeartbeatCall(60), Heartbeat, 65))
            await asyncio.sleep(0.1)
            assert not holding.done()
            serving.stop.ask()
            later = await asyncio.wait_for(holding, 30)
        await peers.close()
        assert [(one.broker, one.leaving) for one in (now, later)] == [(broker.id, False), (broker.id, True)]
        assert 0 < now.now_us < later.now_us


ANSWER = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("method", ["DELETE", "PUT", "GET", "POST"])
async def test_a_request_on_a_kept_connection_that_breaks_is_sent_once(method: str) -> None:
    """Its repeat would find what the first one has deleted: 404 for a deletion that worked."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readuntil(b"\r\n\r\n"))[:10]:
            heard.append(line.split()[0])
            if len(heard) == 2:
                writer.close()
                return
            writer.write(ANSWER)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    peers = Peers()
    try:
        assert (await peers.send(url, Request("GET", "/", {}, b"", 30), {})).status == 204
        with pytest.raises(Unavailable, match="does not answer"):
            await peers.send(url, Request(method, "/", {}, b"", 30), {})
        assert heard == [b"GET", method.encode()]
        assert (await peers.send(url, Request(method, "/", {}, b"", 30), {})).status == 204
    finally:
        await peers.close()
        server.close()
        await asyncio.sleep(0.05)


@pytest.mark.brokers
@pytest.mark.parametrize("ask", ["positions", "flush", "delete"])
async def test_what_concerns_a_whole_topic_goes_on_without_it(tmp_path: Path, ask: str) -> None:
    reached = asyncio.Event()

    async def stands_still(scope: Any, *anything: Any) -> None:
        if scope["path"] in ("/internal/positions", "/internal/close"):
            reached.set()
        await asyncio.Event().wait()

    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        here = next(one for one in together.brokers if inside.election(one).is_leader)
        still = next(one for one in together.brokers if one is not here)
        await inside.topic_admin(here).create("t", TopicConfig(initial_segments=4))
        topic = inside.topic(here, "t")
        together.apps[still.process.url] = cast(Application, stands_still)
        if ask == "delete":
            asking = asyncio.create_task(inside.deletion(here).delete(topic))
        else:
            asking = asyncio.create_task(inside.positions(here).positions(topic, flush=ask == "flush"))
        await reached.wait()
        await together.crash(still)
        await until(asking.done, "it still waits for the one that is gone")
        found = asking.result()
        assert ask == "delete" or sorted(found) == [0, 1, 2, 3]
