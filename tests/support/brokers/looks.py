"""Two brokers whose looks at their loads come when the test says so, by a clock in its hand: numbers are exact."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import TopicConfig
from seaweedq.segments.keyrange import KEY_SPACE, hash_key
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.changing import TOPIC, at
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

LEFT, RIGHT = (
    [key for key in map("key-{}".format, range(200)) if (hash_key(key) < KEY_SPACE // 2) is left]
    for left in (True, False)
)


class Hand:
    """The clock, and what is asked of the brokers; messages come between two looks."""

    def __init__(self, together: InLoop) -> None:
        self.together = together
        self.now_s = 0.0
        self._numbers = count()
        for broker in together.brokers:
            privates.use_clock(inside.loads(broker), self)
        self.look(0)

    def monotonic_s(self) -> float:
        return self.now_s

    def look(self, passed_s: float) -> None:
        self.now_s += passed_s
        for broker in self.together.brokers:
            inside.loads(broker).tick()

    async def publish(self, broker: Broker, *keys: str, each: int = 1) -> None:
        """`each` messages of every key, of equal size."""
        messages = [{"key": key, "value": f"{next(self._numbers):08d}"} for key in keys for _ in range(each)]
        async with at(self.together, broker) as http:
            answer = await http.post(f"{TOPIC}/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text

    async def get(self, broker: Broker, path: str = "") -> Any:
        async with at(self.together, broker) as http:
            return (await http.get(f"{TOPIC}{path}")).raise_for_status().json()

    async def segments(self, broker: Broker) -> dict[int, Any]:
        return {segment["id"]: segment for segment in (await self.get(broker, "/segments"))["segments"]}

    async def metrics(self, broker: Broker) -> dict[str, float]:
        """Each sample by its name, with the values of its labels behind it."""
        async with at(self.together, broker) as http:
            text = (await http.get("/metrics")).text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


async def made(together: InLoop, segments: int = 1, **scaling: Any) -> Topic:
    """The topic `t`, known to all; its segments go to the brokers in turn."""
    await inside.topic_admin(together.brokers[0]).create("t", TopicConfig(initial_segments=segments, scaling=scaling))
    for broker in together.brokers:
        known = inside.catalog(broker)
        await until(lambda known=known: known.get("t") and len(known.segments(known.topic("t"))) == segments)
    return inside.topic(together.brokers[0], "t")


@asynccontextmanager
async def in_hand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hand]:
    """The brokers, with nobody else looking."""
    monkeypatch.setattr("seaweedq.broker.load.TICK_S", 3600.0)
    async with in_loop(folder) as together:
        yield Hand(together)
