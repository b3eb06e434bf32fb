"""What one broker has done, the next one does at once, though its watches are behind."""

from pathlib import Path

import httpx
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.coordination.interface import Change
from seaweedq.coordination.records import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process_cluster import InLoop, in_loop

pytestmark = pytest.mark.brokers

TOPIC = "/v1/topics/t"


def at(together: InLoop, broker: Broker) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(together.apps[broker.process.url]), base_url=broker.process.url
    )


async def tell(one: Broker, two: Broker, *segments: int) -> None:
    """Tell `two` of the topic and of these segments."""
    topic = inside.topic(one, "t")
    there = await one.process.coordination.get("topics/t")
    assert there
    changes = [Change(there.key, there.value, there.revision)]
    for number in segments:
        entry = await one.process.coordination.get(f"segments/t/{topic.record.incarnation:010d}/{number:010d}")
        assert entry
        changes.append(Change(entry.key, entry.value, entry.revision))
    inside.catalog(two).apply(changes)


@pytest.mark.parametrize("known", [None, [], [0], [1, 2]])
async def test_a_topic_made_at_one_broker_is_published_to_through_another(
    tmp_path: Path, known: list[int] | None
) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        await deaf(two)
        await inside.topic_admin(one).create("t", TopicConfig(initial_segments=4))
        if known is not None:
            await tell(one, two, *known)
        async with at(together, two) as http:
            messages = {"messages": [{"key": f"k{n}", "value": n} for n in range(40)]}
            answer = await http.post(f"{TOPIC}/messages", json=messages)
            assert answer.status_code == 200, answer.text
            assert [s["segment"] for s in answer.json()["segments"]] == [0, 1, 2, 3]
            assert (await http.post(f"{TOPIC}/messages", json={"value": 1})).status_code == 200
            shown = await http.get(TOPIC)
            assert (shown.json()["segments"], shown.json()["messages"]) == (4, 41)
            assert (await http.get(f"{TOPIC}/segments/3/messages")).status_code == 200
        topic = inside.topic(one, "t")
        ranges = {number: (r.low, r.high) for number, r in inside.catalog(one).segments(topic).items()}
        assert {n: (r.low, r.high) for n, r in inside.catalog(two).segments(inside.topic(two, "t")).items()} == ranges


async def test_rows_come_to_an_owner_that_has_not_heard_of_its_segment(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        await deaf(two)
        await inside.topic_admin(one).create("t", TopicConfig(initial_segments=4))
        await tell(one, two, 0)
        async with at(together, one) as http:
            messages = {"messages": [{"key": f"k{n}", "value": n} for n in range(40)]}
            assert (await http.post(f"{TOPIC}/messages", json=messages)).status_code == 200
        assert sum(len(inside.topic(broker, "t").opened) for broker in (one, two)) == 4


async def test_a_topic_deleted_at_one_broker_is_made_again_at_another(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        async with at(together, one) as here, at(together, two) as there:
            assert (await here.put(TOPIC)).status_code == 201
            await inside.catalog(two).known("t")
            await deaf(two)
            assert (await here.delete(TOPIC)).status_code == 204
            assert (await there.put(TOPIC)).status_code == 201


async def test_what_brokers_own_is_counted_as_it_changes(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        await inside.topic_admin(one).create("t", TopicConfig(initial_segments=4))
        topic = inside.topic(one, "t")
        mine = len(inside.catalog(one).owned_by(one.id))
        assert mine == 2
        await inside.mover(one).move(topic, 0, two.id)
        assert len(inside.catalog(one).owned_by(two.id)) == 3
        await inside.deletion(one).delete(topic)
        assert inside.catalog(one).owners() == []
        assert inside.catalog(one).doomed() == []
        assert len(inside.catalog(one)._segments) == 0
