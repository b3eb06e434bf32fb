"""Two brokers with gRPC ports: each answers any call, and the roster has the URLs of both."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import httpx
import pytest

from seaweedq.api.grpc import queue_pb2 as pb
from tests.support.grpc_door import Calls
from tests.support.processes.broker_process import BrokerProcess, free_ports

pytestmark = [pytest.mark.process, pytest.mark.long]


async def test_any_broker_answers_any_call(broker_process: Callable[..., BrokerProcess]) -> None:
    first = free_ports(2)
    broker = broker_process("--brokers", "2", "--grpc-port", str(first), port=free_ports(2))
    async with httpx.AsyncClient(base_url=broker.url, timeout=30) as http, asyncio.timeout(60):
        members: list[dict[str, Any]] = []
        while len([one for one in members if not one["starting"]]) < 2:  # one that starts gets no segment
            await asyncio.sleep(0.1)
            members = (await http.get("/v1/cluster")).json()["brokers"]
    assert {one["grpc_url"] for one in members} == {f"grpc://127.0.0.1:{port}" for port in (first, first + 1)}
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{first}") as one,
        grpc.aio.insecure_channel(f"127.0.0.1:{first + 1}") as other,
    ):
        both = [Calls(one), Calls(other)]
        made = await both[0].CreateTopic(topic="t", initial_segments=4)
        assert made.topic.segments == 4
        for at in range(40):
            value = str(at).encode()
            done = await both[at % 2].Publish(topic="t", messages=[pb.NewMessage(key=f"k{at}", value=value)])
            assert done.count == 1
        owners = {one.owner for one in (await both[1].ListSegments(topic="t")).segments}
        assert len(owners) == 2
        streams = [calls.Read(topic="t") for calls in (*both, both[0])]
        for stream in streams:
            await stream.read()
        for calls in both:
            done = await calls.Broadcast(topic="t", messages=[pb.NewMessage(value=b"40")])
            assert (done.streams, done.silent_brokers) == (3, 0)
        for calls in both:
            pages = [await calls.Fetch(topic="t", segment=segment) for segment in range(4)]
            assert sorted(int(one.value) for page in pages for one in page.messages) == [*range(41), 40]
