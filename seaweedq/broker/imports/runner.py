"""The steps of one import: the file is checked as a whole, then published batch by batch, then the import is done.

Order of writes: `checking` (by the broker that was asked), the check, `running`, then in turns batches and the number
of durable rows, then `done`. A batch is repeated under its own sequences until all of it is durable, and none begins
before: the rows below `rows_done` are there, and a repeat takes only those above it that are not. If tables know later
batches than the record, it is that of an earlier day: the import goes on with the newest batch that they know.

The reader gets the file as an open descriptor, and needs no access to the store. A store of files gives its own file,
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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from seaweedq.broker.imports.reader_process import MEMORY_BYTES, ImportReader, ReaderDied, StartReader
from seaweedq.broker.imports.reader_protocol import Job, ReaderMessage
from seaweedq.broker.imports.records import (
    SAVED_EVERY,
    ImportId,
    ImportRecords,
    is_over,
    producer_of,
    with_failure,
    with_progress,
    with_state,
)
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.publish.publisher import PreparedBatch, Producer, Publisher, PublishResult
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.checks import reach
from seaweedq.coordination.records import ImportProblem, ImportRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    Damaged,
    Fenced,
    InvalidImport,
    Overloaded,
    SeaweedqError,
    SequenceOutOfOrder,
    StoreUnavailable,
    TopicBeingDeleted,
    TopicNotFound,
    Unavailable,
)
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


class ImportLost(Exception):
    """Another broker works on the import, or its record is gone."""


class BrokerStopping(Exception):
    """The broker is stopping, and does not wait for this import."""


class FileRefused(Exception):
    """The file cannot be imported."""

    def __init__(self, problem: ImportProblem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


@dataclass
class _Import:
    """An import that runs here, with its record as this broker wrote it last. `now` is ahead of it by `unsaved`
    batches, which are durable and not written yet. `writing` is held while `held` is behind the record."""

    where: ImportId
    held: Versioned[ImportRecord]
    now: ImportRecord
    stopping: Stopping
    unsaved: int = 0
    waits: int = 0
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def waits_for(self, error: SeaweedqError) -> None:
        """Logs why the import waits: at first, and for each SAID_EACH waits."""
        if self.waits % SAID_EACH == 0:
            logger.warning("import %s waits after row %d: %s", self.where.upload_id, self.now.rows_done, error)
        self.waits += 1


@dataclass(frozen=True)
class _PreparedRows:
    """Rows that are ready to be appended; the budget holds `held_bytes` for them."""

    prepared: PreparedBatch
    count: int
    held_bytes: int


@dataclass(frozen=True)
class ReaderSetup:
    """The function that starts the reader of a file, and the folder where copies of files may go."""

    start: StartReader
    folder: Path


class ImportRunner:
    """Runs imports on a broker."""

    def __init__(
        self,
        catalog: Catalog,
        records: ImportRecords,
        publisher: Publisher,
        store: ObjectStore,
        budget: Budget,
        readers: ReaderSetup,
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._publisher = publisher
        self._store = store
        self._budget = budget
        self._readers = readers

    async def run(self, where: ImportId, held: Versioned[ImportRecord], stopping: Stopping) -> bool:
        """Works on an import until it is over (True), or another broker has it or may have it. Raises TopicNotFound."""
        work = _Import(where, held, held.record, stopping)
        deaths = at = 0
        try:
            while not is_over(work.now) and not stopping.is_set():
                try:
                    await self._once(work)
                except SequenceOutOfOrder as error:
                    if (reached := _reached(work.now, error)) > work.now.rows_done:
                        logger.warning("import %s goes on behind row %d", where.upload_id, reached)
                        await self._save(work, msgspec.structs.replace(work.now, rows_done=reached))
                    else:
                        await self._fail(work, _problem(error))
                except (FileRefused, InvalidImport) as error:
                    await self._fail(work, _problem(error))
                except ReaderDied as error:
                    deaths = deaths + 1 if at == work.now.rows_done else 1
                    at = work.now.rows_done
                    logger.warning("the reader of import %s failed: %s", where.upload_id, error)
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
        except ImportLost:
            logger.info("another broker continues the import of %s, or it was removed", where.upload_id)
            return False
        return is_over(work.now)

    async def _once(self, work: _Import) -> None:
        """Continues an import to its end, with one reader; returns early if the broker is stopping."""
        record, topic = work.now, self._topic(work.where)
        file = await opened(self._store, record.name, record.size, record.sha256, self._readers.folder)
        try:
            job = Job(
                record.format,
                record.bare,
                file,
                record.size,
                topic.record.config.columns,
                topic.record.config.format,
                topic.record.config.key_field,
                record.started_us,
                record.max_message_bytes,
                MEMORY_BYTES,
                record.batch_rows,
                record.state == "checking",
                record.rows_done,
            )
            reader = await self._readers.start(job, topic.layout)
        finally:
            os.close(file)
        try:
            if record.state != "checking" or await self._check(work, reader):
                await self._publish_all(work, reader)
        finally:
            await reader.close()

    async def _check(self, work: _Import, reader: ImportReader) -> bool:
        """Does steps 3 and 4. Returns False if the broker is stopping."""
        while (message := await reader.next_message()).kind == "seen":
            if work.stopping.is_set():
                return False
        _check_refused(message)
        if message.kind != "checked":
            raise ReaderDied(f"it sent {message.kind!r} instead of 'checked'")
        reach("import.checked")
        await self._save(work, with_state(work.now, "running", rows=message.rows))
        reach("import.running")
        await reader.request_rows()
        return True

    async def _publish_all(self, work: _Import, reader: ImportReader) -> None:
        """Does steps 5 to 7: while a batch is published the next one comes from the reader, which makes one more, and
        is prepared."""
        coming = asyncio.create_task(self._coming(work, reader, work.now.rows_done))
        try:
            while (batch := await coming) is not None:
                coming = asyncio.create_task(self._coming(work, reader, work.now.rows_done + batch.count))
                try:
                    if work.stopping.is_set():
                        return
                    published = await self._publish(work, batch.prepared)
                finally:
                    self._budget.release(batch.held_bytes)
                work.now = with_progress(work.now, published.count, published.appended)
                work.unsaved += 1
                reach("import.batch")
                if work.unsaved >= SAVED_EVERY:
                    await self._save(work, work.now)
                    reach("import.progress")
        finally:
            coming.cancel()
            coming.add_done_callback(self._forgo)  # a topic's deletion cancels twice: also during this wait
            await asyncio.wait([coming])
        if work.now.rows_done != work.now.rows:
            raise InvalidImport(
                f"the file had {work.now.rows} rows when it was checked, but {work.now.rows_done} were read",
                reason="it has changed",
            )
        await self._save(work, with_state(work.now, "done", broker=None))
        reach("import.done")

    def _forgo(self, coming: "asyncio.Task[_PreparedRows | None]") -> None:
        """Releases the memory of a batch that nobody wants."""
        if not coming.cancelled() and not coming.exception() and (left := coming.result()):
            self._budget.release(left.held_bytes)

    async def _coming(self, work: _Import, reader: ImportReader, first: int) -> _PreparedRows | None:
        """Returns the batch that begins at row `first`; None after the last one. Raises as the reader, FileRefused,
        BrokerStopping."""
        message, rows = await reader.next_rows()
        _check_refused(message)
        if rows is None:
            if message.kind != "ended":
                raise ReaderDied(f"it sent {message.kind!r} instead of rows")
            return None
        producer = Producer(producer_of(work.where.upload_id), first)
        while True:
            with suppress(Overloaded):
                self._budget.hold(rows.nbytes)
                break
            await _pause(work, BUDGET_PAUSE_S)
        try:
            prepared = await self._repeat(
                work, lambda: self._publisher.prepare(self._topic(work.where), rows, producer)
            )
        except BaseException:
            self._budget.release(rows.nbytes)
            raise
        return _PreparedRows(prepared, rows.num_rows, rows.nbytes)

    async def _publish(self, work: _Import, batch: PreparedBatch) -> PublishResult:
        """Publishes one batch, as often as it takes; each try knows the outcome of the earlier ones."""
        try:
            return await self._repeat(work, lambda: self._publisher.append(self._topic(work.where), batch))
        except SequenceOutOfOrder:
            await self._check_held(work)
            raise

    async def _repeat(self, work: _Import, step: Callable[[], Awaitable[T]]) -> T:
        """Repeats a step until it works, or another broker has the import."""
        while True:
            try:
                return await step()
            except (Unavailable, Fenced, Damaged) as error:
                work.waits_for(error)
                await self._check_held(work)
                await _pause(work, PAUSE_S)

    async def _check_held(self, work: _Import) -> None:
        """Raises ImportLost if another broker has the import by now, and the errors of reading its record."""
        async with work.writing:  # the next batch is prepared while progress is written
            found = await self._records.read(work.where)
            if found is None or found.revision != work.held.revision:
                raise ImportLost

    async def _save(self, work: _Import, record: ImportRecord) -> None:
        """Writes the record, and waits while coordination is unavailable. Raises ImportLost, BrokerStopping."""
        async with work.writing:
            while True:
                try:
                    held = await self._records.write(work.where, work.held, record)
                    break
                except Unavailable as error:
                    work.waits_for(error)
                    await _pause(work, PAUSE_S)
            if held is None:
                raise ImportLost
            work.held, work.now, work.unsaved, work.waits = held, record, 0, 0

    async def _fail(self, work: _Import, problem: ImportProblem) -> None:
        logger.info("the import of %s has failed: %s", work.where.upload_id, problem.detail)
        with suppress(BrokerStopping):  # the broker that adopts it finds the same problem
            await self._save(work, with_failure(work.now, problem))

    def _topic(self, where: ImportId) -> Topic:
        """Returns the topic as it is now. Raises TopicNotFound."""
        try:
            topic = self._catalog.topic(where.topic)
        except TopicBeingDeleted as error:
            raise TopicNotFound(error.detail, topic=where.topic) from None
        if topic.record.incarnation != where.incarnation:
            raise TopicNotFound(f"topic {where.topic!r} was deleted and created again", topic=where.topic)
        return topic


def _check_refused(message: ReaderMessage) -> None:
    if message.kind == "refused":
        given = message.problem or ImportProblem("invalid-import", "the file is not taken")
        fields = given.fields if len(msgspec.json.encode(given.fields)) <= FIELDS_BYTES else {}
        raise FileRefused(ImportProblem(given.slug[:DETAIL], given.detail[:DETAIL], fields))


def _problem(error: Exception) -> ImportProblem:
    if isinstance(error, FileRefused):
        return error.problem
    assert isinstance(error, SeaweedqError)
    return ImportProblem(error.slug, error.detail, dict(error.fields))


async def _pause(work: _Import, seconds: float) -> None:
    """Waits before a repeat. Raises BrokerStopping."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work.stopping.wait()
    if work.stopping.is_set():
        raise BrokerStopping


def _reached(record: ImportRecord, error: SequenceOutOfOrder) -> int:
    """Returns the first row of the batch that has the newest sequence which a producer table knows: all before it are
    durable. A record that was brought back from a backup says less (broker/rebuild)."""
    return int(error.fields.get("newest", 0)) // record.batch_rows * record.batch_rows


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
            f"the import needs {size} bytes of disk for a copy of its file, beside {spare} that it leaves free, but "
            f"only {disk.free} are free"
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
        raise StoreUnavailable("the disk accepted only some bytes of the import's file; is it full?")


def _other(what: str) -> InvalidImport:
    return InvalidImport(f"the file in the store is not the one that was claimed: {what} differs", reason=what)
