"""`PublishStream`: answers in order, refusals, back-pressure, the ends of a stream, and a broker that is killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from seaweedq.access.tokens import draw
from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.api.grpc import server
from seaweedq.api.grpc.relay import WINDOW_BYTES
from seaweedq.clock import SystemIds
from seaweedq.segments.producers import GUARDS, Kind
from tests.support.grpc_door import Calls, Door, door, refused
from tests.support.processes.broker_process import free_port

pytestmark = pytest.mark.default
IN_FLIGHT = GUARDS[Kind.CLIENT].remembered  # batches of a producer without an answer, whose repeats are recognized


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Door]:
    async with door(tmp_path) as found:
        yield found


def batch(*values: object, **fields: Any) -> pb.PublishStreamRequest:
    messages = [pb.NewMessage(key="k", value=str(value).encode()) for value in values]
    return pb.PublishStreamRequest(topic="t", messages=messages, **fields)


async def values_of(calls: Calls) -> list[int]:
    return [int(one.value) for one in (await calls.Fetch(topic="t", limit=10_000)).messages]


async def test_answers_count_up_and_messages_keep_their_order(opened: Door) -> None:
    stream = opened.calls.PublishStream()
    for at in range(0, 60, 2):
        await stream.write(batch(at, at + 1))
    await stream.done_writing()
    answers = [(one.batches, one.messages, one.duplicates) async for one in stream]
    assert answers == [(at, 2 * at, 0) for at in range(1, 31)]
    assert await values_of(opened.calls) == list(range(60))
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_refused_batch_ends_the_stream_and_says_which(opened: Door) -> None:
    for wrong, reason in (
        (batch("{"), "INVALID_REQUEST"),
        (batch(), "INVALID_REQUEST"),
        (batch(2, format="bytes"), ""),
    ):
        stream = opened.calls.PublishStream()
        for one in (batch(1), wrong, batch(3)):
            await stream.write(one)
        assert (await stream.read()).batches == 1
        code, _, details = await refused(stream.read())
        assert code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
        assert details["ErrorInfo"].metadata["batches"] == "1"
        assert not reason or details["ErrorInfo"].reason == reason
    assert await values_of(opened.calls) == [1, 1, 1]
    garbage = opened.calls.channel.stream_stream("/seaweedq.v1.QueueService/PublishStream")()
    await garbage.write(b"\xff\xff")
    assert (await refused(garbage.read()))[0] == "INVALID_ARGUMENT"


async def test_a_repeat_behind_the_last_answer_adds_nothing(opened: Door) -> None:
    for sent, duplicates in ((range(3), 0), (range(1, 5), 2)):
        stream = opened.calls.PublishStream()
        for at in sent:
            await stream.write(batch(at, producer_id="p", producer_sequence=at))
        await stream.done_writing()
        *_, last = [one async for one in stream]
        assert (last.batches, last.duplicates) == (len(sent), duplicates)
    assert await values_of(opened.calls) == list(range(5))


async def test_a_client_that_is_faster_is_held_back_by_bytes(opened: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened.calls.CreateTopic(topic="t", format="bytes")
    ask, may_go_on = server.Door.ask, asyncio.Event()

    async def slow(self: server.Door, *request: Any) -> Any:
        await may_go_on.wait()
        return await ask(self, *request)

    monkeypatch.setattr(server.Door, "ask", slow)
    stream, written = opened.calls.PublishStream(), 0
    big = pb.PublishStreamRequest(topic="t", messages=[pb.NewMessage(value=bytes(100_000))])
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            while True:
                await asyncio.shield(writing := asyncio.ensure_future(stream.write(big)))
                written += 1
    assert written <= 2 + WINDOW_BYTES // 100_000  # one is published, one waits in the client
    may_go_on.set()
    await writing
    await stream.done_writing()
    assert [one.batches async for one in stream] == list(range(1, written + 2))


async def test_a_stream_ends_with_its_broker_behind_its_answers(opened: Door) -> None:
    stream = opened.calls.PublishStream()
    await stream.write(batch(1))
    assert (await stream.read()).batches == 1
    opened.served.stop.ask()
    async with asyncio.timeout(30):
        code, _, details = await refused(stream.read())
        await opened.served.ended
    assert (code, details["ErrorInfo"].reason) == ("UNAVAILABLE", "NOT_READY")


async def test_each_batch_needs_the_right_to_publish(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(admin := draw(SystemIds()))
    async with door(tmp_path / "data", auth="required", admin_token_file=str(tmp_path / "token")) as opened:
        assert (await refused(opened.calls.PublishStream().read()))[0] == "UNAUTHENTICATED"
        await opened.bearing(admin).CreateTopic(topic="t")
        async with httpx.AsyncClient(
            base_url=opened.served.url, headers={"authorization": f"Bearer {admin}"}, timeout=30
        ) as http:
            grants = [{"actions": ["publish"], "topics": ["t"]}]
            assert (await http.put("/v1/principals/app", json={"grants": grants})).status_code == 201
            issued = (await http.post("/v1/tokens", json={"principal": "app"})).json()
            stream = opened.bearing(issued["token"]).PublishStream()
            await stream.write(batch(1))
            assert (await stream.read()).batches == 1
            assert (await http.delete(f"/v1/tokens/{issued['id']}")).status_code == 204
        assert (await refused(stream.read()))[0] == "UNAUTHENTICATED", "it ends though no batch comes"


async def test_streams_of_an_idle_client_leave_nothing(opened: Door) -> None:
    before = len(asyncio.all_tasks())
    streams = [opened.calls.PublishStream() for _ in range(20)]
    for stream in streams:
        await stream.write(batch(1))
        assert (await stream.read()).batches == 1
        stream.cancel()
    async with asyncio.timeout(15):
        while len(asyncio.all_tasks()) > before + 2:
            await asyncio.sleep(0.01)


async def test_repeats_of_a_producers_last_eight_batches_are_recognized(opened: Door) -> None:
    async def send(begin: int) -> list[int]:
        stream = opened.calls.PublishStream()
        for at in range(begin, 12):
            await stream.write(batch(at, producer_id="p", producer_sequence=at))
        await stream.done_writing()
        return [one.duplicates async for one in stream]

    assert (await send(0))[-1] == 0
    assert (await send(12 - IN_FLIGHT))[-1] == IN_FLIGHT  # as after a break at which all its answers were lost
    # grpc.aio answers a write behind the end of a call with INTERNAL, not with the call's status: one write.
    refused = opened.calls.PublishStream()
    await refused.write(batch(11 - IN_FLIGHT, producer_id="p", producer_sequence=11 - IN_FLIGHT))
    with pytest.raises(grpc.aio.AioRpcError, match="sequence"):
        await refused.read()
    assert await values_of(opened.calls) == list(range(12))


@pytest.mark.process
async def test_a_killed_broker_loses_and_doubles_no_batch(broker_process: Any) -> None:
    port = free_port()
    broker = broker_process("--grpc-port", str(port))
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
    done, kills, total = 0, 0, 150
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        calls = Calls(channel)
        while done < total:
            stream = calls.PublishStream(timeout=60)

            room = asyncio.Semaphore(IN_FLIGHT)

            async def send(begin: int = done, stream: Any = stream, room: asyncio.Semaphore = room) -> None:
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    for at in range(begin, total):
                        await room.acquire()
                        await stream.write(batch(at, producer_id="p", producer_sequence=at))
                    await stream.done_writing()

            sending, begun = asyncio.create_task(send()), done
            try:
                async for answer in stream:
                    done = begun + answer.batches
                    room.release()
                    if not kills and done >= 50:
                        kills += 1
                        broker.kill()
                        broker.start()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            sending.cancel()
        assert kills == 1
        assert await values_of(calls) == list(range(total))
