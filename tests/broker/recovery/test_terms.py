"""What a segment's owners write has their terms, and so has what a recovery writes for them. A recovery tells by terms
whether rows of its journal are in the chain, have to be appended, or would be lost."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.errors import JournalDamaged
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryMetadata
from seaweedq.segments.frames import Frame, FrameKind
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import rows_of_singles
from seaweedq.segments.terms import FIRST_TERM, Term
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.held_lookups import HeldStore
from tests.support.brokers.in_process import Gate, make_topic, publish, single
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.journal.claims import committed, replay_of

pytestmark = pytest.mark.brokers


async def entries(together: InLoop, segment: int = 0) -> list[EntryMetadata]:
    chain = Chain(together.store, "t", segment)
    await chain.open()
    return [chain.metadata(name) for name in await chain.names()]


def owner(broker: Broker, segment: int = 0) -> tuple[tuple[int, int], str | None]:
    """The term and the owner of a segment, as a broker knows them."""
    record = inside.catalog(broker).segment(inside.topic(broker, "t"), segment).record
    return record.term, record.owner


async def test_entries_have_the_terms_of_owners_and_not_of_those_who_write_them(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2, journal="object") as together:
        one, two = together.brokers
        topic = await make_topic(one)
        assert owner(one) == ((1, 1), one.id)
        await publish(one, topic, "1")
        assert await inside.mover(one).move(topic, 0, two.id)
        assert owner(one) == ((1, 2), two.id)
        await until(lambda: inside.catalog(two).get("t") and owner(two) == ((1, 2), two.id))
        there = inside.topic(two, "t")
        await publish(two, there, "2")
        await inside.positions(two).positions(there, flush=True)
        await publish(two, there, "3")  # in the journal alone
        await together.crash(two)
        await until(lambda: owner(one) == ((1, 3), one.id))
        await publish(one, topic, "4")
        await inside.positions(one).positions(topic, flush=True)
        found = await entries(together)
    mine, theirs, again = (1, 1), (1, 2), (1, 3)
    assert [(one.term, one.first_offset, one.since) for one in found] == [
        (mine, 0, 0),
        (mine, 0, 0),
        (theirs, 1, 1),
        (theirs, 2, 1),
        (again, 3, 3),
    ]
    assert [each.owner for each in found] == [one.id, one.id, two.id, two.id, one.id]
    assert [each.broker for each in found] == [one.id, one.id, two.id, one.id, one.id], "a recovery has written one"


async def test_segments_begin_in_the_present_generation(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (one,) = together.brokers
        inside.catalog(one).generation = 4
        topic = await make_topic(one, segments=2)
        assert [owner(one, number) for number in (0, 1)] == [((4, 1), one.id)] * 2
        await inside.planner(one).plan(topic, [0], [1 << 29])
        await until(lambda: len(inside.catalog(one).segments(topic)) == 4)
        assert [owner(one, number) for number in (0, 2, 3)] == [((4, 1), None), *[((4, 1), one.id)] * 2]
        assert [each.term for each in await entries(together)] == [(4, 1)] * 2


def rows(topic: Topic, first: int, term: Term = FIRST_TERM, text: str = "1") -> Frame:
    """A frame of one row."""
    batch = rows_of_singles([single(text)], topic.layout)
    return Frame(FrameKind.ROWS, topic.name, 0, first, 1, mask_of(batch), 0, (), 1, batch.serialize(), term)


async def known(broker: Broker, who: str | None) -> Topic:
    """The topic, once a broker knows of this owner of its segment."""
    await until(lambda: inside.catalog(broker).get("t") and owner(broker)[1] == who)
    return inside.topic(broker, "t")


async def flush(broker: Broker) -> None:
    await inside.positions(broker).positions(inside.topic(broker, "t"), flush=True)


async def test_rows_of_segments_that_moved_are_looked_for_in_their_chains(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        one, two = together.brokers
        topic = await make_topic(one)
        for text in ("1", "2"):
            await publish(one, topic, text)
            await flush(one)
        assert await inside.mover(one).move(topic, 0, two.id)
        there = await known(two, two.id)
        await publish(two, there, "3")
        assert await inside.mover(two).move(there, 0, one.id)
        await known(one, one.id)
        await publish(one, topic, "4")
        await flush(one)
        replay = replay_of(one)
        mine = [rows(topic, 0), rows(topic, 1), rows(topic, 3, (1, 3))]
        assert (await replay.replay(one.id, committed(mine))).rows == 0
        assert (await replay.replay(two.id, committed([rows(topic, 2, (1, 2))]))).rows == 0
        failed = rows(topic, 3, (1, 2))  # before the move back
        assert (await replay.replay(two.id, committed([failed]))).rows == 0
        for broker, frame in ((one, rows(topic, 3, (1, 4))), (two, rows(topic, 1, (1, 2)))):
            with pytest.raises(
                JournalDamaged, match="would be lost: the segment's files contain other rows at these offsets"
            ):
                await replay.replay(broker.id, committed([frame]))
        more = rows(topic, 4, (1, 3))
        assert (await replay.replay(one.id, committed([*mine, more]))).rows == 1
        with pytest.raises(
            JournalDamaged, match=f"end at offset 5, in term 1-3 .{one.id}., and the segment's record states term 1-3"
        ):
            await replay.replay(one.id, committed([rows(topic, 5, (1, 4))]))


async def test_rows_that_another_history_has_overwritten_are_damage_and_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Coordination went back to before the segment was given to the broker that took them."""
    async with in_loop(tmp_path, 2, journal="object") as together:
        one, two = together.brokers
        topic = await make_topic(one)
        assert await inside.mover(one).move(topic, 0, two.id)
        await publish(two, await known(two, two.id), "lost")
        for broker in together.brokers:
            inside.catalog(broker).generation = 2
        key = keys.SEGMENTS.key("t", topic.record.incarnation, 0)
        forgotten = inside.catalog(one).segment(topic, 0)
        given = forgotten.with_record(replace(forgotten.record, owner=one.id, term=(2, 3)))
        await together.coordination.commit([], [Put(key, keys.SEGMENTS.encode(given))])
        await known(one, one.id)
        await publish(one, topic, "other")
        await flush(one)
        journal = f"_journals/{two.id}/00000000"
        assert journal in together.store.objects
        await together.crash(two)
        await until(lambda: "has not been recovered yet" in caplog.text)
        assert journal in together.store.objects
        assert two.id in inside.roster(one).journals
        assert "rows 0 to 0 of topics/t/segment=0/, written in" in caplog.text
        assert f"in term 1-2 ({two.id})" in caplog.text
        assert f"in term 2-3 ({one.id})" in caplog.text


async def test_a_segment_that_changes_hands_meanwhile_is_no_damage(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 3, store=HeldStore()) as together:
        one, two, three = together.brokers
        topic = await make_topic(two)
        here = await known(one, two.id)
        await deaf(one)
        gate = Gate()
        replaying = asyncio.create_task(replay_of(one).replay(two.id, committed([rows(topic, 0, text="refused")])))
        together.store.who, together.store.gate = None, gate
        await gate.reached.wait()  # it has read the record, and not yet the chain
        together.store.gate = None
        assert await inside.mover(two).move(topic, 0, three.id)
        await publish(three, await known(three, three.id), "taken")
        await flush(three)
        assert owner(one) == ((1, 1), two.id), "it has not heard of it"
        gate.open.set()
        assert (await replaying).rows == 0
        assert owner(one) == ((1, 2), three.id)
        assert here is inside.topic(one, "t")
