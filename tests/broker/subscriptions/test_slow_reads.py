"""An owner that has just fallen silent holds up its own segments alone, and a pull that waits at the dispatcher gets
rows of another broker, however long it has waited, and whatever becomes of its subscription meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.read import readable_segments
from seaweedq.broker.read.readable_segments import RemoteSegment
from seaweedq.broker.subscriptions import subscription
from seaweedq.broker.subscriptions.pull_rounds import Pull
from seaweedq.coordination.records import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, offsets, publish, subscribe
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, records

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
        async with asyncio.timeout(14):  # each that waited for the owner would take 5 s or longer
            got = [await _look(one, 100) for _ in range(3)]
        own = [delivered for leased in got for delivered in leased]
        assert own
        assert remote.isdisjoint(delivered.segment.id for delivered in own)
        assert silence.reads == len(remote), "each goes on, and is not made again"
        silence.is_over.set()
        late = list[Any]()
        async with asyncio.timeout(30):
            while len(own) + len(late) < 40:
                late += await _look(one, 100)
                await asyncio.sleep(0.01)
        assert len(offsets([*own, *late])) == 40
        assert silence.reads == len(remote), "its answers were kept"


async def _look(broker: Broker, count: int) -> Any:
    return (await inside.dispatcher(broker).pull_now(inside.topic(broker, "t"), "s", Pull(count))).messages


def _id(broker: Broker) -> str:
    return inside.membership(broker).broker


@asynccontextmanager
async def dispatched_elsewhere(folder: Path) -> AsyncIterator[tuple[Broker, str, httpx.AsyncClient]]:
    """A subscription of a topic with one segment, at a broker that does not own that."""
    async with in_loop(folder) as together:
        await make(together.brokers[0])
        await until(lambda: all(inside.catalog(one).get("t") for one in together.brokers))
        owner = records(together.brokers[0])[0].owner
        (other,) = [one for one in together.brokers if _id(one) != owner]
        names = (f"s{n}" for n in range(100))
        assignment = other.subscribing.assignment
        name = next(one for one in names if assignment.preferred(inside.topic(other, "t"), one) != owner)
        async with at(together, other) as http:
            answer = await http.put(f"{TOPIC}/subscriptions/{name}", json={"start": "earliest"})
            assert answer.status_code == 201, answer.text
            yield other, name, http


async def test_ends_are_followed_as_long_as_somebody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were followed for 10 s after the last look, and a pull waits for up to 30."""
    monkeypatch.setattr(readable_segments, "LINGER_S", 0.4)
    monkeypatch.setattr(readable_segments, "MAX_WAIT_S", 0.1)
    monkeypatch.setattr(subscription, "REARM_S", 0.1)
    async with dispatched_elsewhere(tmp_path) as (broker, name, http):
        pulled = asyncio.create_task(inside.dispatcher(broker).pull(inside.topic(broker, "t"), name, Pull(1, 30)))
        await asyncio.sleep(1.5)
        await http.post(f"{TOPIC}/messages", json={"messages": [{"value": 1}]})
        async with asyncio.timeout(20):
            assert (await pulled).messages


async def test_an_end_that_is_forgotten_with_a_subscription_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull that had asked for the ends answered with nothing, by those of the subscription that was open anew; as in
    seed 310132."""
    async with dispatched_elsewhere(tmp_path) as (broker, name, http):
        assert (await http.post(f"{TOPIC}/messages", json={"messages": [{"value": 1}]})).is_success
        dispatcher, topic = inside.dispatcher(broker), inside.topic(broker, "t")
        gate, refresh = Gate(), inside.readables(broker).refresh

        async def held_refresh(*arguments: Any) -> set[int]:
            known = await refresh(*arguments)
            await gate()
            return known

        monkeypatch.setattr(inside.readables(broker), "refresh", held_refresh)
        dispatcher.forget(topic, name)  # the end, too: the pull has to ask for it
        async with asyncio.timeout(20):
            pulled = asyncio.create_task(dispatcher.pull(topic, name, Pull(1)))
            await gate.reached.wait()
            dispatcher.forget(topic, name)
            gate.open.set()
            assert (await pulled).messages
