"""The bounds of a cluster: exact however many create at once, and of no cost far below them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics import cluster_quota
from seaweedq.coordination import keys
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import SeaweedqError, TooManySegments, TooManyTopics
from tests.support.brokers import inside
from tests.support.brokers.in_process import held, make_topic, running
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.http.with_tokens import access

CREATE = [{"actions": ["create", "delete", "publish"], "topics": ["*"]}]


async def create(broker: Broker, name: str, segments: int = 1, creator: str | None = None) -> bool:
    return await inside.topic_admin(broker).create(name, TopicConfig(initial_segments=segments), creator)


async def outcomes(together: InLoop, count: int, segments: int) -> list[Any]:
    """What so many creations at once, at all brokers, come to."""
    return await asyncio.gather(
        *(create(broker, f"t{n}-{at}", segments) for n in range(count) for at, broker in enumerate(together.brokers)),
        return_exceptions=True,
    )


@pytest.mark.brokers
async def test_topics_end_at_the_bound(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2, max_topics=7) as together:
        found = await outcomes(together, 6, 1)
        assert found.count(True) == 7
        refused = [one for one in found if one is not True]
        assert all(isinstance(one, TooManyTopics) for one in refused), refused
        assert refused[0].fields == {"limit": 7, "setting": "max_topics"}
        assert await together.coordination.count(keys.TOPICS.prefix()) == 7


@pytest.mark.brokers
async def test_segments_end_at_the_bound(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2, max_segments=20) as together:
        found = await outcomes(together, 4, 3)
        assert found.count(True) == 6
        assert all(isinstance(one, TooManySegments) for one in found if one is not True), found
        assert await together.coordination.count(keys.SEGMENTS.prefix()) == 18
        await create(together.brokers[0], "last", 2)
        with pytest.raises(TooManySegments):
            await create(together.brokers[1], "another")


async def test_a_deletion_makes_room(tmp_path: Path) -> None:
    async with running(tmp_path, max_topics=1) as broker:
        topic = await make_topic(broker)
        with pytest.raises(TooManyTopics):
            await create(broker, "other")
        assert not await create(broker, "t"), "what is there already is no creation"
        await inside.deletion(broker).delete(topic)
        await create(broker, "other")


async def test_a_split_that_is_planned_counts(tmp_path: Path) -> None:
    async with running(tmp_path, max_segments=4) as broker:
        topic = await make_topic(broker)
        await inside.planner(broker).plan(topic, [0], [1 << 30])
        with pytest.raises(TooManySegments):
            await create(broker, "other", 2)
        await create(broker, "other")
        with pytest.raises(TooManySegments):
            await create(broker, "another")


async def test_nothing_is_asked_far_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(self: Any, prefix: str) -> int:
        raise AssertionError(prefix)

    async with running(tmp_path) as broker:
        monkeypatch.setattr(type(held(broker)), "count", count)
        await create(broker, "t", 3)
        assert await held(broker).get(keys.GROWTH.key()) is None


async def test_near_the_bound_two_that_counted_at_once_count_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_quota, "TRIES", 1)
    async with running(tmp_path, max_topics=10) as broker:
        one, two = await asyncio.gather(*(inside.quota(broker).reserve(1, 1) for _ in range(2)))
        assert one == two
        commit = broker.process.coordination.commit
        assert await commit(one.compares, one.writes)
        assert await commit(two.compares, two.writes) is None
        assert not isinstance(one, SeaweedqError)


@pytest.mark.brokers
async def test_a_principals_topics_and_segments_are_bounded_over_all_brokers(tmp_path: Path) -> None:
    async with access(tmp_path, 2) as http:
        await http.principal("p", CREATE, limits={"topics": 5, "segments": 8})
        token, brokers = await http.token(principal="p"), http.together.brokers
        names = [f"t{number}" for number in range(8)]
        made = await asyncio.gather(
            *(http("PUT", f"/v1/topics/{name}", token, at % 2) for at, name in enumerate(names)),
        )
        assert sorted(one.status_code for one in made) == [201] * 5 + [429] * 3
        refused = next(one.json() for one in made if one.status_code == 429)
        assert (refused["type"], refused["limit"], refused["setting"]) == (
            "/problems/too-many-topics",
            5,
            "limits.topics",
        )
        assert await create(brokers[0], "of-nobody", 9), "it counts to the limits of nobody"
        topic = await inside.catalog(brokers[0]).require(names[0] if made[0].status_code == 201 else names[1])
        uid = inside.callers(brokers[0]).view.principals["p"].uid
        assert topic.record.creator == uid
        planner = inside.planner(brokers[0])
        await inside.catalog(brokers[0]).load_topic(topic)
        await planner.plan(topic, [0], [1 << 30])
        await until(lambda: len(inside.catalog(brokers[0]).records(topic)) == 3)
        with pytest.raises(TooManySegments) as caught:
            await planner.plan(topic, [1], [1 << 29])
        assert caught.value.fields["setting"] == "limits.segments"
        assert await http.status("DELETE", f"/v1/topics/{topic.name}", token) == 204
        assert await create(brokers[1], "again", 1, uid)


@pytest.mark.brokers
async def test_topics_of_a_deleted_principal_do_not_count_to_its_namesake(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("p", CREATE, limits={"topics": 1})
        assert await http.status("PUT", "/v1/topics/a", await http.token(principal="p")) == 201
        await http.delete("p")
        await http.principal("p", CREATE, limits={"topics": 1})
        token = await http.token(principal="p")
        assert [await http.status("PUT", f"/v1/topics/{name}", token) for name in "bc"] == [201, 429]
        assert await http.status("POST", "/v1/topics/d/messages", token, json={"value": 1}) == 429
