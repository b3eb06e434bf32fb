"""The steps of one import or write: all files are checked as a whole, then published batch by batch, then it is done.

Order of writes: `checking` (by the broker that was asked), the check, `running`, then in turns batches and the number
of durable rows, then `done`. A batch is repeated under its own sequences until all of it is durable, and none begins
before: the rows below `rows_done` are there, and a repeat takes only those above it that are not. If tables know later
batches than the record, it is that of an earlier day: the work goes on behind the batches below, which are durable.

An import is the work on one file; of a write the files follow each other, and batches run on over them. The store knows
a write that is `running` before its first row, and one that is `done` before anybody is told.

The reader gets a file as an open descriptor, and needs no access to the store. A store of files gives its own file,
which never changes. An object from elsewhere is copied to a file without a name in the data folder, a few chunks at a
time, and must have the size and digest that were claimed: on S3 a holder of the URL may put other bytes there until it
expires.
"""

import asyncio
import hashlib
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa

from seaweedq.broker.imports.reader_process import MEMORY_BYTES, ImportReader, ReaderDied, StartReader
from seaweedq.broker.imports.reader_protocol import Job, ReaderMessage
from seaweedq.broker.imports.records import (
    SAVED_EVERY,
    Work,
    WorkId,
    WorkRecords,
    ended,
    is_over,
    producer_of,
    with_progress,
    with_state,
)
from seaweedq.broker.imports.write_lists import ListedUpload
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.publish.publisher import PreparedBatch, Producer, Publisher, PublishResult
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads import rules
from seaweedq.broker.uploads.payloads import REFUSALS
from seaweedq.checks import reach
from seaweedq.clock import Clock
from seaweedq.coordination.records import ImportProblem, WriteRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    Damaged,
    Fenced,
    InvalidImport,
    Overloaded,
    SeaweedqError,
    SequenceOutOfOrder,
    StoreUnavailable,
    Unavailable,
)
from seaweedq.rows.typed_values import unknown_field
from seaweedq.segments.evolution import hint_of
from seaweedq.segments.layout import Format, renamed
from seaweedq.segments.schema import encode_fields
from seaweedq.segments.trace_headers import add_to_rows
from seaweedq.storage.interface import ObjectStore

PIECE_BYTES = 4 * 1024 * 1024
PIECES = 4  # in flight
SPARE_BYTES, SPARE_PART = 1024 * 1024 * 1024, 10  # of the disk, which a copy leaves alone: the lesser; a part in ten
PAUSE_S, BUDGET_PAUSE_S = 0.5, 0.05
SAID_EACH = 20  # of the waits one after the other, one has a log line
DEATHS = 3
DETAIL, FIELDS_BYTES = 2000, 65_536  # bounds of a problem that coordination keeps
Stopping = asyncio.Event
T = TypeVar("T")
logger = logging.getLogger(__name__)


class WorkLost(Exception):
    """Another broker works on it, or its record is gone."""


class BrokerStopping(Exception):
    """The broker is stopping, and does not wait for this work."""


class FileRefused(Exception):
    """The file cannot be imported."""

    def __init__(self, problem: ImportProblem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class FilesOfWork(Protocol[Work]):
    """The files of imports, or of writes. `kind` is in names of fail points, and `called` precedes the work's name in
    the log. Each file has its `rows` once the work is `running`."""

    kind: str
    called: str

    async def claim(self, where: WorkId, record: Work) -> Sequence[ListedUpload]:
        """Returns the files of a work that is `checking`, all of them claimed. Raises the errors of a claim."""

    async def find(self, where: WorkId, record: Work) -> Sequence[ListedUpload]:
        """Returns the files of a work that is `running`."""

    async def list_anew(self, where: WorkId, record: Work, files: Sequence[ListedUpload]) -> Work:
        """Returns the record, that goes with these files, once their rows are counted."""

    async def forget(self, where: WorkId, record: Work) -> None:
        """Removes what the record has named, and names no more."""


@dataclass
class _Working(Generic[Work]):
    """A work under way here, with its record as this broker wrote it last. `now` is ahead of it by `unsaved` batches,
    which are durable and not written yet. `writing` is held while `held` is behind the record. `reader` has the one of
    `files` at `at`. The log calls it `called`."""

    called: str
    where: WorkId
    held: Versioned[Work]
    now: Work
    stopping: Stopping
    unsaved: int = 0
    waits: int = 0
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    files: Sequence[ListedUpload] = ()
    reader: ImportReader | None = None
    at: int = 0

    def waits_for(self, error: SeaweedqError) -> None:
        """Logs why the work waits: at first, and for each SAID_EACH waits."""
        if self.waits % SAID_EACH == 0:
            logger.warning(
                "%s was interrupted after row %d, and will continue from there: %s",
                self.called,
                self.now.rows_done,
                error,
            )
        self.waits += 1

    def place(self) -> tuple[int, int]:
        """Returns the file of the next row, and the number of rows before it there."""
        left = self.now.rows_done
        for at, file in enumerate(self.files[:-1]):
            if left < file.rows:
                return at, left
            left -= file.rows
        return len(self.files) - 1, left


@dataclass(frozen=True)
class _PreparedRows:
    """`count` rows that are ready to be appended, up to the sequence `last`; the budget holds `held_bytes` for them."""

    prepared: PreparedBatch
    count: int
    last: int
    held_bytes: int


@dataclass(frozen=True)
class ReaderSetup:
    """The function that starts the reader of a file, the folder where copies of files may go, and the turns of those
    who have a reader."""

    start: StartReader
    folder: Path
    turns: asyncio.Semaphore


@dataclass
class WorkCounts:
    """The work of a kind that a broker has done: those that `ended` here, by state, and `rows` that became durable."""

    ended: dict[str, int] = field(default_factory=lambda: {"done": 0, "failed": 0})
    rows: int = 0


class WorkRunner(Generic[Work]):
    """Runs imports, or writes, on a broker."""

    def __init__(
        self,
        broker: str,
        catalog: Catalog,
        clock: Clock,
        records: WorkRecords[Work],
        files: FilesOfWork[Work],
        publisher: Publisher,
        store: ObjectStore,
        budget: Budget,
        readers: ReaderSetup,
    ) -> None:
        self.counts = WorkCounts()
        self._broker = broker
        self._catalog = catalog
        self._clock = clock
        self._records = records
        self._files = files
        self._publisher = publisher
        self._store = store
        self._budget = budget
        self._readers = readers

    async def run(self, where: WorkId, held: Versioned[Work], stopping: Stopping) -> bool:
        """Works until it is over (True), or another broker has it or may have it. Raises TopicNotFound,
        TopicBeingDeleted."""
        work = _Working(f"{self._files.called} {where.name}", where, held, held.record, stopping)
        deaths = at = 0
        try:
            while not is_over(work.now) and not stopping.is_set():
                try:
                    await self._once(work)
                except (FileRefused, InvalidImport, SequenceOutOfOrder, *REFUSALS) as error:
                    await self._fail(work, _problem(error))
                except ReaderDied as error:
                    deaths = deaths + 1 if at == work.now.rows_done else 1
                    at = work.now.rows_done
                    logger.warning("the reader process failed during %s: %s", work.called, error)
                    if deaths >= DEATHS:
                        refusal = InvalidImport(
                            f"the file's reader failed {deaths} times after row {at}: {error}", reason=str(error)
                        )
                        await self._fail(work, _problem(refusal))
                except (Unavailable, Fenced) as error:
                    work.waits_for(error)
                    with suppress(BrokerStopping):
                        await _pause(work, PAUSE_S)
                except BrokerStopping:
                    pass
            if not is_over(work.now):
                with suppress(BrokerStopping):  # the number of durable rows, and that no broker works on it
                    await self._save(work, msgspec.structs.replace(work.now, broker=None))
        except WorkLost:
            logger.info(
                "this broker no longer works on %s: another broker continues the work, or the record of the work was "
                "removed",
                work.called,
            )
            return False
        return is_over(work.now)

    async def _once(self, work: _Working[Work]) -> None:
        """Continues a work to its end, with one reader; returns early if the broker is stopping."""
        work.where.find_topic(self._catalog)
        checking = work.now.state == "checking"
        if checking:
            work.files = await self._files.claim(work.where, work.now)
        else:
            await self._records.back_up(work.where, work.held)
            work.files = await self._files.find(work.where, work.now)
        try:
            if not checking:
                await self._give(work, *work.place())
            if not checking or await self._check(work):
                await self._publish_all(work)
        finally:
            if work.reader is not None:
                await work.reader.close()
            work.reader = None

    async def _give(self, work: _Working[Work], at: int, first_row: int = 0, check: bool = False) -> None:
        """Gives the reader a file, from one of its rows on; starts it if there is none."""
        record, topic, file = work.now, work.where.find_topic(self._catalog), work.files[at]
        layout = await self._catalog.layout(topic, record.schema_id)
        name = rules.object_name(work.where.topic, file.upload)
        opened_file = await opened(self._store, name, file.size, file.sha256, self._readers.folder)
        try:
            job = Job(
                record.format,
                record.bare,
                opened_file,
                file.size,
                encode_fields(layout.values) if layout.format is Format.TYPED else None,
                topic.record.config.format,
                renamed(topic.record.config.key_field, topic.layout.values, layout.values),
                record.started_us,
                record.max_message_bytes,
                MEMORY_BYTES,
                record.batch_rows,
                check,
                first_row,
                at == len(work.files) - 1,
            )
            if work.reader is None:
                work.reader = await self._readers.start(job, layout)
            else:
                await work.reader.next_file(job)
        finally:
            os.close(opened_file)
        work.at = at

    async def _check(self, work: _Working[Work]) -> bool:
        """Checks all files, and writes that the work is running. Returns False if the broker is stopping."""
        counted = []
        for at, file in enumerate(work.files):
            await self._give(work, at, check=True)
            assert work.reader is not None
            while (message := await work.reader.next_message()).kind == "seen":
                if work.stopping.is_set():
                    return False
            self._check_refused(work, message)
            if message.kind != "checked":
                raise ReaderDied(f"the reader process sent the message {message.kind!r} instead of 'checked'")
            counted.append(msgspec.structs.replace(file, rows=message.rows))
        self._reach("checked")
        record = await self._files.list_anew(work.where, work.now, counted)
        before, work.files = work.now, counted
        await self._save(work, with_state(record, "running", rows=sum(file.rows for file in counted)))
        await self._files.forget(work.where, before)
        assert work.reader is not None
        if len(counted) == 1:
            await work.reader.request_rows()
        else:
            await self._give(work, 0)
        return True

    async def _publish_all(self, work: _Working[Work]) -> None:
        """Publishes all batches: while one is published the next one comes from the reader, which makes one more, and
        is prepared."""
        coming = asyncio.create_task(self._coming(work, work.now.rows_done))
        try:
            while (batch := await coming) is not None:
                coming = asyncio.create_task(self._coming(work, work.now.rows_done + batch.count))
                try:
                    if work.stopping.is_set():
                        return
                    published = await self._publish(work, batch)
                finally:
                    self._budget.release(batch.held_bytes)
                work.now = with_progress(work.now, batch.count, published.appended)
                self.counts.rows += batch.count
                work.unsaved += 1
                self._reach("batch")
                if work.unsaved >= SAVED_EVERY:
                    await self._save(work, work.now)
                    self._reach("progress")
        finally:
            coming.cancel()
            coming.add_done_callback(self._forgo)  # a topic's deletion cancels twice: also during this wait
            await asyncio.wait([coming])
        if work.now.rows_done != work.now.rows:
            raise InvalidImport(
                f"the check of the file found {work.now.rows} rows, but {work.now.rows_done} rows were read",
                reason="it has changed",
            )
        before = work.now
        await self._save(work, ended(before, self._broker, self._clock.now_us()))
        await self._files.forget(work.where, before)

    def _forgo(self, coming: "asyncio.Task[_PreparedRows | None]") -> None:
        """Releases the memory of a batch that nobody wants."""
        if not coming.cancelled() and not coming.exception() and (left := coming.result()):
            self._budget.release(left.held_bytes)

    async def _coming(self, work: _Working[Work], first: int) -> _PreparedRows | None:
        """Returns the batch that begins at row `first`; None after the last one. Raises as the reader, FileRefused,
        BrokerStopping."""
        rows = await self._next_rows(work)
        if rows is None:
            return None
        name, sequence = producer_of(work.where.name, work.now)
        producer = Producer(name, sequence + first)
        while True:
            with suppress(Overloaded):
                self._budget.hold(rows.nbytes)
                break
            await _pause(work, BUDGET_PAUSE_S)
        try:
            prepared = await self._repeat(
                work, lambda: self._publisher.prepare(work.where.find_topic(self._catalog), rows, producer)
            )
        except BaseException:
            self._budget.release(rows.nbytes)
            raise
        return _PreparedRows(prepared, rows.num_rows, producer.sequences(rows.num_rows).high, rows.nbytes)

    async def _next_rows(self, work: _Working[Work]) -> pa.RecordBatch | None:
        """Returns the rows of the next batch, of one file or of several; None behind the last one."""
        while True:
            assert work.reader is not None
            message, rows = await work.reader.next_rows()
            self._check_refused(work, message)
            if rows is not None:
                return await self._with_context(work.now, work.where.find_topic(self._catalog), rows)
            if message.kind != "ended":
                raise ReaderDied(f"the reader process sent the message {message.kind!r} instead of rows")
            if work.at == len(work.files) - 1:
                return None
            await self._give(work, work.at + 1)

    async def _with_context(self, record: Work, topic: Topic, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with the context of the work's trace, if it has one."""
        if record.traceparent is None:
            return rows
        layout = await self._catalog.layout(topic, record.schema_id)
        bounds = record.max_message_bytes, MEMORY_BYTES
        return await asyncio.to_thread(add_to_rows, rows, layout, record.traceparent, *bounds)

    def _check_refused(self, work: _Working[Work], message: ReaderMessage) -> None:
        """Raises FileRefused for a refusal, which has the new name of a field that was renamed."""
        if message.kind != "refused":
            return
        given = message.problem or ImportProblem("invalid-import", "the file is not taken")
        fields = given.fields if len(msgspec.json.encode(given.fields)) <= FIELDS_BYTES else {}
        schema, detail = work.where.find_topic(self._catalog).record.config.schema, given.detail[:DETAIL]
        if schema and (named := unknown_field(given.fields)) and (hint := hint_of(named, schema)):
            detail, fields = f"{detail}; {hint}", {**fields, "hint": hint}
        if isinstance(work.now, WriteRecord):
            fields = {**fields, "upload_id": work.files[work.at].upload}
        raise FileRefused(ImportProblem(given.slug[:DETAIL], detail, fields))

    async def _publish(self, work: _Working[Work], batch: _PreparedRows) -> PublishResult:
        """Publishes one batch, as often as it takes; each try knows the outcome of the earlier ones. One below a
        sequence that a table knows is durable: none begins before the one before is."""
        try:
            return await self._repeat(
                work, lambda: self._publisher.append(work.where.find_topic(self._catalog), batch.prepared)
            )
        except SequenceOutOfOrder as error:
            await self._check_held(work)
            if int(error.fields.get("newest", 0)) <= batch.last:
                raise
            logger.warning(
                "%s continues after row %d, because all rows up to this row were already published",
                work.called,
                work.now.rows_done + batch.count,
            )
            return PublishResult(batch.count, (), True)

    async def _repeat(self, work: _Working[Work], step: Callable[[], Awaitable[T]]) -> T:
        """Repeats a step until it works, or another broker has the work."""
        while True:
            try:
                return await step()
            except (Unavailable, Fenced, Damaged) as error:
                work.waits_for(error)
                await self._check_held(work)
                await _pause(work, PAUSE_S)

    async def _check_held(self, work: _Working[Work]) -> None:
        """Raises WorkLost if another broker has the work by now, and the errors of reading its record."""
        async with work.writing:  # the next batch is prepared while progress is written
            found = await self._records.read(work.where)
            if found is None or found.revision != work.held.revision:
                raise WorkLost

    async def _save(self, work: _Working[Work], record: Work) -> None:
        """Writes the record, and waits while coordination is unavailable; behind the step to another state also while
        the store is. Raises WorkLost, BrokerStopping."""
        async with work.writing:
            while True:
                try:
                    held = await self._records.write(work.where, work.held, record)
                    if held is None:
                        raise WorkLost
                    if record.state != work.held.record.state:
                        if record.state == "running":
                            self._reach("running")
                        elif record.state == "done":
                            self._reach("done")
                        await self._records.back_up(work.where, held)
                    break
                except Unavailable as error:
                    work.waits_for(error)
                    await _pause(work, PAUSE_S)
            if is_over(record):
                self.counts.ended[record.state] += 1
            work.held, work.now, work.unsaved, work.waits = held, record, 0, 0

    async def _fail(self, work: _Working[Work], problem: ImportProblem) -> None:
        logger.info("%s has failed: %s", work.called, problem.detail)
        with suppress(BrokerStopping):  # the broker that adopts it finds the same problem
            before = work.now
            await self._save(work, ended(before, self._broker, self._clock.now_us(), problem))
            await self._files.forget(work.where, before)

    def _reach(self, step: str) -> None:
        """Tells the fail points that a step of an import, or of a write, is done."""
        reach(f"{self._files.kind}.{step}")


def _problem(error: Exception) -> ImportProblem:
    if isinstance(error, FileRefused):
        return error.problem
    assert isinstance(error, SeaweedqError)
    return ImportProblem(error.slug, error.detail, dict(error.fields))


async def _pause(work: _Working[Work], seconds: float) -> None:
    """Waits before a repeat. Raises BrokerStopping."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work.stopping.wait()
    if work.stopping.is_set():
        raise BrokerStopping


async def opened(store: ObjectStore, name: str, size: int, sha256: str, folder: Path) -> int:
    """Returns a descriptor of the object, to be closed by the caller. Raises StoreUnavailable, also if the disk has
    no room for a copy, and InvalidImport if the object is gone or is another one."""
    try:
        own = await store.readers.run(_own, store, name, size)
        return own if own is not None else await _copied(store, name, size, sha256, folder)
    except FileNotFoundError:
        raise InvalidImport("the uploaded file is no longer in the store", reason="gone") from None


def _own(store: ObjectStore, name: str, size: int) -> int | None:
    with store.open(name) as handle:
        try:
            descriptor = os.dup(handle.fileno())
        except (io.UnsupportedOperation, AttributeError, OSError):
            return None
    if os.fstat(descriptor).st_size != size:
        os.close(descriptor)
        raise _other("its size")
    return descriptor


async def _copied(store: ObjectStore, name: str, size: int, sha256: str, folder: Path) -> int:
    disk = shutil.disk_usage(folder)
    spare = min(SPARE_BYTES, disk.total // SPARE_PART)  # on a small disk a fixed reserve would bar every import
    if disk.free < size + spare:
        raise StoreUnavailable(
            f"the import needs {size} bytes of disk space for a copy of its file, plus a reserve "
            f"of {spare} bytes, but only {disk.free} bytes are free"
        )
    with tempfile.TemporaryFile(dir=folder, buffering=0) as copy:
        if await _fill(store, name, size, copy.fileno()) != sha256:
            raise _other("its SHA-256")
        return os.dup(copy.fileno())


async def _fill(store: ObjectStore, name: str, size: int, descriptor: int) -> str:
    """Copies the object, several chunks at once. Returns its digest."""
    hashed, starts = hashlib.sha256(), list(range(0, size, PIECE_BYTES))
    reads = [asyncio.create_task(_read(store, name, start, size)) for start in starts[:PIECES]]
    try:
        for at, start in enumerate(starts):
            piece = await reads.pop(0)
            if at + PIECES < len(starts):
                reads.append(asyncio.create_task(_read(store, name, starts[at + PIECES], size)))
            await store.readers.run(_write, hashed, descriptor, piece, start)
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    return hashed.hexdigest()


async def _read(store: ObjectStore, name: str, start: int, size: int) -> bytes:
    end = min(start + PIECE_BYTES, size)
    piece = await store.read(name, start, end)
    if len(piece) != end - start:
        raise _other("its size")
    return piece


def _write(hashed: "hashlib._Hash", descriptor: int, piece: bytes, start: int) -> None:
    hashed.update(piece)
    if os.pwrite(descriptor, piece, start) != len(piece):
        raise StoreUnavailable("only some bytes of the import's file could be written to the disk; is the disk full?")


def _other(what: str) -> InvalidImport:
    return InvalidImport(
        f"the file in the store is not the file with which the import started: {what} differs", reason=what
    )
