"""A dead broker's journal that holds messages and acks of what cannot be read: nothing of it is lost, and what else the
broker had goes on."""

from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at

pytestmark = pytest.mark.brokers

BAD = b'{"needs_level": 99}'


async def make(together: InLoop, name: str) -> int:
    """A topic with a segment at each broker, messages in the journals alone, and some acks. Returns the number of
    messages."""
    await inside.topic_admin(together.brokers[0]).create(name, TopicConfig(initial_segments=2))
    async with at(together, together.brokers[1]) as http:
        body = {"messages": [{"key": f"k{n}", "value": n} for n in range(30)]}
        assert (await http.post(f"/v1/topics/{name}/messages", json=body)).status_code == 200
    return 30


def owner_of(together: InLoop, name: str, segment: int) -> Broker:
    topic = inside.topic(together.brokers[0], name)
    owner = inside.catalog(together.brokers[0]).segment(topic, segment).record.owner
    return next(one for one in together.brokers if one.id == owner)


async def read(together: InLoop, broker: Broker, name: str) -> list[Any]:
    """All messages of the topic's segments."""
    found = []
    async with at(together, broker) as http:
        for segment in (0, 1):
            answer = await http.get(f"/v1/topics/{name}/segments/{segment}/messages", params={"offset": 0})
            assert answer.status_code == 200, answer.text
            found += [message["value"] for message in answer.json()["messages"]]
    return sorted(found)


@pytest.mark.parametrize("kind", [keys.TOPICS, keys.SEGMENTS], ids=lambda kind: kind.name)
async def test_messages_of_what_cannot_be_read_wait_and_others_do_not(
    tmp_path: Path, kind: keys.KeyKind[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with in_loop(tmp_path, publish_timeout_s=10) as together:
        for name in ("t", "other"):
            await make(together, name)
        dead = owner_of(together, "t", 1)
        await until(lambda: dead.id in inside.roster(together.brokers[0]).journals)
        key = keys.TOPICS.key("t") if kind is keys.TOPICS else keys.SEGMENTS.key("t", 0, 1)
        there = await together.coordination.get(key)
        assert there
        await together.coordination.commit([], [Put(key, BAD)])
        await together.crash(dead)
        (left,) = (one for one in together.brokers if one is not dead)

        def others_moved() -> bool:
            topic = inside.topic(left, "other")
            return {one.owner for one in inside.catalog(left).segments(topic).values()} == {left.id}

        await until(others_moved, "the other topic waits, too")
        assert await read(together, left, "other") == list(range(30))
        journal = await together.coordination.get(keys.JOURNALS.key(dead.id))
        assert journal
        assert not keys.JOURNALS.require(journal).record.recovered
        told = [
            text
            for text in caplog.messages
            if f"the journal of broker {dead.id} could not be recovered completely" in text
        ]
        assert len(told) == 1
        await together.coordination.commit([], [Put(key, there.value)])
        await until(lambda: dead.id not in inside.roster(left).journals)
        await until(lambda: inside.catalog(left).get("t") is not None)
        assert await read(together, left, "t") == list(range(30))
