"""What a segment's owners write has their terms, and so has what a recovery writes for them."""

from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryMetadata
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

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
