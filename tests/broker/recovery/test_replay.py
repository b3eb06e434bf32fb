"""A replay in batches: the same chains and cursors however small the batches are, and never more than one in memory.

A recovery reads the records of what the dead broker had, and no others; one that waits for its turn has fenced.

A commit that failed just before the seal may still be on the disk: recovery does not bring it behind the seal.
"""

import asyncio
from array import array
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from weakref import ref

import msgspec
import pytest
from msgspec.structs import replace

from seaweedq.broker.broker import Broker
from seaweedq.broker.recovery import replay
from seaweedq.broker.recovery.journal_recovery import REPLAYS
from seaweedq.broker.reshape.reshaper import Replacer
from seaweedq.broker.subscriptions.subscription import Acks
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Entry, Page, Put
from seaweedq.coordination.records import JournalRecord, TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalDamaged
from seaweedq.journal.interface import Claim
from seaweedq.segments.chain import Chain
from seaweedq.segments.frames import Commit, Frame, FrameKind
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.segments.terms import FIRST_TERM
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process import make_topic, running, subscribe
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.stored import record_of
from tests.support.journal.claims import committed, reading, replay_of

SEGMENTS = 3
COMMITS = 30


def rows(topic: Topic, segment: int, first: int, text: str = "1") -> Frame:
    batch = rows_of_singles([Single("k", text.encode(), None, 1, None)], topic.layout)
    payload: Any = array("B", batch.serialize().to_pybytes())  # bytes that a weak reference can point to
    return Frame(FrameKind.ROWS, topic.name, segment, first, 1, mask_of(batch), 0, (), 1, payload, FIRST_TERM)


def acks(topic: Topic, segment: int, epoch: int, offset: int) -> Frame:
    payload = msgspec.msgpack.encode(Acks("s", topic.record.incarnation, epoch, ((offset, offset + 1),)))
    return Frame(FrameKind.ACKS, topic.name, segment, 0, 0, 0, 0, (), 1, payload)


async def subscribed(broker: Broker) -> tuple[Topic, int]:
    """A topic, and the epoch of its subscription."""
    topic = await make_topic(broker, "t", SEGMENTS)
    await subscribe(broker, topic)
    record = await broker.process.coordination.get(keys.SUBSCRIPTIONS.key("t", topic.record.incarnation, "s"))
    assert record is not None
    return topic, record_of(keys.SUBSCRIPTIONS, record.value).epoch


@pytest.mark.parametrize("batch_bytes", [1, 3_000, 1 << 30])
async def test_chains_and_cursors_are_the_same_however_small_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    monkeypatch.setattr(replay, "BATCH_BYTES", batch_bytes)
    async with running(tmp_path) as broker:
        topic, epoch = await subscribed(broker)
        commits = [
            Commit(
                3 * n,  # an object journal leaves gaps
                (
                    *(rows(topic, segment, n) for segment in range(SEGMENTS)),
                    acks(topic, 0, epoch, n),
                    acks(topic, 1, epoch - 1, n),
                    *([acks(topic, 2, epoch, n)] if n % 2 else []),
                ),
            )
            for n in range(COMMITS)
        ]
        for appended in (COMMITS * SEGMENTS, 0):  # a second replay finds everything done
            done = await replay_of(broker).replay(broker.id, reading(commits))
            assert (done.segments, done.rows, done.acks) == (SEGMENTS, appended, COMMITS * 5 // 2)
        for segment in range(SEGMENTS):
            chain = Chain(broker.process.store, "t", segment)
            await chain.open()
            assert chain.end == COMMITS
            if batch_bytes == 1:
                assert chain.next.sequence >= COMMITS, "each frame is an entry"
        found = {}
        for segment in range(SEGMENTS):
            entry = await broker.process.coordination.get(keys.CURSORS.key("t", topic.record.incarnation, "s", segment))
            found[segment] = record_of(keys.CURSORS, entry.value) if entry else None
        assert found[0] is not None
        assert (found[0].acked_to, found[0].acked) == (COMMITS, ())
        assert found[1] is None or found[1].acked_to == 0, "acks of another epoch do not count"
        assert found[2] is not None
        assert found[2].acked == tuple((n, n + 1) for n in range(1, COMMITS, 2))


async def test_acks_of_an_epoch_that_ends_meanwhile_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seek may begin an epoch between the look at the subscription and the write of its cursor."""
    async with running(tmp_path) as broker:
        topic, epoch = await subscribed(broker)
        await deaf(broker)
        coordination = broker.process.coordination
        place = ("t", topic.record.incarnation, "s")
        get = coordination.get

        async def sought(key: str) -> Entry | None:
            found = await get(key)
            if key == keys.CURSORS.key(*place, 0) and not begun:
                subscription = await get(keys.SUBSCRIPTIONS.key(*place))
                assert subscription is not None
                record = replace(record_of(keys.SUBSCRIPTIONS, subscription.value), epoch=epoch + 1)
                put = Put(subscription.key, keys.SUBSCRIPTIONS.encode(Versioned.new(record)))
                begun.append(await coordination.commit([Compare(subscription.key, subscription.revision)], [put]))
            return found

        begun: list[int | None] = []
        monkeypatch.setattr(coordination, "get", sought)
        done = await replay_of(broker).replay(broker.id, reading([Commit(0, (acks(topic, 0, epoch, 0),))]))
        assert (done.acks, len(begun)) == (1, 1)
        assert begun[0] is not None
        cursor = await get(keys.CURSORS.key(*place, 0))
        assert cursor is None or record_of(keys.CURSORS, cursor.value).acked_to == 0


async def test_memory_holds_one_batch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        size = len(rows(topic, 0, 0, "x" * 2_000).payload) + replay.FRAME_BYTES
        monkeypatch.setattr(replay, "BATCH_BYTES", 4 * size)
        made: list[ref[Any]] = []
        most = 0

        async def large(claim: Claim) -> AsyncGenerator[Commit, None]:
            nonlocal most
            for number in range(40):
                frame = rows(topic, 0, number, "x" * 2_000)
                made.append(ref(frame.payload))
                await asyncio.sleep(0.005)  # the thread that made an entry lets go of it a little later
                most = max(most, sum(each() is not None for each in made))
                await claim(len(frame.payload))
                yield Commit(number, (frame,))
                del frame

        done = await replay_of(broker).replay(broker.id, large)
        assert done.rows == 40
        assert most <= 6, "a batch, and what comes next"


async def test_commits_out_of_order_are_damage(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        commits = [Commit(1, (rows(topic, 0, 0),)), Commit(1, (rows(topic, 0, 1),))]
        with pytest.raises(JournalDamaged, match="commit 1 follows commit 1"):
            await replay_of(broker).replay(broker.id, reading(commits))


async def test_a_frame_with_other_rows_than_it_says_is_damage(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        one = rows(topic, 0, 0)
        wrong = Frame(one.kind, "t", 0, 0, 2, one.columns, 0, (), 1, one.payload, FIRST_TERM)
        with pytest.raises(JournalDamaged, match="states 2 rows, but contains 1"):
            await replay_of(broker).replay(broker.id, reading([Commit(0, (wrong,))]))


async def test_a_gap_between_the_rows_of_a_journal_is_damage(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        commits = [Commit(0, (rows(topic, 0, 0), rows(topic, 0, 3)))]
        with pytest.raises(JournalDamaged, match="rows 1 to 2 of topics/t/segment=0/ are missing"):
            await replay_of(broker).replay(broker.id, reading(commits))


async def test_records_of_other_topics_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await subscribed(broker)
        await make_topic(broker, "other", 3)
        await deaf(broker)
        coordination = broker.process.coordination
        asked: list[str] = []
        read = coordination.range

        async def note(prefix: str, after: str = "", limit: int = 500) -> Page:
            asked.append(prefix)
            return await read(prefix, after, limit)

        monkeypatch.setattr(coordination, "range", note)
        replay = replay_of(broker)
        done = await replay.replay(broker.id, reading([Commit(0, (rows(topic, 0, 0), rows(topic, 1, 0)))]))
        assert (done.rows, done.segments) == (2, 2)
        place = ("t", topic.record.incarnation)
        assert set(asked) == {keys.TOPICS.key("t"), keys.SEGMENTS.prefix(*place), keys.STARTS.prefix(*place)}


class Dead:
    """A dead journal that can be fenced, and whose commits never come."""

    def __init__(self, fenced: list[int], number: int) -> None:
        self._fenced, self._number = fenced, number

    async def fence(self) -> None:
        self._fenced.append(self._number)

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        await asyncio.Event().wait()
        yield Commit(0, ())

    async def close(self) -> None:
        pass


async def test_a_journal_that_waits_for_its_turn_is_fenced_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        recovery: Any = inside.recovery(broker)
        fenced: list[int] = []
        dead = type("Journals", (), {"open_dead": lambda _, name, record: Dead(fenced, int(name))})()
        monkeypatch.setattr(recovery, "_journals", dead)
        journal = Versioned.new(JournalRecord("file", "elsewhere"))
        tasks = [asyncio.create_task(recovery.recover(str(number), journal)) for number in range(REPLAYS + 3)]
        await asyncio.sleep(0.05)
        assert fenced == list(range(REPLAYS + 3))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.brokers
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
            Frame(
                FrameKind.ROWS,
                "t",
                0,
                first,
                1,
                mask_of(rows),
                0,
                (),
                message.timestamp_us,
                rows.serialize(),
                FIRST_TERM,
            )
            for first in (0, 1)
        ]
        recovery = replay_of(broker)
        done = await recovery.replay(broker.id, committed(frames))
        assert done.rows == 0
        await chain.open()
        assert chain.end == 1
        assert chain.last is not None
        assert chain.last.seal is not None
