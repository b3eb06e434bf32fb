"""Records of topics and their segments."""

from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_quota import Counts
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import Counter, CreationRecord, StartRecord, TombstoneRecord
from seaweedq.errors import NeedsNewerBroker
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.unreadable.world import Case, T, World, nothing, pulled_until_refused

TYPED = "/v1/topics/typed"


async def topic_broken(world: World) -> None:
    await until(lambda: all(inside.catalog(one).unreadable_names() == ["t"] for one in world.living))
    for method, path, body in (
        ("GET", T, None),
        ("PUT", T, {}),
        ("PATCH", T, {"flush": {"max_age_s": 5}}),
        ("DELETE", T, None),
        ("POST", f"{T}/messages", {"messages": [{"value": 1}]}),
        ("GET", f"{T}/segments", None),
        ("POST", f"{T}/subscriptions/s/pull", {"wait_s": 0}),
        ("GET", f"{T}/segments/0/messages?offset=0", None),
    ):
        await world.refuses(method, path, body, topic="t")
    for number, one in enumerate(world.living):
        async with world.http(number) as http:
            listed = await world.ask(http, "GET", "/v1/topics", 200)
        assert ([each["name"] for each in listed["topics"]], listed["unreadable"]) == (["other"], ["t"])
        assert await inside.topic_admin(one).sweep() == 0
    assert await world.coordination.get(keys.SEGMENTS.key("t", 0, 1))
    assert await world.together.store.list("topics/t/")


async def topic_whole(world: World) -> None:
    await until(lambda: not any(inside.catalog(one).unreadable_names() for one in world.living))
    for number in range(len(world.living)):
        async with world.http(number) as http:
            await world.publish(http, "t")
            assert await world.ask(http, "GET", T, 200)


async def segment_broken(world: World) -> None:
    await until(lambda: all(inside.catalog(one).has_unreadable("t", 0) for one in world.living))
    await world.refuses("GET", f"{T}/segments/0/messages?offset=0", topic="t", segment=0)
    await world.refuses("POST", f"{T}/messages", {"messages": [{"key": f"k{n}", "value": n} for n in range(20)]})
    for change, body in (("split", {}), ("roll", None), ("merge", {"with": 0}), ("move", {"to": "b0"})):
        await world.refuses("POST", f"{T}/segments/1/{change}", body)
    await world.refuses("POST", f"{T}/flush")
    await world.refuses("PUT", f"{T}/subscriptions/late", {"start": "latest"})
    for number in range(len(world.living)):
        async with world.http(number) as http:
            shown = await world.ask(http, "GET", f"{T}/segments", 200)
            assert ([one["id"] for one in shown["segments"]], shown["unreadable"]) == ([1], [0])
            taken = [(await http.post(f"{T}/messages", json={"key": f"k{n}", "value": n})) for n in range(20)]
            assert {answer.status_code for answer in taken} == {200, 503}
            assert {answer.json()["segments"][0]["segment"] for answer in taken if answer.status_code == 200} == {1}
    async with world.http() as http:
        if found := await pulled_until_refused(world, http):
            assert {one["segment"] for one in found} == {1}
    assert await inside.topic_admin(world.living[0]).sweep() == 0
    assert await world.together.store.list("topics/t/")


async def segment_whole(world: World) -> None:
    await until(lambda: not any(inside.catalog(one).has_unreadable("t", 0) for one in world.living))
    async with world.http() as http:
        await world.publish(http, "t")
        found: list[Any] = []
        while 0 not in {one["segment"] for one in found}:
            found += await world.pull(http, "t", ahead=True)
        await world.ask(http, "POST", f"{T}/subscriptions/s/ack", 200, {"ids": [one["id"] for one in found]})


def typed(*names: str) -> dict[str, Any]:
    """A schema with optional columns of text."""
    return {"type": "struct", "fields": [{"name": name, "type": "string"} for name in names]}


async def schema_there(world: World) -> None:
    """The topic `typed` has two versions of its schema."""
    async with world.http() as http:
        config = {"format": "typed", "schema": typed("a")}
        await world.ask(http, "PUT", TYPED, 201, config)
        await world.ask(http, "PATCH", TYPED, 200, {"schema": typed("a", "b")})
    await until(lambda: all(typed_topic(one).layout.schema_id == 1 for one in world.living))


def typed_topic(broker: Broker) -> Topic:
    return inside.topic(broker, "typed")


async def schema_broken(world: World) -> None:
    """The version alone waits, and rows of it where they are not known yet; the newest one goes on."""
    await world.refuses("GET", f"{TYPED}/schemas/0", topic="typed")
    for number, one in enumerate(world.living):
        topic = typed_topic(one)
        topic.layouts.pop(0, None)  # as in a broker that has met no rows of it
        with pytest.raises(NeedsNewerBroker, match="this broker cannot read the record schemas/typed/"):
            await inside.catalog(one).layout(topic, 0)
        async with world.http(number) as http:
            shown = await world.ask(http, "GET", f"{TYPED}/schemas", 200)
            assert shown == {"schema_ids": [0, 1]}
            assert (await world.ask(http, "GET", f"{TYPED}/schemas/1", 200))["schema_id"] == 1
            message = {"value": {"a": "x", "b": "y"}}
            await world.ask(http, "POST", f"{TYPED}/messages", 200, {"messages": [message]})
    await world.refuses("PUT", TYPED, {"format": "typed", "schema": typed("a")}, topic="typed")


async def schema_whole(world: World) -> None:
    for number, one in enumerate(world.living):
        async with world.http(number) as http:
            shown = await world.ask(http, "GET", f"{TYPED}/schemas/0", 200)
        assert [field["name"] for field in shown["schema"]["fields"]] == ["a"]
        assert (await inside.catalog(one).layout(typed_topic(one), 0)).values.names == ["a"]


async def start_broken(world: World) -> None:
    """A broker that has known no start of the segment does not guess one; what is open goes on from the one that it
    knows."""
    key = keys.STARTS.key("t", 0, 0)
    await until(lambda: all(key in privates.unreadable(inside.catalog(one).starts) for one in world.living))
    if world.restarted:
        await world.refuses("GET", f"{T}/segments/0/messages?offset=0", topic="t", segment=0)
        return
    for number in range(len(world.living)):
        async with world.http(number) as http:
            await world.ask(http, "GET", f"{T}/segments/0/messages?offset=0", 200)


async def start_whole(world: World) -> None:
    await until(lambda: not any(privates.unreadable(inside.catalog(one).starts) for one in world.living))
    for number in range(len(world.living)):
        async with world.http(number) as http:
            await world.ask(http, "GET", f"{T}/segments/0/messages?offset=0", 200)


async def tombstone_broken(world: World) -> None:
    """Whoever asks for the removed segment is not told that it never was."""
    await world.refuses("GET", f"{T}/segments/7", topic="t", segment=7)


async def tombstone_whole(world: World) -> None:
    async with world.http() as http:
        answer = await http.get(f"{T}/segments/7")
        assert answer.status_code in (200, 404), answer.text


async def retention_broken(world: World) -> None:
    """No round of retention begins."""
    for one in world.living:
        with pytest.raises(NeedsNewerBroker):
            await inside.retention(one).rounds.begin()


async def retention_whole(world: World) -> None:
    (leader,) = [one for one in world.living if inside.election(one).is_leader]
    assert await inside.retention(leader).rounds.begin() is not None


async def snapshots_there(world: World) -> None:
    """The leader has put the first one."""
    await until(lambda: any(broker.leadership.snapshots.made for broker in world.living))


async def snapshots_broken(world: World) -> None:
    """None is put."""
    leads = next(broker for broker in world.living if inside.election(broker).is_leader)
    await world.coordination.commit([], [Put("later/kind", b"1")])
    with pytest.raises(NeedsNewerBroker, match="this broker cannot read the record snapshots"):
        await leads.leadership.snapshots.put_if_changed()
    await world.coordination.commit([], [Delete("later/kind")])


async def snapshots_whole(world: World) -> None:
    leads = next(broker for broker in world.living if inside.election(broker).is_leader)
    await world.coordination.commit([], [Put("later/kind", b"1")])
    made = leads.leadership.snapshots.made
    await leads.leadership.snapshots.put_if_changed()
    assert leads.leadership.snapshots.made == made + 1
    await world.coordination.commit([], [Delete("later/kind")])


async def counter_broken(world: World) -> None:
    number = await open_segment(world)
    await world.refuses("POST", f"{T}/segments/{number}/split", {}, topic="t")
    assert await inside.topic_admin(world.living[0]).sweep() == 0


async def open_segment(world: World) -> int:
    async with world.http() as http:
        shown = await world.ask(http, "GET", f"{T}/segments", 200)
    return next(one["id"] for one in shown["segments"] if one["state"] == "open")


async def counter_whole(world: World) -> None:
    number = await open_segment(world)
    async with world.http() as http:
        answer = await http.post(f"{T}/segments/{number}/roll")
        assert answer.status_code in (200, 202), answer.text


async def creation_broken(world: World) -> None:
    assert await inside.topic_admin(world.living[0]).sweep() == 0
    assert await world.coordination.get(keys.CREATIONS.key("t", 9))


async def growth_broken(world: World) -> None:
    for one in world.living:
        privates.near_the_bound(inside.topic_admin(one), Counts(100, 100))
    await world.refuses("PUT", "/v1/topics/more", {})


async def growth_whole(world: World) -> None:
    async with world.http() as http:
        answer = await http.put("/v1/topics/more", json={})
        assert answer.status_code == 201, answer.text
        await world.ask(http, "DELETE", "/v1/topics/more", 204)


CASES: dict[keys.KeyKind[Any], Case] = {
    keys.TOPICS: Case(lambda _: "topics/t", topic_broken, topic_whole),
    keys.SCHEMAS: Case(
        lambda world: keys.SCHEMAS.key("typed", typed_topic(world.living[0]).record.incarnation, 0),
        schema_broken,
        schema_whole,
        prepare=schema_there,
    ),
    keys.SEGMENTS: Case(lambda _: keys.SEGMENTS.key("t", 0, 0), segment_broken, segment_whole),
    keys.STARTS: Case(lambda _: keys.STARTS.key("t", 0, 0), start_broken, start_whole, StartRecord(0, 0)),
    keys.TOMBSTONES: Case(
        lambda _: keys.TOMBSTONES.key("t", 0, 7),
        tombstone_broken,
        tombstone_whole,
        TombstoneRecord(0, 1, 5, (), (8,), 0, 0, 0),
    ),
    keys.COUNTERS: Case(lambda _: "counters/t", counter_broken, counter_whole),
    keys.CREATIONS: Case(
        lambda _: keys.CREATIONS.key("t", 9), creation_broken, nothing, CreationRecord("b9.x", 1), noticed=False
    ),
    keys.GROWTH: Case(lambda _: "growth", growth_broken, growth_whole, Counter(1)),
    keys.SNAPSHOTS: Case(lambda _: "snapshots", snapshots_broken, snapshots_whole, prepare=snapshots_there),
    keys.RETENTION: Case(lambda _: "retention", retention_broken, retention_whole, Counter(0)),
}
