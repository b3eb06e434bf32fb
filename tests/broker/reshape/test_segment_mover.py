"""Segments that change hands while they are being opened, deleted, or lost: nothing is taken by who has it no more."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import Fenced, JournalUnavailable, TopicBeingDeleted
from seaweedq.segments.frames import Frame
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.held_lookups import HeldStore
from tests.support.brokers.in_process import Gate, make_topic, publish, single
from tests.support.brokers.in_process_cluster import in_loop, until

pytestmark = pytest.mark.brokers


async def topic_at(broker: Broker, name: str = "t") -> Topic:
    await until(lambda: (found := inside.catalog(broker).get(name)) and inside.catalog(broker).records(found))
    return inside.topic(broker, name)


def owner(broker: Broker, topic: Topic, segment: int = 0) -> str | None:
    return inside.catalog(broker).segment(topic, segment).record.owner


async def read_all(broker: Broker, topic: Topic) -> list[bytes]:
    segment = await inside.ownership(broker).opened(topic, 0)
    pieces = await inside.reader(broker).read(segment, 0, 1000, 2**30)
    return [value.as_py().encode() for _, rows in pieces for value in rows.column("value")]


async def test_a_segment_opened_while_it_is_given_away_takes_nothing_here(tmp_path: Path) -> None:
    async with in_loop(tmp_path, store=HeldStore()) as together:
        one, two = together.brokers
        await inside.topic_admin(one).create("t", TopicConfig())
        topic = inside.topic(one, "t")
        gate = Gate()
        together.store.gate = gate
        publishing = asyncio.create_task(inside.publisher(one).single(topic, single("1"), None))
        await gate.reached.wait()
        together.store.gate = None
        holding = Gate()
        together.coordination.before = holding
        giving = asyncio.create_task(inside.mover(one).move(topic, 0, two.id))
        await holding.reached.wait()
        gate.open.set()
        await asyncio.sleep(0.1)
        assert not topic.opened, "it is on its way to another broker"
        holding.open.set()
        assert await giving
        assert (await publishing)[1] == 0
        await publish(one, topic, "2")
        assert await read_all(two, await topic_at(two)) == [b"1", b"2"]


async def test_a_segment_that_was_away_while_it_was_opened_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, store=HeldStore()) as together:
        one, two = together.brokers
        await inside.topic_admin(one).create("t", TopicConfig())
        topic = inside.topic(one, "t")
        chain_end = Gate()
        original = privates.open(inside.ownership(one))

        async def slow(topic: Topic, number: int, revision: int) -> object:
            opened = await original(topic, number, revision)
            await chain_end()
            return opened

        monkeypatch.setattr(inside.ownership(one), "_open", slow)
        opening = asyncio.create_task(inside.ownership(one).mine(topic))
        await chain_end.reached.wait()
        assert await inside.mover(one).move(topic, 0, two.id)
        there = await topic_at(two)
        await until(lambda: owner(two, there) == two.id)
        await publish(two, there, "1", "2")
        assert await inside.mover(two).move(there, 0, one.id)
        await until(lambda: owner(one, topic) == one.id)
        chain_end.open.set()
        await opening
        await publish(one, topic, "3")
        assert await read_all(one, topic) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_segment_whose_failed_commit_may_come_back_does_not_move(tmp_path: Path, is_open: bool) -> None:
    """A recovery would bring it back behind what the next owner has taken, should the segment return."""
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        await inside.topic_admin(one).create("t", TopicConfig())
        topic = inside.topic(one, "t")
        if is_open:
            await publish(one, topic, "1")

        async def settle() -> None:
            raise JournalUnavailable("as told")

        inside.journal(one).discard_failed = settle  # type: ignore[method-assign]
        with pytest.raises(JournalUnavailable):
            await inside.mover(one).move(topic, 0, two.id)
        assert owner(one, topic) == one.id
        await publish(one, topic, "2")
        del inside.journal(one).discard_failed
        assert await inside.mover(one).move(topic, 0, two.id)


async def test_a_move_that_fails_reopens_nothing_that_was_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        topic = await make_topic(one)
        segment = topic.opened[0]
        deleted = TopicBeingDeleted("gone", topic="t")

        async def settle(_: object) -> None:
            segment.close(deleted)
            raise Fenced("lost")

        monkeypatch.setattr(inside.mover(one), "_flush_all", settle)
        with pytest.raises(Fenced):
            await inside.mover(one).move(topic, 0, two.id)
        assert segment.closed is deleted


async def test_a_segment_is_given_neither_to_its_owner_nor_to_who_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        topic = await make_topic(one)
        assert not await inside.mover(one).move(topic, 0, one.id)
        await publish(one, topic, "1")

        async def settle(_: object) -> None:
            if two.process.url in together.apps:
                await together.crash(two)
            await until(lambda: not inside.roster(one).alive(two.id))

        monkeypatch.setattr(inside.mover(one), "_flush_all", settle)
        assert not await inside.mover(one).move(topic, 0, two.id)
        await publish(one, topic, "2")
        assert await read_all(one, topic) == [b"1", b"2"]


async def test_frames_of_a_segment_that_has_moved_since_are_none_of_its_recovery(tmp_path: Path) -> None:
    """A commit that failed may still be in the file; by then its offsets are another's to give out."""
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        topic = await make_topic(two)
        written = inside.journal(two).append

        async def fails_late(frames: Sequence[Frame]) -> int:
            await written(frames)
            raise JournalUnavailable("fsync")

        inside.journal(two).append = fails_late  # type: ignore[method-assign]
        with pytest.raises(JournalUnavailable):
            await publish(two, topic, '"refused"')
        assert await inside.mover(two).move(topic, 0, one.id)
        here = await topic_at(one)
        await until(lambda: owner(one, here) == one.id)
        await publish(one, here, '"taken"')
        await together.crash(two)
        await until(lambda: two.id not in inside.roster(one).journals)
        await inside.positions(one).positions(here, flush=True)
        assert await read_all(one, here) == [b'"taken"']
