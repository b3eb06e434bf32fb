"""A broker whose watches are behind, or bring no news, does at once what another one has begun: it publishes to
successors, and reads them. Changes between two pages of a listing keep nobody from publishing.
"""

from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.coordination.interface import Change, Page
from seaweedq.coordination.records import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, messages_of, records
from tests.support.brokers.subscribing import ack, create, publish, pull

pytestmark = pytest.mark.brokers


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
            await inside.catalog(two).require("t")
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
        assert inside.catalog(one).being_deleted() == []
        assert len(inside.catalog(one)._segments) == 0


async def test_a_split_between_two_pages_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        one, two = together.brokers
        await make(one)
        topic, theirs = inside.topic(one, "t"), await inside.catalog(two).require("t")
        await inside.catalog(two).load_topic(theirs)
        await deaf(two)
        range_, split = together.coordination.range, False

        async def pages(prefix: str, after: str = "", limit: int = 500) -> Page:
            nonlocal split
            many = prefix.startswith("segments/t/") and limit > 1
            page = await range_(prefix, after, 2 if many else limit)
            if many and not split:
                split = True
                await inside.planner(one).plan(topic, [1], [1 << 29])
                await until(lambda: records(one)[1].state == "sealed")
            return page

        await inside.planner(one).plan(topic, [0], [1 << 30])
        await until(lambda: records(one)[0].state == "sealed")
        await inside.catalog(two).refresh("t", 1)  # as of a successor alone: the broker looks at all of them
        monkeypatch.setattr(together.coordination, "range", pages)
        async with at(together, two) as http:
            answer = await http.post(f"{TOPIC}/messages", json={"key": "k", "value": 1})
            assert answer.status_code == 200, answer.text
        assert split


async def test_a_broker_that_hears_no_news_publishes_to_successors(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        one, two = together.brokers
        await make(one)
        await inside.catalog(two).require("t")
        await until(lambda: len(records(two)) == 1)
        await deaf(two)
        async with at(together, two) as http:
            assert (await http.post(f"{TOPIC}/messages", json={"messages": messages_of("k", 0, 9)})).status_code == 200
            await inside.planner(one).plan(inside.topic(one, "t"), [0], [1 << 30])
            await until(lambda: records(one)[0].state == "sealed")
            assert records(two)[0].state == "open"
            single = await http.post(f"{TOPIC}/messages", json={"key": "k", "value": 1})
            assert single.status_code == 200, single.text
            assert (await http.post(f"{TOPIC}/messages", json={"messages": messages_of("k", 1, 9)})).status_code == 200
            for number in (0, 1, 2):
                answer = await http.get(f"{TOPIC}/segments/{number}/messages")
                assert answer.status_code == 200, answer.text
                assert answer.json()["sealed"] == (number == 0)


async def test_a_dispatcher_that_hears_no_news_goes_on_with_successors(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        one, two = together.brokers
        await make(one)
        async with at(together, one) as http, at(together, two) as other:
            await create(http)
            assert await pull(other) == []
            (dispatcher,) = [b for b in together.brokers if inside.dispatcher(b).names()]
            owner = one if dispatcher is two else two
            if owner is two:
                assert await inside.mover(one).move(inside.topic(one, "t"), 0, two.id)
                await until(lambda: records(two)[0].owner == two.id)
            await deaf(dispatcher)
            before = await publish(http, 0)
            await inside.planner(owner).plan(inside.topic(owner, "t"), [0], [1 << 30])
            await until(lambda: records(owner)[0].state == "sealed")
            behind = await publish(http if owner is one else other, 1)
            assert {id.split("-")[0] for id in behind} == {"1", "2"}
            first = await pull(other, wait_s=5)
            assert sorted(message["id"] for message in first) == sorted(before)
            await ack(http, before)
            found: list[str] = []
            while len(found) < len(behind):
                came = await pull(http, wait_s=5)
                assert came, "the successors are not read"
                found += [message["id"] for message in came]
            assert sorted(found) == sorted(behind)
