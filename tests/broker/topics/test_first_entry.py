"""The first owner of a segment in a generation, or behind one that died, puts an entry before it takes anything, and
finds a late seal."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import Counter, Intent
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryMetadata
from seaweedq.segments.terms import owes_entry
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, single
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.reshape.stores import LateStore, is_seal

MIDDLE = 1 << 30


@pytest.mark.parametrize(
    ("term", "last", "is_first"),
    [
        ((1, 1), None, False),
        ((1, 2), None, False),
        ((1, 2), (1, 1), False),
        ((2, 1), None, False),  # it was made in the second generation
        ((2, 2), None, True),
        ((2, 2), (1, 1), True),
        ((2, 3), (2, 2), False),
        ((4, 9), (2, 2), True),
    ],
)
def test_who_is_the_first_owner_in_a_generation(
    term: tuple[int, int], last: tuple[int, int] | None, is_first: bool
) -> None:
    assert owes_entry(term, last) is is_first


@pytest.mark.parametrize(
    ("last", "entry_from", "is_recovered", "owes"),
    [
        (None, 0, False, False),
        (None, 2, False, True),  # the owner that died has written nothing yet, as far as is known
        ((1, 3), 0, False, False),
        ((1, 3), 4, False, True),
        ((1, 3), 4, True, False),  # the name that the dead owner wants next is taken
        ((1, 3), 5, True, True),  # the one behind it has died as well
        ((1, 4), 4, False, False),
        ((1, 4), 4, True, False),
    ],
)
def test_who_owes_an_entry_behind_an_owner_that_died(
    last: tuple[int, int] | None, entry_from: int, is_recovered: bool, owes: bool
) -> None:
    assert owes_entry((1, 7), last, entry_from, is_recovered) is owes


@dataclass
class Forgotten:
    """A topic whose owner, now dead, has committed a split that coordination has forgotten. Its seal is on the way."""

    together: InLoop
    owner: Broker
    topic: Topic
    intent: Intent

    @property
    def store(self) -> LateStore:
        assert isinstance(self.together.store, LateStore)
        return self.together.store

    async def entries(self, segment: int = 0) -> list[EntryMetadata]:
        chain = Chain(self.store, "t", segment)
        await chain.open()
        return [chain.metadata(name) for name in await chain.names()]


@pytest.fixture(params=[2, 1], ids=["in the next generation", "with no sign of a return"])
async def forgotten(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Forgotten]:
    async with in_loop(tmp_path, 2, store=LateStore()) as together:
        one, two = together.brokers
        topic = await make_topic(one)
        await publish(one, topic, "1")
        await inside.positions(one).positions(topic, flush=True)
        before = inside.catalog(one).segment(topic, 0)
        assert isinstance(together.store, LateStore)
        together.store.hold(is_seal)
        intent = await inside.planner(one).plan(topic, [0], [MIDDLE])
        await until(lambda: together.store.late)  # type: ignore[attr-defined]
        key, counter = keys.SEGMENTS.key("t", topic.record.incarnation, 0), keys.COUNTERS.key("t")
        puts = [
            Put(key, keys.SEGMENTS.encode(before)),
            Put(counter, keys.COUNTERS.encode(Versioned.new(Counter(1_000_001)))),
        ]
        together.coordination.went_back = True
        await together.coordination.commit([], puts)
        inside.catalog(two).generation = request.param
        await together.crash(one)
        there = await inside.catalog(two).require("t")
        await until(lambda: inside.catalog(two).segment(there, 0).record.owner == two.id)
        yield Forgotten(together, two, there, intent)


@pytest.mark.brokers
async def test_a_seal_that_lands_behind_the_first_entry_finds_its_name_taken(forgotten: Forgotten) -> None:
    owner, topic = forgotten.owner, forgotten.topic
    await publish(owner, topic, "2")
    found = await forgotten.entries()
    second = inside.catalog(owner).generation, 2
    assert [(one.term, one.first_offset, one.next_offset) for one in found[-2:]] == [((1, 1), 0, 1), (second, 1, 1)]
    assert await forgotten.store.deliver() == [False]
    await publish(owner, topic, "3")
    await inside.positions(owner).positions(topic, flush=True)
    found = await forgotten.entries()
    assert (found[-1].term, found[-1].since, found[-1].next_offset, found[-1].seal) == (second, 1, 3, None)


@pytest.mark.brokers
@pytest.mark.parametrize("moment", ["before it is opened", "while the first entry is put"])
async def test_a_seal_that_lands_before_the_first_entry_is_carried_out(
    forgotten: Forgotten, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    owner, topic = forgotten.owner, forgotten.topic
    landed: list[bool] = []
    append = EntryWriter.append

    async def behind_the_seal(self: EntryWriter, *what: object) -> None:
        if not landed:
            landed.extend(await forgotten.store.deliver())
        await append(self, *what)  # type: ignore[arg-type]

    if moment == "before it is opened":
        landed.extend(await forgotten.store.deliver())
    else:
        monkeypatch.setattr(EntryWriter, "append", behind_the_seal)
    at = await inside.publisher(owner).single(topic, single("2", "k"), None)
    assert landed == [True]
    successors = [one.id for one in forgotten.intent.successors]
    assert at[0] in successors
    assert at[1] == 0
    record = inside.catalog(owner).segment(topic, 0).record
    assert (record.state, record.end_offset, list(record.successors)) == ("sealed", 1, successors)


@pytest.mark.brokers
@pytest.mark.parametrize("flush", [True, False], ids=["all in files", "some in the journal"])
async def test_behind_a_dead_owner_one_entry_is_put_in_all(tmp_path: Path, flush: bool) -> None:
    """By the recovery, if it has rows to append, or else by the next owner; a move, and a stop in order, need none."""
    async with in_loop(tmp_path, 3) as together:
        one, two, three = together.brokers
        topic = await make_topic(one)
        await publish(one, topic, "1")
        if flush:
            await inside.positions(one).positions(topic, flush=True)
        await together.crash(one)
        there = await inside.catalog(two).require("t")
        await until(lambda: inside.catalog(two).segment(there, 0).record.owner in (two.id, three.id))
        owner = two if inside.catalog(two).segment(there, 0).record.owner == two.id else three
        other = three if owner is two else two
        await until(lambda: inside.catalog(owner).get("t"))
        here = inside.topic(owner, "t")
        await inside.ownership(owner).opened(here, 0)
        chain = Chain(together.store, "t", 0)
        await chain.open()
        assert len(await chain.names()) == (3 if flush else 2)
        assert await inside.mover(owner).move(here, 0, other.id)
        await until(lambda: inside.catalog(other).get("t"))
        await inside.ownership(other).opened(inside.topic(other, "t"), 0)
        await chain.open()
        assert len(await chain.names()) == (3 if flush else 2)


@pytest.mark.brokers
async def test_an_empty_chain_of_an_earlier_generation_gets_an_entry(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        one, two = together.brokers
        topic = await make_topic(one, segments=2)
        for broker in together.brokers:
            inside.catalog(broker).generation = 2
        owner = one if inside.catalog(one).segment(topic, 1).record.owner == one.id else two
        other = two if owner is one else one
        await until(lambda: inside.catalog(owner).get("t"))
        here = inside.topic(owner, "t")
        await inside.ownership(owner).opened(here, 1)
        assert [name for name in together.store.objects if name.startswith("topics/t/segment=1/")] == []
        assert await inside.mover(owner).move(here, 1, other.id)
        there = await inside.catalog(other).require("t")
        await until(lambda: inside.catalog(other).segment(there, 1).record.owner == other.id)
        await inside.ownership(other).opened(there, 1)
        chain = Chain(together.store, "t", 1)
        await chain.open()
        assert chain.last is not None
        assert (chain.last.tenure, chain.end) == (((2, 2), other.id), 0)


@pytest.mark.brokers
async def test_within_a_generation_a_new_owner_puts_nothing(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        one, two = together.brokers
        topic = await make_topic(one)
        await publish(one, topic, "1")
        assert await inside.mover(one).move(topic, 0, two.id)
        there = await inside.catalog(two).require("t")
        await until(lambda: inside.catalog(two).segment(there, 0).record.owner == two.id)
        await inside.catalog(two).load()
        before = sorted(together.store.objects)
        await publish(two, there, "2")
        assert [name for name in sorted(together.store.objects) if name not in before and "topics/" in name] == []
        await together.crash(two)
        await until(lambda: inside.catalog(one).segment(topic, 0).record.owner == one.id)
        await asyncio.sleep(0)
        before = sorted(together.store.objects)
        await publish(one, topic, "3")
        assert [name for name in sorted(together.store.objects) if name not in before and "topics/" in name] == []
