"""An owner that has just fallen silent holds up its own segments alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.read.readable_segments import RemoteSegment
from seaweedq.broker.subscriptions.pulling import Pull
from seaweedq.coordination.records import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.in_process import offsets, publish, subscribe
from tests.support.brokers.in_process_cluster import in_loop

pytestmark = pytest.mark.brokers


class Silence:
    """The reads of other brokers' segments, which wait until it is over."""

    def __init__(self) -> None:
        self.is_over, self.reads = asyncio.Event(), 0
        self._read = RemoteSegment.read

    async def read(self, segment: RemoteSegment, *what: int) -> Any:
        self.reads += 1
        await self.is_over.wait()
        return await self._read(segment, *what)


async def test_what_others_own_is_delivered_while_an_owner_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path) as together:
        one = together.brokers[0]
        await inside.topic_admin(one).create("t", TopicConfig(initial_segments=4))
        topic = inside.topic(one, "t")
        await subscribe(one, topic)
        await publish(one, topic, *(f"k{n}" for n in range(40)))
        await inside.readables(one).refresh(topic, range(4))
        remote = {n for n, known in inside.catalog(one).records(topic).items() if known.record.owner != _id(one)}
        silence = Silence()
        monkeypatch.setattr(RemoteSegment, "read", lambda *call: silence.read(*call))
        async with asyncio.timeout(4):
            got = [await _look(one, 100) for _ in range(3)]
        own = [delivered for leased in got for delivered in leased]
        assert own
        assert remote.isdisjoint(delivered.segment.id for delivered in own)
        assert silence.reads == len(remote), "each goes on, and is not made again"
        silence.is_over.set()
        await asyncio.sleep(0.1)
        late = await _look(one, 100)
        assert len(offsets([*own, *late])) == 40
        assert silence.reads == len(remote), "its answers were kept"


async def _look(broker: Broker, count: int) -> Any:
    return (await inside.dispatcher(broker).pull_now(inside.topic(broker, "t"), "s", Pull(count))).messages


def _id(broker: Broker) -> str:
    return inside.membership(broker).broker
