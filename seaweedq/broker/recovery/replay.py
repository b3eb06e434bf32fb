"""Replay of a dead broker's journal: rows beyond the chains go into the chains, acks into the cursors.

Order of writes, each of which can be repeated: 1. The journal is fenced before, so it cannot grow. 2. Rows go to their
chains in batches, a batch's segments side by side, each segment's rows in order; a crash in between leaves a longer
chain, and the next try begins at its new end. An entry that the dead broker's own late put, or another recovery, got in
first holds the same rows: the end is read again, and the rest appended. The terms of frames, entries and records say
which rows are appended, which ones are skipped, and that some would be lost (segments/terms). Then come the empty
entries that frames name: one is put as long as the chain's next sequence is not above the frame's. 3. Acks of the
subscription's present epoch are added to its cursors, in one transaction a segment; adding twice changes nothing. Only
after all three may the journal go (broker/recovery/journal_recovery). A segment may change hands as soon as 2 is done
for it, and the journal was read to its end: `RemainingSegments` says so to the leader, if the leader asks.

Memory holds one batch of commits (BATCH_BYTES, or one commit if that is larger) with the entries that are made of
it, at most twice as much again, and of all acks the runs, as many as the cursors will hold. The size of the journal
does not matter. All of it counts in the memory budget (broker/recovery/recovery_memory): the journal's reader claims
room for each commit, and if there is none the batch is replayed first.

What a replay has still to bring into chains is *unknown* until the journal was read to its end, then *known*: the
segments of which rows or empty entries are left. They become fewer, each once its chain holds all of its rows and has
the empty entry that a frame names. A segment that is not among them may change hands, though the journal is not
recovered yet. For its journal is fenced, so nothing is added to it; and the next replay of the journal finds each of
its rows in the chain, no matter which broker owns the segment by then.

Nothing is stored of that: if this process ends, the next replay begins at the ends of the chains, and leaves alone what
was given away.
"""

import dataclasses
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from seaweedq.broker.log.entry_writer import EntryWriter, Source, known_producers
from seaweedq.broker.log.intervals import Runs
from seaweedq.broker.recovery.recovery_memory import HeldMemory, RecoveryMemory
from seaweedq.broker.subscriptions.cursor import broken_by
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.subscription import Acks
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.forgotten import was_removed
from seaweedq.checks import InvariantViolated, reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import CursorRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Fenced, JournalDamaged, NeedsNewerBroker, SegmentNotFound
from seaweedq.formats import needs_newer
from seaweedq.journal.interface import AHEAD_BYTES, Claim
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryMetadata
from seaweedq.segments.frames import Commit, Frame, FrameKind, empty_entry_sequence, rows_of
from seaweedq.segments.terms import Tenure, Term, judge
from seaweedq.storage.interface import ObjectStore

Place = tuple[str, int]  # topic and segment
LEAST, PARTS = 40, 8  # segments, parts of all of them: the leader is told after no fewer
BATCH_BYTES = 64 * 1024 * 1024  # of commits; no entry holds more, or one commit if that is larger
COPIES = 3  # of a commit while it is replayed: as it was read, as the columns of an entry, as a file
RUN_BYTES = 96  # that a run of acks takes in memory
FRAME_BYTES = 512  # that a frame takes in memory beside its payload
SEGMENTS = 16  # replayed at a time
logger = logging.getLogger(__name__)
Left = dict[str, set[str]]  # by topic: the keys of the records that cannot be read
_acks = msgspec.msgpack.Decoder(Acks)
Done: TypeAlias = Callable[[Place], None]
Read: TypeAlias = Callable[[Claim], AsyncGenerator[Commit, None]]
EpochRuns = dict[int, Runs]  # acked runs by the epoch of their subscription


class RemainingSegments:
    """The segments of one journal that are left. `changed` is called now and then as they become fewer."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._places: set[Place] | None = None
        self._step = self._told = 0

    def __contains__(self, place: Place) -> bool:
        """Tells whether something of a segment is left, or may be."""
        return self._places is None or place in self._places

    def know(self, places: Iterable[Place]) -> None:
        """Records that the journal was read to its end, and which segments are left."""
        self._places = set(places)
        self._told = len(self._places)
        self._step = max(LEAST, self._told // PARTS)
        self._changed()

    def done(self, place: Place) -> None:
        """Records that nothing of a segment is left."""
        if self._places is not None:
            self._places.discard(place)
            if self._told - len(self._places) >= self._step:
                self._told = len(self._places)
                self._changed()


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay: segments with rows, rows appended to chains, frames of acks; and the topics of which
    something was `left`, since a record cannot be read."""

    segments: int = 0
    rows: int = 0
    acks: int = 0
    left: dict[str, set[str]] = field(default_factory=dict)  # with the keys of those records


class Replay:
    """Replays the journals of dead brokers."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: ObjectStore,
        entries: EntryWriter,
        memory: RecoveryMemory,
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._entries = entries
        self._memory = memory

    async def replay(self, broker: str, read: Read, remaining: RemainingSegments | None = None) -> ReplayResult:
        """Brings all frames of a broker's journal, which `read` yields in their order, to their places, and
        tells which segments are `remaining`. Raises Damaged.

        Rows of segments that are not its own any more are in their chains: they were flushed before it gave them away.
        A commit that failed there must not take an offset that their owner has given out since.
        """
        remaining = remaining or RemainingSegments(lambda: None)
        with self._memory.recovery() as held:
            run = ReplayRun(held, partial(self._append_all, broker), self._read_records)
            async with aclosing(read(run.claim)) as commits:
                async for commit in commits:
                    run.add(commit)
                    del commit  # its memory must be free before the next batch gathers
            await run.end_batch(remaining)
            await self._put_empty_entries(broker, run.empty_entries, run.done.left, remaining.done)
            for (name, segment), subscriptions in run.acks.items():
                if topic := self._live(name, segment, run.done.left):
                    await self._acknowledge(topic, segment, subscriptions, run.done.left)
        run.done.segments = len(run.places)
        return run.done

    async def _read_records(self, places: Iterable[Place]) -> None:
        """Reads the records of topics and segments again, once in a replay: the watch may be behind, and a segment that
        is not known is not recovered. The broker is dead, so it gets no more segments. It loses those of which nothing
        is left in its journal, and to replay them once more changes nothing."""
        by_topic: dict[str, set[int]] = {}
        for name, segment in sorted(places):  # a run from a seed must not depend on the order of a set
            by_topic.setdefault(name, set()).add(segment)
        await gather_bounded(SEGMENTS, lambda one: self._catalog.reload(*one), by_topic.items())

    async def _append_all(self, broker: str, rows: dict[Place, list[Frame]], left: Left, done: Done) -> int:
        async def append(place: Place) -> int:
            name, segment = place
            topic = self._live(name, segment, left)
            if topic is None:
                await self._check_removed(name, segment, left)
                return 0
            appended = await self._append(broker, topic, segment, rows[place])
            done(place)
            return appended

        return sum(await gather_bounded(SEGMENTS, append, rows))

    def _live(self, name: str, segment: int, left: Left) -> Topic | None:
        topic = self._catalog.get(name)
        try:
            self._catalog.check_readable(name)
            if topic is None or topic.record.state == "deleting":
                return None
            self._catalog.segment(topic, segment)
        except SegmentNotFound:
            return None
        except NeedsNewerBroker as error:
            _leave(left, name, error)
            return None
        return topic

    async def _check_removed(self, name: str, segment: int, left: Left) -> None:
        """Checks that a segment without a record is gone, and was not forgotten. Raises JournalDamaged."""
        topic = self._catalog.get(name)
        if name in left or (topic and (topic.record.state == "deleting" or segment in self._catalog.records(topic))):
            return
        incarnation = topic.record.incarnation if topic else None
        if not await was_removed(self._coordination, name, incarnation, segment):
            raise JournalDamaged(
                f"rows of segment {segment} of topic {name!r} would be lost: coordination has no "
                "record of the segment, which shows that coordination was restored to an earlier state",
                path=f"topics/{name}/segment={segment}/",
                position=0,
            )

    async def _open(self, topic: Topic, segment: int) -> tuple[Source, Chain] | None:
        """Opens a segment's chain; None for one that was sealed, so that all of it was in files, which retention has
        taken since."""
        if self._catalog.is_emptied(topic, segment):
            return None
        record = self._catalog.segment(topic, segment).record
        chain = Chain(self._store, topic.name, segment)
        chain.raise_start(self._catalog.start(topic, segment))
        await chain.open()
        return Source.from_record(topic.name, segment, record, topic.layout), chain

    async def _append(self, broker: str, topic: Topic, segment: int, frames: list[Frame]) -> int:
        opened = await self._open(topic, segment)
        if opened is None:
            return 0
        source, chain = opened
        appended = 0
        while frames := await self._lacking(broker, topic, chain, segment, frames):
            same = next(list(group) for _, group in groupby(frames, attrgetter("schema_id")))  # as an entry has to be
            layout = await self._catalog.layout(topic, same[0].schema_id)
            mine = dataclasses.replace(source, layout=layout, owner=broker, term=same[0].term)  # all have the record's
            try:
                appended += await self._append_entry(mine, chain, same, partial(self._catalog.is_gone, topic))
            except Fenced:
                logger.info(
                    "another broker has added files to %s; the recovery continues after these files", chain.folder
                )
                await chain.open()
        return appended

    async def _lacking(self, broker: str, topic: Topic, chain: Chain, segment: int, frames: list[Frame]) -> list[Frame]:
        """Returns the frames of which the chain lacks rows that it has to get. Raises JournalDamaged."""
        try:
            return await _lacking(broker, self._tenure(topic, segment), chain, frames)
        except JournalDamaged:  # unless the segment has changed hands behind the look at its record
            await chain.open()
            await self._catalog.refresh(topic.name, segment)
            return await _lacking(broker, self._tenure(topic, segment), chain, frames)

    def _tenure(self, topic: Topic, segment: int) -> Tenure:
        record = self._catalog.segment(topic, segment).record
        return Tenure(record.term, record.owner or "")

    async def _put_empty_entries(
        self, broker: str, empty_entries: dict[Place, tuple[int, Term]], left: Left, done: Done
    ) -> None:
        """Puts the entries that empty_entries name, of those segments that are still the dead broker's."""

        async def mark(place: Place) -> None:
            name, segment = place
            sequence, term = empty_entries[place]
            topic = self._live(name, segment, left)
            if topic and self._tenure(topic, segment) == (term, broker):
                await self._put_empty_entry(topic, segment, sequence)
                done(place)

        await gather_bounded(SEGMENTS, mark, empty_entries)

    async def _put_empty_entry(self, topic: Topic, segment: int, sequence: int) -> None:
        """Puts entries without rows until one has this sequence, no matter which broker puts it: a late one finds its
        name taken."""
        opened = await self._open(topic, segment)
        if opened is None:
            return
        source, chain = opened
        while chain.next.sequence <= sequence and not chain.sealed:
            producers = await known_producers(self._store, source, chain, partial(self._catalog.is_gone, topic))
            reach("recover.mark")
            try:
                await self._entries.append(
                    source, chain, [], producers, chain.last.max_timestamp_us if chain.last else 0
                )
            except Fenced:
                logger.info(
                    "another broker has added files to %s; the recovery continues after these files", chain.folder
                )
                await chain.open()

    async def _append_entry(
        self, source: Source, chain: Chain, frames: list[Frame], is_gone: Callable[[int], bool]
    ) -> int:
        producers = await known_producers(self._store, source, chain, is_gone)
        newest = chain.last.max_timestamp_us if chain.last else 0
        pieces: list[tuple[int, pa.RecordBatch]] = []
        end = chain.end
        for frame in frames:
            if frame.first_offset > end:
                raise JournalDamaged(
                    f"rows {end} to {frame.first_offset - 1} of {chain.folder} are missing: they are neither in the "
                    "segment's files nor in the journal",
                    path=chain.folder,
                    position=end,
                )
            rows = rows_of(frame, source.layout).slice(end - frame.first_offset)
            newest = max(newest, pa.compute.max(rows.column(0)).cast(pa.int64()).as_py())
            pieces.append((end, rows))
            end += rows.num_rows
            for known in frame.ranges:
                producers.record(
                    known.part,
                    known.producer,
                    known.low,
                    known.high,
                    known.first_offset,
                    known.count,
                    frame.append_time_us,
                )
        reach("recover.append")
        await self._entries.append(source, chain, pieces, producers, newest)
        return sum(rows.num_rows for _, rows in pieces)

    async def _acknowledge(self, topic: Topic, segment: int, subscriptions: dict[str, EpochRuns], left: Left) -> None:
        for name, acked in subscriptions.items():
            try:
                while not await self._advance(topic, segment, name, acked):
                    logger.info(
                        "the cursor of subscription %s on segment %s changed during the recovery; trying again",
                        name,
                        segment,
                    )
            except NeedsNewerBroker as error:
                _leave(left, topic.name, error)

    async def _advance(self, topic: Topic, segment: int, name: str, acked: EpochRuns) -> bool:
        """Adds acks to a cursor in one transaction, which compares the subscription's epoch. False means try again.
        Raises NeedsNewerBroker if one of the two cannot be read."""
        incarnation = topic.record.incarnation
        subscription = await self._coordination.get(keys.SUBSCRIPTIONS.key(topic.name, incarnation, name))
        known = keys.SUBSCRIPTIONS.require(subscription).record if subscription else None
        if subscription is None or known is None or known.state != "active":
            return True
        epoch = known.epoch
        if epoch not in acked:
            return True
        path = keys.CURSORS.key(topic.name, incarnation, name, segment)
        there = await self._coordination.get(path)
        held = keys.CURSORS.require(there) if there else Versioned.new(CursorRecord(epoch=epoch, acked_to=0))
        cursor = held.record
        delivery = SegmentDelivery.from_record(cursor)
        delivery.window.pass_over_all(acked[epoch])
        record = with_dying(delivery.window.record(epoch), cursor)
        if found := broken_by(cursor if there else None, record):
            logger.error(
                "not applying recovered acks to the cursor %s, because an invariant would be broken: "
                "%s; before: %s; after: %s",
                path,
                "; ".join(found),
                cursor,
                record,
            )
            raise InvariantViolated(
                f"recovered acks of subscription {name!r} in segment {segment} of topic "
                f"{topic.name!r} cannot be applied: {found[0]}"
            )
        reach("recover.acks")
        compares = [Compare(subscription.key, subscription.revision), Compare(path, held.revision)]
        put = Put(path, keys.CURSORS.encode(held.with_record(record)))
        return await self._coordination.commit(compares, [put]) is not None


def with_dying(record: CursorRecord, before: CursorRecord) -> CursorRecord:
    """Returns a record with the dying messages of the one before; all leases ended with their
    dispatcher."""
    return replace(record, held=tuple(one for one in before.held if one.dying))


class ReplayRun:
    """One replay: the batch that gathers, and what was done so far. `append` brings the rows of a batch into chains;
    before that, `refresh` is given the places that no batch had before."""

    def __init__(
        self,
        held: HeldMemory,
        append: Callable[[dict[Place, list[Frame]], Left, Done], Awaitable[int]],
        refresh: Callable[[Iterable[Place]], Awaitable[None]],
    ) -> None:
        self.done = ReplayResult()
        self.places: set[Place] = set()
        self._seen: set[Place] = set()
        self.acks: dict[Place, dict[str, EpochRuns]] = {}
        self.empty_entries: dict[Place, tuple[int, Term]] = {}  # the highest sequence that a frame names, and its term
        self._held = held
        self._append = append
        self._refresh = refresh
        self._batch: list[Frame] = []
        self._size = 0
        self._last = -1
        held.keep(AHEAD_BYTES)

    async def claim(self, size: int) -> None:
        """Makes room for commits of so many bytes, by replaying the batch if need be. Raises as the replay."""
        if self._batch and self._size + size <= BATCH_BYTES and self._held.grow(COPIES * size):
            self._size += size
            return
        await self.end_batch()
        await self._held.acquire(COPIES * size)
        self._size = size

    def add(self, commit: Commit) -> None:
        """Adds a commit, for which room was claimed, to the batch. Raises JournalDamaged."""
        if commit.number <= self._last:
            detail = f"commit {commit.number} follows commit {self._last}"
            raise JournalDamaged(detail, path="", position=commit.number)
        self._last = commit.number
        self._batch += commit.frames
        self._held.count(FRAME_BYTES * len(commit.frames))

    async def end_batch(self, remaining: RemainingSegments | None = None) -> None:
        """Replays the batch, and lets go of it. Acks wait for the end. Behind the last batch nothing more comes: the
        `remaining` segments are known then."""
        rows: dict[Place, list[Frame]] = {}
        acks: list[Frame] = []
        for frame in self._batch:
            place = (frame.topic, frame.segment)
            if frame.kind is FrameKind.ROWS:
                rows.setdefault(place, []).append(frame)
            elif frame.kind is FrameKind.ACKS:
                acks.append(frame)
            else:
                named = (empty_entry_sequence(frame), frame.term)
                self.empty_entries[place] = max(self.empty_entries.get(place, named), named)
            del frame  # its memory must be free before the next batch gathers
        self._batch = []
        add_acks(self.acks, acks)
        self.done.acks += len(acks)
        places = rows.keys() | self.acks.keys() | self.empty_entries.keys()
        await self._refresh(places - self._seen)
        self._seen |= places
        if remaining:  # batches before have left rows that a newer broker has to read
            left = {place for place in self._seen if place[0] in self.done.left}
            remaining.know(rows.keys() | self.empty_entries.keys() | left)
        self.done.rows += await self._append(rows, self.done.left, partial(self._appended, remaining))
        self.places.update(rows)
        del rows, acks
        self._held.keep(AHEAD_BYTES + RUN_BYTES * self._runs())
        self._held.release()

    def _appended(self, remaining: RemainingSegments | None, place: Place) -> None:
        if remaining and place not in self.empty_entries:
            remaining.done(place)

    def _runs(self) -> int:
        subscriptions = (one for each in self.acks.values() for one in each.values())
        return sum(len(runs) for epochs in subscriptions for runs in epochs.values())


async def _lacking(broker: str, record: Tenure, chain: Chain, frames: list[Frame]) -> list[Frame]:
    """Returns the frames of a broker of which the chain lacks rows that it has to get. Raises JournalDamaged."""
    last = chain.last.tenure if chain.last else None
    lacking: list[Frame] = []
    entry: EntryMetadata | None = None
    for frame in frames:
        rows, end = Tenure(frame.term, broker), frame.first_offset + frame.count
        at = max(frame.first_offset, chain.start.first_offset)  # retention has taken those before from files
        while at < min(end, chain.end):
            if entry is None or not entry.since <= at < entry.next_offset:
                entry = await chain.holder(at)
            if judge(rows, entry.tenure, record, last, chain.sealed) == "damage":
                raise _lost(
                    chain,
                    at,
                    end,
                    rows,
                    f"the segment's files contain other rows at these offsets, written in term {_text(entry.tenure)}",
                )
            at = entry.next_offset
        if at < end:
            verdict = judge(rows, None, record, last, chain.sealed)
            if verdict == "append":
                lacking.append(frame)
            elif verdict == "damage":
                where = f"end at offset {chain.end}{' with a seal' if chain.sealed else ''}, in term {_text(last)}"
                why = f"the segment's files {where}, and the segment's record states term {_text(record)}"
                raise _lost(chain, at, end, rows, why)
            else:
                logger.warning(
                    "the recovery ignores rows of %s from offset %d on, because no publish of these rows was ever "
                    "acknowledged",
                    chain.folder,
                    chain.end,
                )
    return lacking


def _lost(chain: Chain, first: int, end: int, rows: Tenure, why: str) -> JournalDamaged:
    return JournalDamaged(
        f"rows {first} to {end - 1} of {chain.folder}, written in term {_text(rows)}, would be lost: {why}",
        path=chain.folder,
        position=first,
    )


def _text(tenure: Tenure | None) -> str:
    return f"{tenure.term[0]}-{tenure.term[1]} ({tenure.owner or 'no owner'})" if tenure else "none"


def add_acks(acks: dict[Place, dict[str, EpochRuns]], frames: list[Frame]) -> None:
    for frame in frames:
        try:
            found = _acks.decode(frame.payload)
        except msgspec.DecodeError as error:
            where = f"a frame of segment {frame.segment} of {frame.topic!r}"
            raise needs_newer(f"{where} has acks that this broker cannot read ({error})") from error
        subscriptions = acks.setdefault((frame.topic, frame.segment), {})
        runs = subscriptions.setdefault(found.subscription, {}).setdefault(found.epoch, Runs())
        for low, high in found.runs:
            runs.add(low, high)


def _leave(left: Left, topic: str, error: NeedsNewerBroker) -> None:
    left.setdefault(topic, set()).add(str(error.fields.get("record", "")))
