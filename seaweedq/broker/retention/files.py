"""A topic's files as retention sees them, and the empty entries that idle segments get.

Files are listed from each segment's start on, with the offsets that subscriptions have acked. A chain with a gap, or
without its first file, is damaged: nothing of its topic is due then.

Empty entries have no rows. Idle segments get them, so that retention can take the entries before, and segments without
any, so that it can take their predecessors' last ones. The leader asks for them, the owners put them. Order of writes:
1. the owner journals a frame that names the sequence of the entry to come; 2. any entry of that sequence is put, with
the rows that have come meanwhile, or with none; it has the producer table and the running maximum of `_timestamp`;
3. the journal lets go of the frame. A crash behind 1 leaves the frame: a recovery puts the entry before it hands the
segment over, so a put of a dead owner that lands late finds its name taken (broker/recovery/replay).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from seaweedq.broker.context import ClusterView
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.retention.due import File, SegmentFiles, due, wants_empty_entries, with_empty_entries
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import MarkCall
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.checks import reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, read_all
from seaweedq.coordination.records import RetentionPolicy
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import ChainDamaged, NotOwner, Unavailable
from seaweedq.segments.chain import Chain, ListedEntry
from seaweedq.segments.entry import EntryName, segment_folder
from seaweedq.segments.frames import empty_entry_frame
from seaweedq.storage.interface import ObjectStore

SEGMENTS = 16  # segments at a time
logger = logging.getLogger(__name__)


class EmptyEntries:
    """Appends empty entries, to segments of this broker here, and to the others at their owners. `timeout_s` bounds
    each."""

    def __init__(
        self,
        view: ClusterView,
        ownership: Ownership,
        commit: GroupCommit,
        flusher: Flusher,
        peers: Peers,
        timeout_s: float,
    ) -> None:
        self._catalog = view.catalog
        self._roster = view.roster
        self._broker = view.membership.broker
        self._clock = view.clock
        self._ownership = ownership
        self._commit = commit
        self._flusher = flusher
        self._peers = peers
        self._timeout_s = timeout_s

    async def append(self, topic: Topic, segments: Sequence[int]) -> bool:
        """Gives each of these segments one more entry. Returns False if some owner did not: those of the others have
        theirs all the same."""
        owners: dict[str | None, list[int]] = {}
        for number in segments:
            owners.setdefault(self._catalog.segment(topic, number).record.owner, []).append(number)
        return all(await gather_bounded(SEGMENTS, lambda owner: self._ask(topic, owner, owners[owner]), owners))

    async def append_here(self, topic: Topic, segments: Sequence[int]) -> bool:
        """Gives each of these segments, of this broker, one more entry, unless it has a tail: that becomes one by
        itself. Raises Unavailable for the first that got none; the others have theirs all the same."""
        failed: list[Unavailable] = []

        async def append(number: int) -> None:
            try:
                await self._append(topic, number)
            except Unavailable as error:
                failed.append(error)

        await gather_bounded(SEGMENTS, append, segments)
        if failed:
            raise failed[0]
        return True

    async def _ask(self, topic: Topic, owner: str | None, segments: Sequence[int]) -> bool:
        try:
            if owner == self._broker:
                return await self.append_here(topic, segments)
            url = self._roster.url(owner)
            if url is None:
                raise NotOwner(
                    f"broker {owner}, which owns segments of topic {topic.name!r}, is no longer running", owner=owner
                )
            call = MarkCall(topic.name, topic.record.incarnation, tuple(segments))
            return await self._peers.call(url, "mark", call, bool, self._timeout_s)
        except Unavailable as error:
            logger.warning(
                "retention cannot delete the newest files of %d idle segments of topic %s yet: %s",
                len(segments),
                topic.name,
                error,
            )
            return False

    async def _append(self, topic: Topic, number: int) -> None:
        """Raises NotOwner, NotReady, JournalUnavailable, StoreUnavailable, Fenced."""
        segment = await self._ownership.opened(topic, number)
        if segment.tail:
            return
        segment.check_open()
        sequence = segment.chain.next.sequence
        if segment.empty_entry is None:  # a pause of the segment waits for the commit, and flushes behind it
            frame = empty_entry_frame(segment.topic, segment.id, sequence, self._clock.now_us(), segment.source.term)
            durable = self._commit.append_frame(frame)
            durable.add_done_callback(lambda number: _record(segment, sequence, number))
            await asyncio.shield(durable)
            reach("mark.durable")
        await self._flusher.flush(segment, self._timeout_s)


def _record(segment: OpenSegment, sequence: int, durable: asyncio.Future[int]) -> None:
    if not durable.cancelled() and durable.exception() is None:
        segment.owe_entry(sequence, durable.result())


LISTED = 16  # segments at a time
DELETIONS = 1000  # files of a listing


@dataclass(frozen=True, slots=True)
class Preview:
    """The amounts that a policy would take now: files, their stored bytes, their rows, and how many of those some
    subscription has not acked, apart from single acks beyond its first unacked message, and those that no checkpoint
    has yet: retention takes nothing for those either."""

    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    unread_rows: int = 0


class TopicFiles:
    """Reads the files of topics, and cursors, as they are in coordination."""

    def __init__(
        self, catalog: Catalog, coordination: Coordination, store: ObjectStore, empty_entries: EmptyEntries
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._empty_entries = empty_entries

    async def read(self, topic: Topic) -> dict[int, SegmentFiles]:
        """Returns the files of all segments. Raises ChainDamaged, NeedsNewerBroker if a segment or a start cannot be
        read, StoreUnavailable."""
        self._catalog.check_whole(topic)
        records = {number: known.record for number, known in sorted(self._catalog.records(topic).items())}
        acked = await self.acked(topic)
        listed = await gather_bounded(LISTED, lambda number: self._files(topic, number), records)
        found = dict(zip(records, listed, strict=True))
        begun = {number for number, files in found.items() if files or self._catalog.start(topic, number).sequence}
        return {
            number: SegmentFiles(
                files,
                None if acked is None else acked.get(number, 0),
                records[number].state == "sealed",
                tuple(after for after in records[number].successors if after not in begun),
            )
            for number, files in found.items()
        }

    async def read_after_empty_entries(
        self, topic: Topic, policy: RetentionPolicy, ends: Mapping[int, int], now_us: int
    ) -> tuple[dict[int, SegmentFiles], bool]:
        """Returns the files as `read`, after segments that want an empty entry have got it; and whether all of
        them have: an owner may be dead. `ends` has the offset behind each segment's last file. Raises as `read`."""
        segments = await self.read(topic)
        wanting = wants_empty_entries(policy, segments, self._of_open(topic, ends), now_us)
        if not wanting:
            return segments, True
        is_done = await self._empty_entries.append(topic, wanting)
        return await self.read(topic), is_done

    def _of_open(self, topic: Topic, ends: Mapping[int, int]) -> dict[int, int]:
        return {number: end for number, end in ends.items() if self._catalog.is_open(topic, number)}

    async def acked(self, topic: Topic) -> dict[int, int] | None:
        """Returns the offset of each segment below which every subscription has acked all; 0 if one is absent. None:
        there is no subscription. One that cannot be read has acked nothing."""
        place = (topic.name, topic.record.incarnation)
        entries, _ = await read_all(self._coordination, keys.SUBSCRIPTIONS.prefix(*place))
        found = {str(keys.SUBSCRIPTIONS.parse(entry.key)[2]): keys.SUBSCRIPTIONS.read(entry) for entry in entries}
        names = [n for n, one in found.items() if isinstance(one, Unreadable) or one.record.state != "deleting"]
        if not names:
            return None
        acked: dict[str, dict[int, int]] = {name: {} for name in names}
        cursors, _ = await read_all(self._coordination, keys.CURSORS.prefix(*place))
        for entry in cursors:
            *_, name, number = keys.CURSORS.parse(entry.key)
            cursor = keys.CURSORS.read(entry)
            if name in acked and not isinstance(cursor, Unreadable):
                acked[name][number] = cursor.record.acked_to
        for name in names:
            if isinstance(there := found[name], Versioned) and there.record.is_seeking:
                acked[name].clear()  # its cursors are those of the epoch before the seek
        everywhere = set.intersection(*(set(one) for one in acked.values()))
        return {number: min(one[number] for one in acked.values()) for number in sorted(everywhere)}

    async def unchanged(self, topic: Topic, policy: RetentionPolicy) -> list[Compare]:
        """Returns comparisons that hold, if the policy goes by acks, while nobody takes acks back by a creation or
        a seek of a subscription. They are asked for before the acks are read. Raises Unavailable."""
        if not (policy.keep_unread or policy.delete_read):
            return []
        key = keys.REWINDS.key(topic.name, topic.record.incarnation)
        there = await self._coordination.get(key)
        return [Compare(key, there.revision if there else 0)]

    async def preview(self, topic: Topic, policy: RetentionPolicy, ends: Mapping[int, int], now_us: int) -> Preview:
        """Returns the amounts that a policy would take at a time, the newest files of idle segments too. `ends` has the
        offset behind each segment's last file. Raises as `read`."""
        segments = with_empty_entries(await self.read(topic), self._of_open(topic, ends), now_us)
        files = size_bytes = rows = unread = 0
        for number, count in due(policy, segments, now_us).items():
            one = segments[number]
            taken = one.files[:count]
            first, end = taken[0].name.first_offset, taken[-1].end
            files, size_bytes, rows = files + count, size_bytes + sum(f.size for f in taken), rows + end - first
            unread += 0 if one.acked_to is None else max(0, end - max(first, one.acked_to))
        return Preview(files, size_bytes, rows, unread)

    async def delete_before(self, topic: Topic, number: int, below: int, may: Callable[[], object]) -> int:
        """Deletes the files of a segment before a sequence, the oldest first. Returns their number. `may` is called
        before each, and raises if this broker may not. Raises StoreUnavailable."""
        folder, gone, after = segment_folder(topic.name, number), 0, ""
        while True:
            page = await self._store.list(folder, after=after, limit=DELETIONS)
            entries = [(name, entry) for name in page if (entry := EntryName.from_object(name, folder))]
            doomed = [name for name, entry in entries if entry.sequence < below]
            for name in doomed:
                reach("retention.delete")
                may()
                await self._store.delete(name)
            gone += len(doomed)
            if len(page) < DELETIONS or len(doomed) < len(entries):
                return gone
            after = page[-1]

    async def _files(self, topic: Topic, number: int) -> list[File]:
        start = self._catalog.starts.held(topic.name, topic.record.incarnation, number).record
        chain = Chain(self._store, topic.name, number)
        listed = await chain.listed(EntryName(start.sequence, start.offset))
        _check(chain.folder, start.sequence, listed)
        ends = [after.name.first_offset for after in listed[1:]]
        ends.append(self._catalog.segment(topic, number).record.end_offset or 0)  # not asked of an open one: it stays
        return [File(one.name, end, one.size, one.modified_us) for one, end in zip(listed, ends, strict=False)]


def _check(folder: str, start: int, listed: Sequence[ListedEntry]) -> None:
    names = [each.name for each in listed]
    dense = all(b.sequence == a.sequence + 1 and b.first_offset >= a.first_offset for a, b in pairwise(names))
    if not dense or (names and names[0].sequence != start):
        raise ChainDamaged(
            f"the files in {folder} must begin with file number {start} and continue without a gap, but do not, so "
            "retention deletes no files of this topic",
            name=folder,
        )
