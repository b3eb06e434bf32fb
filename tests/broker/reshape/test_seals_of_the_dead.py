"""An owner that is believed dead seals nothing but what another sealed already, and commits no plan that is not its."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.log.entry_writer import Source
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.recovery import replay as recover
from seaweedq.broker.reshape.reshaper import Sealer
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import Intent, TopicConfig
from seaweedq.errors import Fenced
from seaweedq.segments.chain import Chain
from seaweedq.segments.frames import Frame, FrameKind
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.segments.terms import FIRST_TERM
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.journal.claims import committed, replay_of

pytestmark = pytest.mark.brokers


def message(broker: Broker) -> Single:
    return Single("k", b"1", None, broker.process.clock.now_us(), None)


async def test_a_half_recovered_journal_does_not_seal_what_is_there_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(recover, "BATCH_BYTES", 1)
    monkeypatch.setattr(Sealer, "flush_ahead", nothing)
    fenced: list[Fenced] = []
    seal_one = Sealer._seal_one
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        one = message(broker)
        for offset in (0, 1):
            assert await inside.publisher(broker).single(topic, one, None) == (0, offset, False)
        rows = rows_of_singles([one], topic.layout)
        frames = [
            Frame(
                FrameKind.ROWS, "t", 0, first, 1, mask_of(rows), 0, (), one.timestamp_us, rows.serialize(), FIRST_TERM
            )
            for first in (0, 1)
        ]
        recovery = replay_of(broker)

        async def behind_a_first_entry(self: Sealer, topic: Topic, intent: Intent, segment: OpenSegment, *now: int):
            chain = Chain(together.store, "t", 0)
            await chain.open()
            if not fenced and chain.end == 0:  # a recovery has put its first entry; a second one is to follow
                record = inside.catalog(broker).segment(topic, 0).record
                await privates.append_entry(recovery)(
                    Source.from_record("t", 0, record, topic.layout), chain, frames[:1], lambda _: False
                )
            try:
                await seal_one(self, topic, intent, segment, *now)
            except Fenced as error:
                fenced.append(error)
                raise

        monkeypatch.setattr(Sealer, "_seal_one", behind_a_first_entry)
        await inside.planner(broker).plan(topic, [0], [1 << 30])
        await until(lambda: len(fenced) >= 1)
        await recovery.replay(broker.id, committed(frames))
        chain = Chain(together.store, "t", 0)
        await chain.open()
        assert chain.end == 2
        assert chain.last is not None
        assert chain.last.seal is None
        monkeypatch.undo()


async def test_a_plan_that_a_move_has_undone_meanwhile_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush_ahead = Sealer.flush_ahead
    moved = asyncio.Event()
    async with in_loop(tmp_path, 2) as together:
        one, two = together.brokers
        await inside.topic_admin(one).create("t", TopicConfig())
        mine = inside.topic(one, "t")
        assert inside.catalog(one).segment(mine, 0).record.owner == one.id
        await inside.publisher(one).single(mine, message(one), None)

        async def beside_a_move(self: Sealer, segment: OpenSegment) -> None:
            await flush_ahead(self, segment)
            if self is privates.sealer(inside.reshaper(one)) and not moved.is_set():
                assert await inside.mover(one).move(mine, 0, two.id)
                moved.set()

        monkeypatch.setattr(Sealer, "flush_ahead", beside_a_move)
        await inside.planner(one).plan(mine, [0], [1 << 30])
        await moved.wait()
        await until(lambda: not inside.reshaper(one).under_way)
        await inside.catalog(two).load()
        records = inside.catalog(two).segments(inside.topic(two, "t"))
        assert list(records) == [0]
        assert (records[0].owner, records[0].intent) == (two.id, None)
