"""A commit that failed just before the seal may still be on the disk: recovery does not bring it behind the seal."""

from pathlib import Path

from seaweedq.broker.reshape.reshaper import Replacer
from seaweedq.coordination.records.topics import TopicConfig
from seaweedq.segments.chain import Chain
from seaweedq.segments.frames import Frame, FrameKind
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import Single, rows_of_singles
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.journal.claims import committed, replay_of


async def test_what_lies_beyond_a_seal_stays_out(tmp_path: Path, monkeypatch) -> None:
    async def never(*_: object) -> bool:
        return False

    monkeypatch.setattr(Replacer, "_replace", never)  # the seal is in the chain, and the owner dies before the records
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        message = Single("k", b"1", None, broker.process.clock.now_us(), None)
        await inside.publisher(broker).single(topic, message, None)
        await inside.planner(broker).plan(topic, [0], [1 << 30])
        chain = Chain(together.store, "t", 0)
        await until(lambda: (opened := topic.opened.get(0)) is not None and opened.sealed)
        rows = rows_of_singles([message], topic.layout)
        frames = [
            Frame(FrameKind.ROWS, "t", 0, first, 1, mask_of(rows), 0, (), message.timestamp_us, rows.serialize())
            for first in (0, 1)
        ]
        recovery = replay_of(broker)
        done = await recovery.replay(broker.id, committed(frames))
        assert done.rows == 0
        await chain.open()
        assert chain.end == 1
        assert chain.last is not None
        assert chain.last.seal is not None
