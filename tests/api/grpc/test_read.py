"""`Read`: a topic as a stream, from each kind of start, on from its positions, and all the ways in which it ends."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from seaweedq.access.tokens import draw
from seaweedq.api.connections import memory
from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.clock import SystemIds
from tests.api.grpc.test_bounds import refusals_of
from tests.support.grpc_door import Door, door, half_call, refused, until_ended

pytestmark = pytest.mark.default
READ = "/seaweedq.v1.QueueService/Read"


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Door]:
    async with door(tmp_path) as found:
        yield found


async def publish(opened: Door, *values: str, key: str | None = None) -> None:
    await opened.calls.Publish(topic="t", messages=[pb.NewMessage(key=key, value=one.encode()) for one in values])


async def some(stream: Any, count: int) -> tuple[list[str], str]:
    """The next values of a stream, and the positions behind them."""
    found: list[str] = []
    while len(found) < count:
        part = await stream.read()
        found += [one.value.decode() for one in part.messages]
    return found, part.positions


async def test_a_stream_begins_at_each_kind_of_start(opened: Door) -> None:
    early = pb.NewMessage(value=b"1")
    early.timestamp.FromJsonString("2020-01-01T00:00:00Z")
    await opened.calls.Publish(topic="t", messages=[early])
    await publish(opened, "2", "3")
    for start, values in (
        ({"end": "earliest"}, ["1", "2", "3"]),
        ({"timestamp": {"seconds": 1_700_000_000}}, ["2", "3"]),
        ({"positions": "0-2"}, ["3"]),
    ):
        stream = opened.calls.Read(topic="t", **start)
        assert (await some(stream, len(values)))[0] == values
        stream.cancel()
    stream = opened.calls.Read(topic="t")
    assert not (await stream.read()).messages
    await publish(opened, "4")
    assert (await some(stream, 1))[0] == ["4"]


async def test_a_stream_goes_on_at_its_positions(opened: Door) -> None:
    await opened.calls.CreateTopic(topic="t", initial_segments=4)
    positions, every = "", []
    for at in range(0, 40, 10):
        for value in range(at, at + 10):
            await publish(opened, str(value), key=f"k{value % 7}")
        stream = opened.calls.Read(topic="t", **({"positions": positions} if positions else {"end": "earliest"}))
        found, positions = await some(stream, 10)
        stream.cancel()
        every += found
    assert sorted(map(int, every)) == list(range(40))


async def test_many_messages_come_in_order(opened: Door) -> None:
    values = [json.dumps({"n": at, "x": "y" * 100}) for at in range(5000)]
    await publish(opened, *values, key="one")
    found, _ = await some(opened.calls.Read(topic="t", end="earliest"), 5000)
    assert found == values


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"topic": "none"}, "NOT_FOUND", "TOPIC_NOT_FOUND"),
        ({"topic": "a/b"}, "INVALID_ARGUMENT", "INVALID_NAME"),
        ({"topic": "t", "end": "later&x=1"}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"topic": "t", "timestamp": {"seconds": -(2**60)}}, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        ({"topic": "t", "positions": "0-99"}, "OUT_OF_RANGE", "OFFSET_OUT_OF_RANGE"),
    ],
)
async def test_a_stream_that_cannot_begin_says_why(opened: Door, fields: Any, code: str, reason: str) -> None:
    await opened.calls.CreateTopic(topic="t")
    found, _, details = await refused(opened.calls.Read(**fields).read())
    assert (found, details["ErrorInfo"].reason) == (code, reason)


async def test_a_stream_ends_with_its_topic(opened: Door) -> None:
    await opened.calls.CreateTopic(topic="t")
    stream = opened.calls.Read(topic="t")
    await stream.read()
    await opened.calls.DeleteTopic(topic="t")
    assert (await refused(stream.read()))[0] in ("NOT_FOUND", "ABORTED")


async def test_a_stream_ends_with_the_right_to_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(admin := draw(SystemIds()))
    async with door(tmp_path / "data", auth="required", admin_token_file=str(tmp_path / "token")) as opened:
        await opened.bearing(admin).CreateTopic(topic="t")
        assert (await refused(opened.calls.Read(topic="t").read()))[0] == "UNAUTHENTICATED"
        async with httpx.AsyncClient(
            base_url=opened.served.url, headers={"authorization": f"Bearer {admin}"}, timeout=30
        ) as http:
            grants = [{"actions": ["read"], "topics": ["t"]}]
            assert (await http.put("/v1/principals/app", json={"grants": grants})).status_code == 201
            issued = (await http.post("/v1/tokens", json={"principal": "app"})).json()
            stream = opened.bearing(issued["token"]).Read(topic="t")
            await stream.read()
            assert (await refused(opened.bearing(issued["token"]).Read(topic="u").read()))[0] == "PERMISSION_DENIED"
            assert (await http.delete(f"/v1/tokens/{issued['id']}")).status_code == 204
        assert (await refused(stream.read()))[0] == "UNAUTHENTICATED"


async def test_a_stream_ends_with_its_broker_and_tells_to_come_again(tmp_path: Path) -> None:
    async with door(tmp_path) as opened:
        await publish(opened, "1")
        stream = opened.calls.Read(topic="t", end="earliest")
        await some(stream, 1)
        opened.served.stop.ask()
        async with asyncio.timeout(30):
            code, _, details = await refused(stream.read())
            await opened.served.ended
        assert (code, details["ErrorInfo"].reason) == ("UNAVAILABLE", "NOT_READY")


async def test_a_stream_that_nobody_reads_holds_little_and_ends(tmp_path: Path) -> None:
    async with door(tmp_path, answer_timeout_s=0.5) as opened:
        value = json.dumps("x" * 900_000)
        for _ in range(8):
            await publish(opened, value)
        request = pb.ReadRequest(topic="t", end="earliest").SerializeToString()
        budget, most = opened.broker.budget, 0
        with half_call(opened.target, READ, request) as wire:
            async with asyncio.timeout(30):
                while not budget.answers:
                    await asyncio.sleep(0.01)
                while "unread_answer" not in await refusals_of(opened):
                    most = max(most, budget.answers)
                    await asyncio.sleep(0.01)
                assert most < 3_000_000
                while budget.answers:
                    await asyncio.sleep(0.01)
            await until_ended(wire)


async def test_a_slow_reader_is_told_to_continue(tmp_path: Path) -> None:
    async with door(tmp_path, answer_timeout_s=2) as opened:  # which it has again, to take the reason
        value = json.dumps("x" * 900_000)
        for _ in range(8):
            await publish(opened, value)
        stream = opened.calls.Read(topic="t", end="earliest")
        async with asyncio.timeout(30):
            while "unread_answer" not in await refusals_of(opened):
                await asyncio.sleep(0.01)
            code, text, _ = await refused(some(stream, 100))
        assert (code, "call again with the positions of the last received batch" in text) == ("UNAVAILABLE", True)
        assert opened.broker.budget.answers == 0


async def test_a_client_that_goes_ends_its_stream(opened: Door) -> None:
    await opened.calls.CreateTopic(topic="t")
    before = len(asyncio.all_tasks())
    stream = opened.calls.Read(topic="t")
    await stream.read()
    stream.cancel()
    async with asyncio.timeout(15):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)
    code = grpc.StatusCode.CANCELLED
    assert await stream.code() is code


async def test_many_streams_that_nobody_reads_stay_within_the_quota(tmp_path: Path) -> None:
    async with door(tmp_path, memory_budget_bytes=64 * 2**20) as opened:
        for _ in range(3):
            await publish(opened, json.dumps("x" * 900_000))
        budget, most = opened.broker.budget, 0
        request = pb.ReadRequest(topic="t", end="earliest").SerializeToString()
        tracemalloc.start()
        try:
            with ExitStack() as wires:
                for _ in range(60):
                    wires.enter_context(half_call(opened.target, READ, request))
                async with asyncio.timeout(30):
                    while budget.answers <= 8 * 2**20:
                        await asyncio.sleep(0.01)
                for _ in range(100):
                    most = max(most, budget.answers)
                    await asyncio.sleep(0.01)
                held, _ = tracemalloc.get_traced_memory()
                assert "answers" not in await refusals_of(opened), "streams wait for room"
        finally:
            tracemalloc.stop()
        assert 8 * 2**20 < most < 20 * 2**20, "a quarter of the budget, and one message"
        assert held < most, "Python's memory, without gRPC's copies"


async def test_a_frozen_client_makes_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "WINDOW_S", 1)
    monkeypatch.setattr(memory, "SLOW_BYTES_PER_S", 2**30)
    async with door(tmp_path, memory_budget_bytes=64 * 2**20) as opened:
        for _ in range(3):
            await publish(opened, json.dumps("x" * 900_000))
        budget = opened.broker.budget
        request = pb.ReadRequest(topic="t", end="earliest").SerializeToString()
        with ExitStack() as wires:
            for _ in range(8):
                wires.enter_context(half_call(opened.target, READ, request))
            async with asyncio.timeout(15):
                while budget.answers < 14 * 2**20:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(1.2)
                found = await opened.calls.Fetch(topic="t", limit=1)
        assert len(found.messages) == 1
