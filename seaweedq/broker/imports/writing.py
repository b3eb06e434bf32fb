"""Writes: many uploaded files become messages, once for each number of a writer, whichever uploads come.

Requests are here: the first one of a number decides, others join it. broker/imports/working has who works,
broker/imports/runner the steps. docs/internals/by-reference.md ("Writes") has the states and the order of writes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import msgspec

from seaweedq.broker.context import Context
from seaweedq.broker.imports.importing import Format
from seaweedq.broker.imports.records import (
    WorkId,
    WorkRecords,
    digest_of,
    is_over,
    is_replaceable,
)
from seaweedq.broker.imports.runner import ReaderSetup
from seaweedq.broker.imports.working import FileWork
from seaweedq.broker.imports.write_lists import FOLDER, ListedUpload, list_name, put_list, read_list
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads.payloads import CLAIMS
from seaweedq.broker.uploads.records import clear_folder
from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.checks import reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.keys import WRITES
from seaweedq.coordination.records import WriteRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    NotReady,
    StoreUnavailable,
    TooManyWriters,
    WriteNotFound,
    WriteOutOfOrder,
)

MAX_WRITERS = 10_000  # of a topic
FULL_S = 60  # after which another writer may be taken
NONCE = 16  # digits


@dataclass(frozen=True)
class Wanted:
    """A write as a request names it."""

    writer: str
    number: int
    uploads: Sequence[str]
    format: Format
    bare: bool
    drawn: bool = False
    version: int | None = None  # of the topic's schema; by default the newest
    traceparent: str | None = None


class FilesOfWrites:
    """The files of writes, which are in lists in the store."""

    kind, called = "write", "the write of writer"

    def __init__(self, context: Context, uploads: Uploads) -> None:
        self._catalog: Catalog = context.catalog
        self._store, self._level = context.store, context.level
        self._clock, self._ids = context.clock, context.ids
        self._uploads = uploads

    async def check(self, topic: Topic, write: str, uploads: Sequence[str]) -> None:
        """Checks that a write may name these uploads, before it has a record: a wrong request leaves nothing behind.
        Raises UploadNotFound, UploadExpired, UploadConflict."""
        await gather_bounded(CLAIMS, lambda upload: self._uploads.check_user(topic, upload, write), uploads)

    async def put(self, where: WorkId, number: int, files: Sequence[ListedUpload]) -> str:
        """Puts a new list. Returns its name. Raises StoreUnavailable."""
        name = list_name(where.topic, where.incarnation, self._clock.now_us(), self._ids.nonce())
        await put_list(self._store, name, where.name, number, files, self._level.written)
        return name

    async def find(self, where: WorkId, record: WriteRecord) -> Sequence[ListedUpload]:
        """Returns the files of a write that is not over. Raises StoreUnavailable, InvalidImport."""
        assert record.listed is not None
        return await read_list(self._store, record.listed, where.name, record.number)

    async def claim(self, where: WorkId, record: WriteRecord) -> Sequence[ListedUpload]:
        """Claims the files of a write, each for this number alone. Raises the errors of a claim, and as `find`."""
        topic, write = where.find_topic(self._catalog), f"{where.name}/{record.number}"

        async def claim(file: ListedUpload) -> ListedUpload:
            reference = await self._uploads.claim(topic, file.upload, "imported", write)
            return ListedUpload(file.upload, reference.size, reference.sha256)

        claimed = await gather_bounded(CLAIMS, claim, await self.find(where, record))
        reach("write.claimed")
        return claimed

    async def list_anew(self, where: WorkId, record: WriteRecord, files: Sequence[ListedUpload]) -> WriteRecord:
        """Puts a list with sizes, digests and rows. Returns the record that names it. Raises StoreUnavailable."""
        listed = await self.put(where, record.number, files)
        reach("write.counted")
        return msgspec.structs.replace(record, listed=listed)

    async def forget(self, where: WorkId, record: WriteRecord) -> None:
        """Removes the list that the record has named. The sweep does it if the store is away."""
        with suppress(StoreUnavailable):
            if record.listed is not None:
                await self._store.delete(record.listed)


class Writing(FileWork[WriteRecord]):
    """The writes that this broker works on, and the records of all others."""

    def __init__(
        self, context: Context, readers: ReaderSetup, publishing: Publishing, reading: Reading, uploads: Uploads
    ) -> None:
        self._files = FilesOfWrites(context, uploads)
        super().__init__(context, WorkRecords(WRITES, context), self._files, readers, publishing)
        self._store = context.store
        self._ids = context.ids
        self._cluster_us = reading.readables.time.learn
        self._awaited: Counter[tuple[WorkId, int]] = Counter()

    async def write(
        self,
        topic: Topic,
        writer: str,
        number: int,
        uploads: Sequence[str],
        format: Format,
        bare: bool,
        drawn: bool,
        wait_s: float,
        version: int | None = None,
        traceparent: str | None = None,
    ) -> tuple[WriteRecord, bool]:
        """Begins a write of these uploads, in their order, or joins the one of its number. With `drawn` the writer's
        name was drawn, for a write that nobody repeats a day later. The files have a `version` of the topic's schema,
        by default the newest. Returns the record once the write is over, or
        `wait_s` seconds have passed, and whether this request has begun it.

        Raises WriteOutOfOrder, TooManyWriters, StoreUnavailable, NotReady if a lower number is not over yet,
        UploadNotFound, UploadExpired and UploadConflict, and the topic's errors if that goes meanwhile.
        """
        wanted = Wanted(writer, number, uploads, format, bare, drawn, version, traceparent)
        where = WorkId.from_topic(topic, writer)
        with ExitStack() as waiting:
            held, begun = await self._wait_over(topic, where, wanted, wait_s, waiting)
        await self._check_told(where, held)
        return held.record, begun

    async def _wait_over(
        self, topic: Topic, where: WorkId, wanted: Wanted, wait_s: float, waiting: ExitStack
    ) -> tuple[Versioned[WriteRecord], bool]:
        """Begins or joins a write, and waits as `write` does. The request counts as `waiting` once it has seen that its
        number is not over."""
        begun = waits = False
        async for attempt in self._attempts(wait_s):
            held = await self._records.read(where)
            if not begun and _may_begin(held, wanted) and not self._is_awaited(where, held, wanted.number):
                held, begun = await self._create(topic, where, wanted, held)
            if held is None:
                raise await self._gone(where, wanted.number)
            check_order(where, held.record, wanted.number)
            if is_over(held.record):
                if held.record.number == wanted.number and (begun or not _may_begin(held, wanted)):
                    return held, begun
            else:
                if held.record.number == wanted.number and not waits:
                    waits = waiting.enter_context(self._awaiting(where, wanted.number))
                await self._begin_work(where, held)
            if self._stopping.is_set() and not attempt.is_last():
                raise NotReady("this broker is stopping; another broker will continue the write")
        assert held is not None
        if held.record.number != wanted.number:
            raise NotReady(
                f"write {held.record.number} of writer {wanted.writer!r} has not ended yet, or this "
                "broker does not know the write's outcome yet"
            )
        return held, begun

    @contextmanager
    def _awaiting(self, where: WorkId, number: int) -> Iterator[bool]:
        """Counts a request that waits here until a number is over."""
        self._awaited[where, number] += 1
        try:
            yield True
        finally:
            self._awaited[where, number] -= 1
            if not self._awaited[where, number]:
                del self._awaited[where, number]
                self._ended.wake()

    def _is_awaited(self, where: WorkId, held: Versioned[WriteRecord] | None, number: int) -> bool:
        """Tells whether requests wait here for the newest number, another one: they are told before a higher number
        takes its record. Those that wait at other brokers may get WriteOutOfOrder for a number that was taken. A repeat
        of a number that is over waits for nothing, so that it holds up nobody."""
        return held is not None and held.record.number != number and (where, held.record.number) in self._awaited

    async def show(self, topic: Topic, name: str) -> WriteRecord:
        """Returns the newest write of a writer. Raises WriteNotFound."""
        where = WorkId.from_topic(topic, name)
        held = await self._records.read(where)
        if held is None:
            detail = f"topic {topic.name!r} has no write by {name!r}, or no longer remembers the writer"
            raise WriteNotFound(detail, topic=topic.name, writer=name)
        await self._check_told(where, held)
        return held.record

    async def page(
        self, topic: Topic, after: str | None, limit: int
    ) -> tuple[Sequence[tuple[str, WriteRecord]], str | None]:
        """Returns the newest writes of at most `limit` writers behind `after`, by name, and the last name if more
        follow; none of a record that a later version has written. What it says of a write acknowledges nothing."""
        return await self._records.page(topic, after, limit)

    async def remove_topic(self, topic: Topic) -> None:
        """Removes the writes of a topic that is being deleted, then their lists. Repeatable."""
        await super().remove_topic(topic)
        await clear_folder(self._store, topic.name, topic.record.incarnation + 1, FOLDER)

    async def _check_told(self, where: WorkId, held: Versioned[WriteRecord]) -> None:
        """Has the store know that a write is done, before anybody is told."""
        if held.record.state == "done":
            await self._records.back_up(where, held)

    async def _create(
        self, topic: Topic, where: WorkId, wanted: Wanted, before: Versioned[WriteRecord] | None
    ) -> tuple[Versioned[WriteRecord], bool]:
        """Writes a record in place of the one before. Returns it, or that of a faster request, and whether it is
        one's own."""
        if before is None and await self._records.count(topic) >= MAX_WRITERS:
            detail = f"topic {topic.name!r} already remembers {MAX_WRITERS} writers, which is the limit"
            raise TooManyWriters(detail, limit=MAX_WRITERS, retry_after_s=FULL_S)
        await self._files.check(topic, f"{where.name}/{wanted.number}", wanted.uploads)
        if before is not None:
            await self._check_told(where, before)
        await self._catalog.refresh(topic.name)  # its schema may have a later version, by which the files were made
        now_us = await self._cluster_us()
        listed = await self._files.put(where, wanted.number, [ListedUpload(each) for each in wanted.uploads])
        reach("write.listed")
        nonce, first = self._sequence(before)
        record = WriteRecord(
            wanted.number,
            wanted.format,
            wanted.bare,
            len(wanted.uploads),
            digest_of(wanted.uploads),
            listed,
            wanted.drawn,
            now_us,
            self._settings.max_message_bytes,
            self._settings.import_batch_rows,
            nonce,
            first,
            self._membership.broker,
            schema_id=topic.layout.schema_id if wanted.version is None else wanted.version,
            traceparent=wanted.traceparent,
        )
        held = await self._records.create(topic, where, record, before)
        if held.record is not record:
            await self._files.forget(where, record)
            return held, False
        reach("write.checking")
        return held, True

    async def _gone(self, where: WorkId, number: int) -> NotReady:
        """Returns the error for a write whose record went while a request waited for it. Raises the topic's, if it has
        gone as well."""
        await self._catalog.load()
        where.find_topic(self._catalog)
        return NotReady(f"the record of write {number} of {where.name!r} no longer exists; send the write again")

    def _sequence(self, before: Versioned[WriteRecord] | None) -> tuple[str, int]:
        """Returns the nonce of a new write, and its first sequence: they go on only where this broker has ended the one
        before, so that it knows that no higher sequence was used."""
        one = before.record if before else None
        if one is None or one.state != "done" or one.ended_by != self._membership.broker or one.rows is None:
            return self._ids.nonce()[:NONCE], 0
        return one.nonce, one.first + one.rows


def check_order(where: WorkId, record: WriteRecord, number: int) -> None:
    """Raises WriteOutOfOrder for a number below the newest."""
    if number < record.number:
        detail = (
            f"write {number} of {where.name!r} is older than write {record.number}: it ended earlier or was skipped, "
            "and its result is no longer known"
        )
        raise WriteOutOfOrder(detail, writer=where.name, number=number, newest=record.number)


def _may_begin(held: Versioned[WriteRecord] | None, wanted: Wanted) -> bool:
    """Tells whether a write may take the place of the newest one."""
    if held is None:
        return True
    if wanted.number == held.record.number:
        return is_replaceable(held.record) and held.record.uploads_sha256 != digest_of(wanted.uploads)
    return wanted.number > held.record.number and is_over(held.record)
