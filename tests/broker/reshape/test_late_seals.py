"""A seal names its whole intent: where coordination has gone back to before the intent, the chain says how to go on."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from seaweedq.broker.cluster.balancing import Rebalancer
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.reshape import intents
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.invariants import broken_by
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry, Put
from seaweedq.coordination.records import Counter, Intent, SegmentRecord, Successor, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import SegmentConflict
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import Seal, SealedIntent, SealedSuccessor
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange, hash_key, tile
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, single
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.stored import record_of

LEFT, RIGHT = tile(2)
MERGE = SealedIntent(5, (0, 1), (SealedSuccessor(5, 0, KEY_SPACE),))
TOPIC = Topic.from_record("t", Versioned(TopicRecord(0, "active", TopicConfig(), 0), 9))


def open_record(keys: KeyRange, intent: Intent | None = None) -> Versioned[SegmentRecord]:
    return Versioned(SegmentRecord(keys.low, keys.high, "open", (), (), "x", None, 0, intent=intent), 3)


def resumed(records: dict[int, Versioned[SegmentRecord]]) -> dict[int, SegmentRecord]:
    """The records that a seal of the merge writes."""
    compares, writes = intents.resume(TOPIC, records, MERGE)
    found = {keys.SEGMENTS.parse(put.key)[2]: record_of(keys.SEGMENTS, put.value) for put in writes}
    compared = {keys.SEGMENTS.parse(c.key)[2]: c.revision for c in compares if keys.SEGMENTS.matches(c.key)}
    assert compared == {**dict.fromkeys(found, 3), 5: 0}
    before = {number: records[number].record for number in found}
    assert broken_by(before, found, alive=True, proven=MERGE.id) == []
    assert broken_by(before, found, alive=True) != [], "without a seal it would be refused"
    return found


def test_a_seal_names_the_whole_intent_and_the_successors_of_its_segment() -> None:
    half, low, high = KEY_SPACE // 2, SealedSuccessor(2, 0, 9), SealedSuccessor(3, 9, KEY_SPACE)
    intent = Intent(2, "committed", (0, 1), (Successor(2, 0, 9, "x"), Successor(3, 9, KEY_SPACE)))
    whole = SealedIntent(2, (0, 1), (low, high))
    assert intents.seal_of(intent, KeyRange(0, half)) == Seal((2, 3), ((0, 9), (9, KEY_SPACE)), whole)
    assert intents.seal_of(intent, KeyRange(half, KEY_SPACE)) == Seal((3,), ((9, KEY_SPACE),), whole)


def test_what_a_seal_proves_is_committed_in_all_of_its_segments() -> None:
    found = resumed({0: open_record(LEFT), 1: open_record(RIGHT)})
    committed = Intent(5, "committed", (0, 1), (Successor(5, 0, KEY_SPACE),))
    assert {number: record.intent for number, record in found.items()} == {0: committed, 1: committed}


def test_plans_against_a_seal_are_undone_in_all_of_their_segments() -> None:
    whole, third = KeyRange(0, RIGHT.high - 9), KeyRange(RIGHT.high - 9, KEY_SPACE)
    plan = Intent(4, "planned", (1, 2), (Successor(4, RIGHT.low, KEY_SPACE),))
    records = {
        0: open_record(LEFT),
        1: open_record(KeyRange(RIGHT.low, whole.high), plan),
        2: open_record(third, plan),
    }
    found = resumed(records)
    assert found[0].intent == found[1].intent
    assert found[1].intent is not None
    assert (found[1].intent.id, found[2].intent) == (5, None)


@pytest.mark.parametrize(
    "other",
    [
        None,
        replace(open_record(RIGHT).record, state="sealed", owner=None, successors=(9,), end_offset=0, sealed_us=0),
        open_record(RIGHT, Intent(9, "committed", (1,), (Successor(9, RIGHT.low, RIGHT.high),))).record,
    ],
)
def test_a_seal_is_not_carried_out_against_what_has_happened(other: SegmentRecord | None) -> None:
    records = {0: open_record(LEFT)} | ({1: Versioned(other, 3)} if other else {})
    with pytest.raises(SegmentConflict, match="but another split or merge replaced, or will replace, segment 1"):
        intents.resume(TOPIC, records, MERGE)


@pytest.mark.brokers
@pytest.mark.parametrize("strays", [False, True])
async def test_a_merge_that_was_sealed_by_half_is_finished_from_the_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strays: bool
) -> None:
    """Its owner dies, and coordination goes back to before the plan; the id of its successor was given out again."""
    seal = Flusher.seal

    async def the_first_alone(self: Flusher, segment: OpenSegment, what: Seal) -> None:
        if segment.id == 1:
            await asyncio.Event().wait()
        await seal(self, segment, what)

    names = [next(k for k in map(str, range(99)) if keys.low <= hash_key(k) < keys.high) for keys in (LEFT, RIGHT)]
    monkeypatch.setattr(Rebalancer, "rebalance", nothing)
    async with in_loop(tmp_path, 3) as together:
        one, two, three = together.brokers
        await make_topic(one, segments=2)
        topic = inside.topic(one, "t")
        await together.see()
        for broker in (two, three):
            await until(lambda b=broker: (t := inside.catalog(b).get("t")) and len(inside.catalog(b).segments(t)) == 2)
        for number, record in inside.catalog(one).segments(topic).items():
            if record.owner != one.id:
                (owner,) = (broker for broker in (two, three) if broker.id == record.owner)
                assert await inside.mover(owner).move(inside.topic(owner, "t"), number, one.id)
                await until(lambda n=number: inside.catalog(one).segment(topic, n).record.owner == one.id)
        for name in names:
            await inside.publisher(one).single(topic, single("1", name), None)
        await inside.positions(one).positions(topic, flush=True)
        before = {number: inside.catalog(one).segment(topic, number) for number in (0, 1)}
        monkeypatch.setattr(Flusher, "seal", the_first_alone)
        intent = await inside.planner(one).plan(topic, [0, 1])
        await until(lambda: (opened := topic.opened.get(0)) and opened.sealed)
        monkeypatch.setattr(Flusher, "seal", seal)
        counter = keys.COUNTERS.key("t")
        puts = [Put(counter, keys.COUNTERS.encode(Versioned.new(Counter(intent.id))))]
        for number, owner in zip((0, 1), (two, three) if strays else (one, one), strict=True):
            record = before[number].record
            given = replace(record, owner=owner.id, term=(1, record.term[1] + (owner is not one)))
            key = keys.SEGMENTS.key("t", topic.record.incarnation, number)
            puts.append(Put(key, keys.SEGMENTS.encode(before[number].with_record(given))))
        together.coordination.went_back = True
        await together.coordination.commit([], puts)
        await together.crash(one)
        there = inside.topic(two, "t")
        for name in names:
            assert (await inside.publisher(two).single(there, single("2", name), None))[0] == intent.id
        records = inside.catalog(two).segments(there)
        assert {number: (record.state, record.successors) for number, record in records.items()} == {
            0: ("sealed", (intent.id,)),
            1: ("sealed", (intent.id,)),
            intent.id: ("open", ()),
        }
        for number in (0, 1):
            chain = Chain(together.store, "t", number)
            await chain.open()
            assert chain.last is not None
            assert chain.last.intent == intents.seal_of(intent, LEFT).intent
            assert chain.end == 1
        found = await together.coordination.get(counter)
        assert isinstance(found, Entry)
        assert record_of(keys.COUNTERS, found.value).next == intent.id + 1


async def nothing(*_: object) -> None:
    pass
