"""Each invariant of topics and segments: who breaks it is refused, and nothing is written."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.topics.invariants import broken_in_topic, check_writes
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Put, read_all
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import Intent, SegmentRecord, Successor, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import SeaweedqError
from seaweedq.segments.keyrange import KEY_SPACE, tile
from seaweedq.segments.terms import FIRST_GENERATION, next_term

TOPIC = TopicRecord(3, "active", TopicConfig(), 0)
FIRST, MIDDLE = tile(4)[0], tile(4)[1]
PLANNED = Intent(4, "planned", (0, 1), (Successor(4, 0, 9), Successor(5, 9, MIDDLE.high)))
COMMITTED = replace(PLANNED, state="committed")
Changed = Mapping[int, SegmentRecord | None]


def plain() -> dict[int, SegmentRecord]:
    return {n: SegmentRecord(r.low, r.high, "open", (), (), "x", None, 0) for n, r in enumerate(tile(4))}


def with_intent(intent: Intent) -> dict[int, SegmentRecord]:
    records = plain()
    return records | {n: replace(records[n], intent=intent) for n in intent.segments}


def replaced() -> dict[int, SegmentRecord]:
    """Segments 0 and 1 are sealed, 4 and 5 open in their place."""
    records = with_intent(COMMITTED)
    for n, successors in ((0, (4, 5)), (1, (5,))):
        records[n] = replace(
            records[n], state="sealed", owner=None, successors=successors, end_offset=7, sealed_us=1, intent=None
        )
    records[4] = SegmentRecord(0, 9, "open", (0,), (), "x", None, 1)
    records[5] = SegmentRecord(9, MIDDLE.high, "open", (0, 1), (), "x", None, 1)
    return records


class World:
    """A catalogue of one topic with these segments."""

    def __init__(self, records: dict[int, SegmentRecord]) -> None:
        self.records = records
        self.coordination = MemoryCoordination(SystemClock())
        self.catalog = Catalog(self.coordination, lambda topic: None)

    async def load(self) -> "World":
        writes = [Put(keys.TOPICS.key("t"), keys.TOPICS.encode(Versioned.new(TOPIC))), *self.puts(self.records)]
        self.revision = await self.coordination.commit([], writes)
        await self.catalog.load()
        return self

    def key(self, number: int) -> str:
        return keys.SEGMENTS.key("t", 3, number)

    def puts(self, changed: Changed) -> list[Put | Delete]:
        return [
            Put(self.key(n), keys.SEGMENTS.encode(Versioned.new(record))) if record else Delete(self.key(n))
            for n, record in changed.items()
        ]

    async def commit(self, changed: Changed) -> int | None:
        compares = [Compare(self.key(n), self.revision if n in self.records else 0) for n in changed]
        return await self.catalog.commit(compares, self.puts(changed))

    async def there(self) -> list[tuple[str, bytes]]:
        entries, _ = await read_all(self.coordination, "")
        return [(entry.key, entry.value) for entry in entries]


def changed(records: dict[int, SegmentRecord], **by: Any) -> dict[int, SegmentRecord]:
    """Segment 0 with other fields."""
    return {0: replace(records[0], **by)}


def given(record: SegmentRecord) -> SegmentRecord:
    """Another owner, in the next term."""
    return replace(record, owner="y", term=next_term(record.term, FIRST_GENERATION))


REFUSED: dict[str, tuple[dict[int, SegmentRecord], Changed, str]] = {
    "an open segment goes": (plain(), {0: None}, "do not hold the keys"),
    "a gap": (plain(), {0: None, 4: SegmentRecord(1, FIRST.high, "open", (0,), (), "x", None, 0)}, "do not hold"),
    "an overlap": (plain(), {4: SegmentRecord(0, 9, "open", (0,), (), "x", None, 0)}, "do not hold the keys"),
    "a successor is missing": (with_intent(COMMITTED), {n: replaced()[n] for n in (0, 1, 4)}, "do not hold the keys"),
    "another range": (plain(), changed(plain(), high=FIRST.high - 1), "changes its high"),
    "an empty range": (plain(), {4: SegmentRecord(9, 9, "open", (), (), "x", None, 0)}, "has the range"),
    "a range outside": (plain(), {4: SegmentRecord(9, KEY_SPACE + 1, "open", (), (), "x", None, 0)}, "has the range"),
    "cuts outside": (plain(), {4: SegmentRecord(0, 9, "open", (), (), "x", None, 0, cuts=(9,))}, "inner bounds"),
    "cuts that change": (plain(), changed(plain(), cuts=(5,)), "changes its cuts"),
    "other predecessors": (replaced(), {4: replace(replaced()[4], predecessors=(1,))}, "changes its predecessors"),
    "a predecessor after it": (plain(), {4: SegmentRecord(0, 9, "open", (5,), (), "x", None, 0)}, "predecessors"),
    "a successor before it": (
        with_intent(COMMITTED),
        replaced() | {1: replace(replaced()[1], successors=(0,))},
        "ids are not above",
    ),
    "an end without a seal": (plain(), changed(plain(), end_offset=5), "is open, with end 5"),
    "a time of a seal without one": (plain(), changed(plain(), sealed_us=5), "sealed at 5"),
    "a seal without an end": (
        with_intent(COMMITTED),
        replaced() | {0: replace(replaced()[0], end_offset=None)},
        "is sealed, with end None",
    ),
    "an end below the start": (
        with_intent(COMMITTED),
        replaced() | {0: replace(replaced()[0], end_offset=-1)},
        "at -1",
    ),
    "a sealed one with an owner": (
        with_intent(COMMITTED),
        replaced() | {0: replace(replaced()[0], owner="x")},
        "with owner x",
    ),
    "successors of an open one": (plain(), changed(plain(), successors=(7,)), "is open, with successors"),
    "successors that were not planned": (
        with_intent(COMMITTED),
        replaced() | {0: replace(replaced()[0], successors=(4, 6))},
        "that its intent does not have",
    ),
    "another owner in the same term": (plain(), changed(plain(), owner="y"), "behind (1, 1) of x"),
    "another owner in an earlier generation": (
        plain() | changed(plain(), term=(2, 1)),
        changed(plain(), owner="y", term=(1, 2)),
        "has the term (1, 2) of y",
    ),
    "the same owner in another term": (plain(), changed(plain(), term=(1, 2)), "has the term (1, 2)"),
    "a sealed one in another term": (
        with_intent(COMMITTED),
        replaced() | {0: replace(replaced()[0], term=(1, 2))},
        "has the term (1, 2) of None",
    ),
    "a sealed one is open again": (replaced(), {0: plain()[0]}, "is sealed, and changes"),
    "an end falls": (replaced(), {0: replace(replaced()[0], end_offset=6)}, "is sealed, and changes"),
    "a seal before the commit": (with_intent(PLANNED), replaced(), "sealed without a committed intent"),
    "an intent in one of two": (plain(), {0: with_intent(PLANNED)[0]}, "but not that of"),
    "an intent undone in one of two": (with_intent(PLANNED), {0: plain()[0]}, "but not that of"),
    "an intent committed in one of two": (with_intent(PLANNED), {1: with_intent(COMMITTED)[1]}, "but not that of"),
    "two intents for two": (
        plain(),
        {
            0: with_intent(PLANNED)[0],
            1: replace(plain()[1], intent=replace(PLANNED, successors=PLANNED.successors[:1])),
        },
        "different intents",
    ),
    "an intent of others": (plain(), {2: replace(plain()[2], intent=PLANNED)}, "is one of segments"),
    "a committed intent undone": (with_intent(COMMITTED), {n: plain()[n] for n in (0, 1)}, "loses a committed intent"),
    "a committed intent planned": (with_intent(COMMITTED), with_intent(PLANNED), "loses a committed intent"),
    "an intent committed at once": (plain(), {n: with_intent(COMMITTED)[n] for n in (0, 1)}, "committed at once"),
    "another intent": (
        with_intent(PLANNED),
        {n: replace(plain()[n], intent=replace(PLANNED, successors=PLANNED.successors[:1])) for n in (0, 1)},
        "changes its intent",
    ),
    "an intent with a gap": (
        plain(),
        {
            n: replace(plain()[n], intent=replace(PLANNED, successors=(Successor(4, 0, 8), Successor(5, 9, 10))))
            for n in (0, 1)
        },
        "gaps or overlaps",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_breaks_an_invariant_is_refused(what: str, caplog: pytest.LogCaptureFixture) -> None:
    records, change, told = REFUSED[what]
    world = await World(records).load()
    before = await world.there()
    with caplog.at_level(logging.ERROR), pytest.raises(SeaweedqError):
        await world.commit(change)
    assert await world.there() == before
    assert told in caplog.text
    assert "segments/t/" in caplog.text, "the log has the writes, for a diagnosis"
    await world.commit({3: given(records[3])})
    assert world.catalog.segments(world.catalog.topic("t"))[3].owner == "y", "the other segments go on"


TAKEN: dict[str, tuple[dict[int, SegmentRecord], Changed]] = {
    "a move": (plain(), {0: given(plain()[0])}),
    "a move of one whose intent is committed": (
        with_intent(COMMITTED),
        {0: given(with_intent(COMMITTED)[0])},
    ),
    "the same once more": (replaced(), {0: replaced()[0]}),
    "a plan": (plain(), {n: with_intent(PLANNED)[n] for n in (0, 1)}),
    "its undoing": (with_intent(PLANNED), {n: plain()[n] for n in (0, 1)}),
    "its commitment": (with_intent(PLANNED), {n: with_intent(COMMITTED)[n] for n in (0, 1)}),
    "its end": (with_intent(COMMITTED), {n: replaced()[n] for n in (0, 1, 4, 5)}),
    "a sealed one is removed": (replaced(), {0: None}),
}


@pytest.mark.parametrize("what", TAKEN)
async def test_what_breaks_none_is_taken(what: str) -> None:
    records, change = TAKEN[what]
    world = await World(records).load()
    assert await world.commit(change)
    assert broken_in_topic(world.catalog.segments(world.catalog.topic("t"))) == []


async def test_a_deleted_topics_records_go_in_pages_also_amid_an_intent() -> None:
    world = await World(with_intent(PLANNED)).load()
    key, there = keys.TOPICS.key("t"), replace(TOPIC, state="deleting")
    await world.catalog.commit([Compare(key, world.revision)], [Put(key, keys.TOPICS.encode(Versioned.new(there)))])
    for page in ((0,), (1, 2), (3,)):
        assert await world.catalog.commit([], [Delete(world.key(n)) for n in page])
    assert [key for key, _ in await world.there()] == [key]


async def test_what_was_broken_before_stops_nothing_that_follows() -> None:
    records = plain() | {0: replace(plain()[0], end_offset=5)}
    world = await World(records).load()
    assert await world.commit({0: given(records[0])})


async def test_who_knows_an_older_record_is_told_by_coordination_alone() -> None:
    world = await World(plain()).load()
    late = Catalog(world.coordination, lambda topic: None)
    await late.load()
    await world.commit({n: with_intent(PLANNED)[n] for n in (0, 1)})
    compares = [Compare(world.key(0), world.revision + 1)]
    assert await late.commit(compares, world.puts({0: None})), "what it compares is not what it knows: no verdict"


TOPICS = {
    "its incarnation falls": (replace(TOPIC, incarnation=2), "incarnation falls"),
    "its creation is another one": (replace(TOPIC, created_us=9), "time of creation"),
    "it goes while it is active": (None, "active topic goes"),
    "a version that was not pending": (replace(TOPIC, config=TopicConfig(schema={"schema-id": 1})), "not pending"),
    "other columns of a version": (replace(TOPIC, config=TopicConfig(columns="b")), "gets other columns"),
    "a version that is not the next": (replace(TOPIC, pending=2), "pending behind 0"),
}


@pytest.mark.parametrize("what", TOPICS)
async def test_what_breaks_an_invariant_of_a_topic_is_refused(what: str, caplog: pytest.LogCaptureFixture) -> None:
    record, told = TOPICS[what]
    world = await World(plain()).load()
    key = keys.TOPICS.key("t")
    write = Put(key, keys.TOPICS.encode(Versioned.new(record))) if record else Delete(key)
    with pytest.raises(SeaweedqError, match=told):
        await world.catalog.commit([Compare(key, world.revision)], [write])
    assert await world.coordination.get(key)


async def test_a_topic_that_is_being_deleted_stays_so() -> None:
    world = await World(plain()).load()
    key = keys.TOPICS.key("t")
    deleting = Put(key, keys.TOPICS.encode(Versioned.new(replace(TOPIC, state="deleting"))))
    revision = await world.catalog.commit([Compare(key, world.revision)], [deleting])
    assert revision
    with pytest.raises(SeaweedqError, match="active again"):
        await world.catalog.commit([Compare(key, revision)], [Put(key, keys.TOPICS.encode(Versioned.new(TOPIC)))])
    assert await world.catalog.commit([], world.puts(dict.fromkeys(plain()))), "its segments may go"
    assert await world.catalog.commit([Compare(key, revision)], [Delete(key)])


def test_a_whole_topic_is_judged_by_all_its_segments() -> None:
    assert broken_in_topic(replaced()) == []
    assert broken_in_topic({n: record for n, record in replaced().items() if n != 3}) != []
    assert broken_in_topic(with_intent(PLANNED) | {1: plain()[1]}) != []
    assert broken_in_topic(replaced() | {4: replace(replaced()[4], predecessors=())}) != []


class Counting(dict[int, Versioned[SegmentRecord]]):
    """Segment records that count how many of them were looked at."""

    looks = 0

    def __getitem__(self, number: int) -> Versioned[SegmentRecord]:
        self.looks += 1
        return super().__getitem__(number)


def test_a_transaction_on_two_of_many_segments_looks_at_those_alone() -> None:
    many = Counting()
    for n, r in enumerate(tile(10_000)):
        many[n] = Versioned(SegmentRecord(r.low, r.high, "open", (), (), "x", None, 0), 1)
    low, high = many[5000].record.low, many[5001].record.high
    intent = Intent(10_000, "planned", (5000, 5001), (Successor(10_000, low, high),))
    writes = [
        Put(keys.SEGMENTS.key("t", 3, n), keys.SEGMENTS.encode(Versioned.new(replace(many[n].record, intent=intent))))
        for n in intent.segments
    ]
    many.looks = 0
    check_writes([Compare(put.key, 1) for put in writes], writes, lambda name: Versioned(TOPIC, 1), lambda *_: many)
    assert many.looks <= 4
