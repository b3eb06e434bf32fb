"""A refused connection is told from a time-out, an end, and any other answer, at real ports."""

import asyncio
import socket
from pathlib import Path

import pytest

from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import GreetCall, Greeting
from seaweedq.broker.rpc.transport import is_refused
from seaweedq.errors import SeaweedqError, Unavailable
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.peer_client import peers_of
from tests.support.brokers.serving import served
from tests.support.processes.broker_process import free_port


async def asked(peers: Peers, url: str, timeout_s: float = 5.0) -> SeaweedqError:
    """The error of a call."""
    with pytest.raises(SeaweedqError) as raised:
        await peers.call(url, "greet", GreetCall(0), Greeting, timeout_s)
    return raised.value


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_at_which_nobody_listens_refuses(host: str) -> None:
    peers = Peers("secret")
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
    peers = Peers("secret")
    try:
        error = await asked(peers, f"http://{host}:{port}", 0.3 if answer is None else 5.0)
    finally:
        await peers.close()
        server.close()
        await asyncio.sleep(0.05)
    assert not (isinstance(error, Unavailable) and is_refused(error))


async def test_a_full_backlog_is_no_refusal() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        peers = Peers("secret")
        try:
            error = await asked(peers, f"http://127.0.0.1:{listener.getsockname()[1]}", 0.3)
        finally:
            await peers.close()
    assert isinstance(error, Unavailable)
    assert not is_refused(error)


async def test_a_request_that_a_broker_holds_is_answered_when_it_stops(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        peers = peers_of(broker)
        async with served(broker) as serving:
            now = await peers.call(serving.url, "greet", GreetCall(0), Greeting, 5)
            holding = asyncio.create_task(peers.call(serving.url, "greet", GreetCall(60), Greeting, 65))
            await asyncio.sleep(0.1)
            assert not holding.done()
            serving.stop.ask()
            later = await asyncio.wait_for(holding, 10)
        await peers.close()
        assert [(one.broker, one.leaving) for one in (now, later)] == [(broker.id, False), (broker.id, True)]
        assert 0 < now.now_us < later.now_us
