"""Members that this version does not know, added by a newer broker to every record there is: they survive all that
brokers of this version write in the place of those records."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.broker.imports.records import WorkId
from seaweedq.broker.reshape.intents import Ends, NewSegment, commit, finish, new_intent, plan, undo
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.cluster_quota import Counts
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Entry, Put, read_all
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import (
    ClusterRecord,
    ImportRecord,
    SegmentRecord,
    TopicConfig,
    TopicRecord,
    WriteRecord,
)
from seaweedq.coordination.versioned import Versioned
from seaweedq.levels import DRAFT
from seaweedq.segments.keyrange import KEY_SPACE
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at
from tests.support.brokers.retained import fill, retained

NEW = "added later"
DAY_S = 86_400
ONCE = {
    keys.LEADER,
    keys.CREATIONS,
    keys.URL_SECRET,
    keys.SUSPICIONS,
    keys.REVOCATIONS,
    keys.TOMBSTONES,
    keys.TOKENS,
    keys.WAITING,
    keys.SCHEMAS,
}  # nobody writes in the place of one
ALONE = {
    keys.BROKERS,
    keys.CLUSTER,
    keys.GROWTH,
    keys.STARTS,
    keys.RETENTION,
    keys.SNAPSHOTS,
    keys.MIRRORS,
}  # their writers are tested alone below
FREE = {"scaling", "schema", "attempts", "start", "fields"}  # members without a form
T = "/v1/topics/t"


def marked(value: Any) -> Any:
    """The JSON value with one more member in each object that has a form."""
    if isinstance(value, list):
        return [marked(item) if isinstance(item, dict) and "id" in item else item for item in value]
    if isinstance(value, dict):
        more = {name: each if name in FREE else marked(each) for name, each in value.items()}
        return more | {NEW: [1, {"a": None}]}
    return value


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where the later value has an object of the former, without its new member."""
    if isinstance(before, dict) and isinstance(after, dict):
        if NEW in before and after.get(NEW) != before[NEW]:
            yield path or "the record itself"
        for name in before.keys() & after.keys() - {NEW}:
            yield from lost(before[name], after[name], f"{path}.{name}")


def check(history: list[tuple[Change, ...]]) -> set[keys.KeyKind[Any]]:
    """No write has lost a member. Returns the kinds that were written over with such members."""
    known: dict[str, Any] = {}
    found = set()
    for change in (change for changes in history for change in changes):
        before = known.pop(change.key, None)
        if change.value is None:
            continue
        after = known[change.key] = json.loads(change.value)
        if before and NEW in before:
            assert not list(lost(before, after)), f"{change.key}: {before} to {after}"
            found.add(next(kind for kind in keys.CATALOGUE if kind.matches(change.key)))
    return found


async def mark(coordination: Coordination, kind: keys.KeyKind[Any]) -> None:
    """A newer broker writes all records of a kind."""
    for entry in (await read_all(coordination, kind.prefix()))[0]:
        value = json.dumps(marked(json.loads(entry.value))).encode()
        assert isinstance(kind.read(Entry(entry.key, value, 1)), Versioned)
        await coordination.commit([Compare(entry.key, entry.revision)], [Put(entry.key, value, entry.lease)])


async def mark_all(together: InLoop) -> None:
    """A newer broker writes all records, and everybody hears of it."""
    for kind in keys.CATALOGUE:
        if kind not in ALONE | ONCE:
            await mark(together.coordination, kind)
    for one in together.brokers:
        await inside.catalog(one).load()
        await inside.roster(one).load()


@pytest.mark.brokers
async def test_members_survive_every_writer(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=10) as together:
        one, two = together.brokers
        await inside.topic_admin(one).create("t", TopicConfig(initial_segments=2))
        topic = inside.topic(one, "t")
        async with at(together, one) as http, at(together, two) as other:

            async def ask(method: str, path: str, status: int, body: Any = None, by: Any = http) -> Any:
                answer = await by.request(method, f"{T}{path}", **({} if body is None else {"json": body}))
                assert answer.status_code == status, f"{method} {path}: {answer.text}"
                return answer.json() if answer.content else None

            messages = {"messages": [{"key": f"k{n}", "value": n} for n in range(20)]}
            await ask("POST", "/messages", 200, messages)
            for name in ("s", "u"):
                await ask("PUT", f"/subscriptions/{name}", 201, {"start": "earliest"})
            uploads = [
                (await ask("POST", "/uploads", 201, {"size": 2, "content_type": "a/b"}))["upload_id"] for _ in range(2)
            ]
            for broker in together.brokers:
                for works in (inside.imports(broker), inside.writes(broker)):
                    works.begin_stop()  # nobody but this test works on the import and the write
            imports = privates.records(inside.imports(one))
            where = WorkId.from_topic(topic, uploads[0])
            record = ImportRecord("arrow", False, "n", 1, "s", 0, 2**60, 1, 1, one.id)
            await imports.create(topic, where, record)
            writes, writer = privates.records(inside.writes(one)), WorkId.from_topic(topic, "w")
            write = WriteRecord(1, "arrow", False, 1, "s", "n", False, 0, 1, 1, "n", 0, one.id)
            await writes.create(topic, writer, write)
            principal = {"grants": [{"actions": ["read"], "topics": ["t"]}]}
            assert (await http.put("/v1/principals/p", json=principal)).status_code == 201
            assert (await http.post("/v1/denials", json={"kind": "sub", "value": "a"})).status_code == 201
            await mark_all(together)

            assert (await http.put("/v1/principals/p", json=principal | {"disabled": True})).status_code == 200
            assert (await http.post("/v1/denials", json={"kind": "sub", "value": "a"})).status_code == 201
            await ask("PATCH", "", 200, {"flush": {"max_age_s": 7}, "scaling": {"enabled": False}})
            held = await imports.read(where)
            assert held
            held = await imports.write(where, held, record.__class__("arrow", False, "n", 1, "s", 0, 2**60, 1, 1, None))
            assert held
            held_write = await writes.read(writer)
            assert held_write
            assert await writes.write(writer, held_write, msgspec.structs.replace(write, broker=None))
            await one.process.store.payloads.receive(
                (await inside.uploads(one).find(topic, uploads[0])).record.name, _bytes(), 2, None
            )
            await inside.uploads(one).claim(topic, uploads[0])
            await ask("DELETE", f"/uploads/{uploads[1]}", 204)
            for name in ("s", "u"):
                found = await ask("POST", f"/subscriptions/{name}/pull", 200, {"wait_s": 5, "max_messages": 5})
                await ask("POST", f"/subscriptions/{name}/ack", 200, {"ids": [m["id"] for m in found["messages"]][:3]})
            for broker in together.brokers:
                await inside.dispatcher(broker).checkpoint()
                for key in inside.dispatcher(broker).names():
                    await inside.dispatcher(broker).hand_over(*key)
            await ask("POST", "/subscriptions/u/seek", 200, {"to": "latest"})
            await ask("DELETE", "/subscriptions/u", 204)
            await ask("POST", "/segments/0/split", 200, {})
            shown = await ask("GET", "/segments", 200)
            (left, *_) = [each for each in shown["segments"] if each["state"] == "open"]
            await ask("POST", f"/segments/{left['id']}/roll", 200)
            shown = await ask("GET", "/segments", 200)
            moving = next(each for each in shown["segments"] if each["state"] == "open")
            target = two if moving["owner"] == one.id else one
            await ask("POST", f"/segments/{moving['id']}/move", 200, {"to": target.id})
            await mark_all(together)
            await ask("POST", "/messages", 200, messages, other)
            await together.crash(two)
            journal = keys.JOURNALS.key(two.id)
            await until(lambda: two.id not in inside.roster(one).journals)
            assert await together.coordination.get(journal) is None
            await ask("DELETE", "", 204)
        assert check(together.coordination.history) | ONCE | ALONE == set(keys.CATALOGUE)


async def _bytes() -> Any:
    yield b"ab"


async def test_members_survive_what_a_broker_says_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    coordination, clock = MemoryCoordination(SystemClock()), SystemClock()
    member = Membership(coordination, clock, BrokerIdentity.new(SystemIds(), "b", "http://b"), 60)
    await member.start()
    try:
        key = keys.BROKERS.key(member.broker)
        there = await coordination.get(key)
        assert there
        newer = Entry(key, json.dumps(marked(json.loads(there.value))).encode(), there.revision)
        monkeypatch.setattr(member, "_held", keys.BROKERS.require(newer))
        for say in (member.open, member.drain):
            assert await say()
            there = await coordination.get(key)
            assert there
            assert json.loads(there.value)[NEW]
    finally:
        await member.stop()
        await coordination.close()


@pytest.mark.brokers
async def test_members_survive_the_growth_of_the_cluster(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (one,) = together.brokers
        await together.coordination.commit([], [Put("growth", json.dumps({"next": 4, NEW: 1}).encode())])
        privates.near_the_bound(inside.topic_admin(one), Counts(100, 100))
        await inside.topic_admin(one).create("t", TopicConfig())
        there = await together.coordination.get("growth")
        assert there
        assert json.loads(there.value) == {"next": 5, NEW: 1}


@pytest.mark.brokers
async def test_members_survive_snapshots_of_coordination(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, snapshot_s=3600.0) as together:
        snapshots = together.brokers[0].leadership.snapshots
        await until(lambda: snapshots.made)
        newer = json.dumps({"next": 10, NEW: [1]}).encode()
        await together.coordination.commit([], [Put(keys.SNAPSHOTS.key(), newer), Put("later/kind", b"1")])
        await snapshots.put_if_changed()
        there = await together.coordination.get(keys.SNAPSHOTS.key())
        assert there
        assert json.loads(there.value) == {"next": 11, NEW: [1]}


@pytest.mark.brokers
async def test_members_survive_rounds_of_retention(tmp_path: Path) -> None:
    async with retained(tmp_path) as world:
        await world.policy(max_age_s=DAY_S, grace_s=60)
        for _ in range(3):  # takes and deletes, twice: the first round writes both records
            world.pass_time(2 * DAY_S)
            await fill(world.broker, 1)
            await world.retention.round()
            for kind in (keys.STARTS, keys.RETENTION):
                await mark(world.together.coordination, kind)
            await inside.catalog(world.broker).load()
        assert (world.start, world.retention.files) == (10, 5)
        assert check(world.together.coordination.history) >= {keys.STARTS, keys.RETENTION}


@pytest.mark.brokers
async def test_members_survive_a_new_version_of_the_schema(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        fields = [{"name": "a", "type": "string"}]
        config = {"format": "typed", "schema": {"type": "struct", "fields": fields}}
        assert (await http.put(T, json=config)).status_code == 201
        await mark(together.coordination, keys.TOPICS)
        await inside.catalog(together.brokers[0]).load()
        for name in ("b", "c"):
            fields.append({"name": name, "type": "string"})
            assert (await http.patch(T, json={"schema": {"type": "struct", "fields": fields}})).status_code == 200
            if name == "b":
                await mark(together.coordination, keys.SCHEMAS)
        prefix = keys.SCHEMAS.prefix("t", inside.topic(together.brokers[0], "t").record.incarnation)
        found = [json.loads(entry.value) for entry in (await read_all(together.coordination, prefix))[0]]
        assert [NEW in one for one in found] == [True, True, False]
        assert check(together.coordination.history) & {keys.TOPICS, keys.SCHEMAS} == {keys.TOPICS}


def test_members_survive_a_rise_of_the_level() -> None:
    held = keys.CLUSTER.require(
        Entry("cluster", json.dumps({"cluster": "c", "store": "s", "draft": DRAFT, NEW: 1}).encode(), 3)
    )
    assert held.record == ClusterRecord("c", "s", draft=DRAFT)
    risen = held.replace(level=2).stored(4)
    for each in (risen, risen.replace(written=2)):
        assert json.loads(keys.CLUSTER.encode(each))[NEW] == 1


def test_members_survive_the_steps_of_an_intent() -> None:
    topic = Topic.from_record("t", Versioned(TopicRecord(0, "active", TopicConfig(), 0), 1))
    record = SegmentRecord(0, KEY_SPACE, "open", (), (), "b", None, 1)

    def stored(put: Put, revision: int) -> Versioned[SegmentRecord]:
        """The record as a newer broker has written it once more."""
        return keys.SEGMENTS.require(Entry(put.key, json.dumps(marked(json.loads(put.value))).encode(), revision))

    first = keys.SEGMENTS.encode(Versioned.new(record))
    records = {0: stored(Put(keys.SEGMENTS.key("t", 0, 0), first), 1)}
    intent = new_intent(records, [0], [KEY_SPACE // 2], 1)
    (planned,) = plan(topic, records, intent).writes
    records = {0: stored(planned, 2)}
    (undone,) = undo(topic, records, intent).writes
    assert json.loads(undone.value)[NEW], "the record keeps its own, and loses that of the intent"
    (committed,) = commit(topic, records, intent).writes
    document = json.loads(committed.value)
    assert document[NEW]
    assert document["intent"][NEW]
    assert [one[NEW] for one in document["intent"]["successors"]] == [[1, {"a": None}]] * 2
    records = {0: stored(committed, 3)}
    held = records[0].record.intent
    assert held
    sealed, *successors = finish(
        topic, records, held, Ends({0: 5}, 9), {1: NewSegment("b", ()), 2: NewSegment("b", ())}
    ).writes
    assert json.loads(sealed.value)[NEW]
    assert json.loads(sealed.value)["intent"] is None
    assert not any(NEW in json.loads(one.value) for one in successors)
