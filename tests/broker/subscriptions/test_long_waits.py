"""A pull that waits at the dispatcher hears of rows at another broker, however long it has waited."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.read import readable_segments
from seaweedq.broker.subscriptions import subscription
from seaweedq.broker.subscriptions.pulling import Pull
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, records

pytestmark = pytest.mark.brokers


async def test_ends_are_followed_as_long_as_somebody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were followed for 10 s after the last look, and a pull waits for up to 30."""
    monkeypatch.setattr(readable_segments, "LINGER_S", 0.4)
    monkeypatch.setattr(readable_segments, "MAX_WAIT_S", 0.1)
    monkeypatch.setattr(subscription, "LOOK_AGAIN_S", 0.1)
    async with in_loop(tmp_path) as together:
        await make(together.brokers[0])
        await until(lambda: all(inside.catalog(one).find("t") for one in together.brokers))
        owner = records(together.brokers[0])[0].owner
        (other,) = [one for one in together.brokers if inside.membership(one).broker != owner]
        topic, subscribing = inside.topic(other, "t"), other.subscribing
        names = (f"s{n}" for n in range(100))
        name = next(one for one in names if subscribing.assignment.preferred(topic, one) != owner)
        async with at(together, other) as http:
            answer = await http.put(f"{TOPIC}/subscriptions/{name}", json={"start": "earliest"})
            assert answer.status_code == 201, answer.text
            pulled = asyncio.create_task(subscribing.dispatcher.pull(topic, name, Pull(1, 30)))
            await asyncio.sleep(1.5)
            await http.post(f"{TOPIC}/messages", json={"messages": [{"value": 1}]})
            async with asyncio.timeout(10):
                assert (await pulled).messages
