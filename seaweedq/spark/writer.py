"""The writers of the data source. Tasks check rows and upload them as Parquet; the driver has a broker decide on all
uploads at once (`PUT .../writes/{writer}/{number}`), which is where a batch becomes messages, once: whoever repeats it
with other uploads gets the answer of the first.

The order of a commit: the topic of invalid rows first, with the same name and number, then the topic itself. So what
the topic has left out is never lost. A commit that was cut off between the two is repeated by Spark, and joins both.
Tasks then judge the rows anew, and may find others invalid, as time has passed. Once the topic's write has begun, no
invalid rows are put any more; if theirs alone was, and with others, the commit fails: rows would be in both topics, or
in neither.

Spark makes the writer of a batch once, and pickles it into tasks, `commit` and `abort`; that of a stream is made anew
for each step. Only tasks know which query they are of, so its id travels in their messages. Of a task that is tried
twice one message arrives; the uploads of the others go once the number is decided, as do those of a repeated batch.
"""

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from seaweedq.client.core.calls import call
from seaweedq.client.core.uploading import WriteState, uploads_path
from seaweedq.client.sync.client import Client
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.errors import BadRequest, ClientError, WriteNotFound
from seaweedq.rows.arrow_bodies import InvalidRow
from seaweedq.rows.checking import topic_intake
from seaweedq.spark.options import JOBS, STREAMS, WriteOptions
from seaweedq.spark.row_checks import invalid_as_json, judge
from seaweedq.spark.row_files import RowFiles, carried_bytes

logger = logging.getLogger(__name__)
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # of a task of a stream


@dataclass(frozen=True)
class Part:
    """The rows of a task for one topic: uploads, in order, and the last file itself if it is small."""

    rows: int = 0
    uploads: tuple[str, ...] = ()
    carried: bytes = b""


@dataclass(frozen=True)
class TaskOutput(WriterCommitMessage):
    """The message of a task: the writer's name, and the rows that the topic takes and does not take."""

    writer: str
    valid: Part
    invalid: Part


Message = TaskOutput | None  # None of a task that failed


class TopicWriter:
    """The common part of the writers of batches and streams. `facts` is the topic as a broker shows it."""

    def __init__(self, options: WriteOptions, facts: Mapping[str, Any]) -> None:
        self.options = options
        self.facts = facts

    def task(self, batches: Iterable[pa.RecordBatch], writer: str, number: int, partition: int) -> TaskOutput:
        """Checks and uploads the rows of a task; of a task that fails no upload stays. Raises ClientError for an
        invalid row, if no topic gets those."""
        options = self.options
        write = f"{writer}/{number}"
        with (
            Client(options.url) as client,
            RowFiles(_sender(client, options.topic, write), options.max_file_bytes) as valid,
            RowFiles(_sender(client, options.invalid_rows or "", write), options.max_file_bytes) as invalid,
        ):
            try:
                self._split(batches, valid, invalid, partition)
                room = carried_bytes(partition)
                carried = valid.end(room)
                refused = invalid.end(room - len(carried))
            except BaseException:
                remove(client, options.topic, valid.uploads)
                remove(client, options.invalid_rows or "", invalid.uploads)
                raise
        return TaskOutput(
            writer,
            Part(valid.rows, tuple(valid.uploads), carried),
            Part(invalid.rows, tuple(invalid.uploads), refused),
        )

    def decide(self, messages: Sequence[Message], number: int) -> None:
        """Has a broker decide on the uploads of all tasks, and waits until their rows are durable."""
        outputs = [each for each in messages if each is not None]
        if not outputs:
            return
        writer = outputs[0].writer
        valid, invalid = [each.valid for each in outputs], [each.invalid for each in outputs]
        with Client(self.options.url) as client:
            if self.options.invalid_rows and not _is_begun(_newest(client, self.options.topic, writer), number):
                self._put_invalid(client, self.options.invalid_rows, writer, number, invalid)
            if any(part.rows for part in valid):
                self._put(client, self.options.topic, writer, number, valid)

    def forget(self, messages: Sequence[Message]) -> None:
        """Removes the uploads of tasks, but those that a write names; never raises."""
        with Client(self.options.url) as client:
            for each in filter(None, messages):
                remove(client, self.options.topic, each.valid.uploads)
                remove(client, self.options.invalid_rows or "", each.invalid.uploads)

    def _put_invalid(self, client: Client, topic: str, writer: str, number: int, parts: Sequence[Part]) -> None:
        """Puts the write of invalid rows. Raises ClientError if an earlier attempt has decided on others."""
        rows = sum(part.rows for part in parts)
        found = self._put(client, topic, writer, number, parts) if rows else _newest(client, topic, writer)
        if found is not None and found.number == number and found.state != "failed" and found.rows != rows:
            raise ClientError(
                f"an earlier attempt at write {number} of writer {writer!r} wrote {found.rows} invalid rows to topic "
                f"{topic!r}, but this attempt found {rows} invalid rows. This attempt wrote no rows: otherwise, a row "
                f"could be in both topics, {topic!r} and {self.options.topic!r}, or in neither topic; "
                "to write the rows of this attempt, set invalidRows to another topic"
            )

    def _split(self, batches: Iterable[pa.RecordBatch], valid: RowFiles, invalid: RowFiles, partition: int) -> None:
        clock, seen = SystemClock(), 0
        for batch in batches:
            intake = topic_intake(self.facts, clock.now_us())  # of this moment, as a task may take hours
            taken, wrong = judge(batch, intake)
            if wrong and self.options.invalid_rows is None:
                raise _refusal(self.options.topic, partition, seen, wrong)
            valid.add(taken)
            if wrong:
                invalid.add(invalid_as_json(batch, wrong, self.options.topic, intake.max_message_bytes))
            seen += batch.num_rows

    def _put(self, client: Client, topic: str, writer: str, number: int, parts: Sequence[Part]) -> WriteState:
        """Puts one write, and returns it once it is done."""
        send = _sender(client, topic, f"{writer}/{number}")
        with RowFiles(send, self.options.max_file_bytes) as together:
            try:
                uploads = _in_order(parts, together)
                return client.write(topic, writer, number, uploads, drawn=writer.startswith(JOBS))
            except BaseException:
                remove(client, topic, together.uploads)
                raise


class BatchWriter(TopicWriter, DataSourceArrowWriter):
    """Writes a DataFrame, under the name that the options state, or one that is drawn."""

    def __init__(self, options: WriteOptions, facts: Mapping[str, Any]) -> None:
        super().__init__(options, facts)
        self.writer = options.write_id or f"{JOBS}{SystemIds().nonce()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        """Is a task."""
        return self.task(iterator, self.writer, self.options.write_number, _begun().partitionId())

    def commit(self, messages: Sequence[Message]) -> None:  # type: ignore[override]
        """Is called once all tasks have succeeded."""
        self.decide(messages, self.options.write_number)

    def abort(self, messages: Sequence[Message]) -> None:  # type: ignore[override]
        """Is called if a task or the commit has failed."""
        self.forget(messages)


class StreamWriter(TopicWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a stream, under the query's id and the batch's number."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutput:
        """Is a task of a batch."""
        context = _begun()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise ClientError("Spark did not give this task the ids of the query and the batch")
        return self.task(iterator, f"{STREAMS}{query}", int(batch), context.partitionId())

    def commit(self, messages: Sequence[Message], batchId: int) -> None:  # type: ignore[override]
        """Is called once all tasks of a batch have succeeded."""
        self.decide(messages, batchId)

    def abort(self, messages: Sequence[Message], batchId: int) -> None:  # type: ignore[override]
        """Is called if a task or the commit has failed."""
        self.forget(messages)


def remove(client: Client, topic: str, uploads: Sequence[str]) -> None:
    """Removes uploads that no write names; never raises. Those that are left expire."""
    for upload_id in uploads:
        try:
            client.run(call("DELETE", f"{uploads_path(topic)}/{upload_id}", repeatable=True))
        except BadRequest:
            continue  # it is gone, or a write names it
        except Exception as error:
            logger.warning("uploads for topic %r could not be aborted (%s), and will expire later", topic, error)
            return


def _in_order(parts: Sequence[Part], together: RowFiles) -> list[str]:
    """Returns the uploads of all tasks in the order of their rows. Small files with no upload between them become one
    upload, which `together` makes."""
    wanted: list[str] = []
    taken = 0  # of those that `together` has made
    for part in parts:
        if part.uploads:
            together.end()
            wanted += [*together.uploads[taken:], *part.uploads]
            taken = len(together.uploads)
        if part.carried:
            for batch in pq.ParquetFile(pa.BufferReader(part.carried)).iter_batches():
                together.add(batch)
    together.end()
    return wanted + together.uploads[taken:]


def _newest(client: Client, topic: str, writer: str) -> WriteState | None:
    """Returns the newest write of a writer, None if there is none."""
    try:
        return client.last_write(topic, writer)
    except WriteNotFound:
        return None


def _is_begun(newest: WriteState | None, number: int) -> bool:
    """Tells whether a write of this number, or of a later one, has begun, and has not failed."""
    if newest is None:
        return False
    return newest.number > number or (newest.number == number and newest.state != "failed")


def _begun() -> TaskContext:
    """Returns the context of the task that begins here. Spark's worker collects garbage behind each task, in 50 ms of
    CPU for the objects of all modules: those that are there at its first one are not looked at again."""
    if not gc.get_freeze_count():
        gc.freeze()
    context = TaskContext.get()
    assert context is not None
    return context


def _sender(client: Client, topic: str, write: str) -> Callable[[BinaryIO], str]:
    return lambda file: client.upload(topic, file, "application/vnd.apache.parquet", write=write)


def _refusal(topic: str, partition: int, seen: int, wrong: Sequence[InvalidRow]) -> ClientError:
    first = wrong[0]
    what = f"row {seen + first.row} of partition {partition}"
    where = f"its column {first.column!r}: " if first.column else ""
    others = f" ({len(wrong) - 1} more rows near it are also invalid)" if len(wrong) > 1 else ""
    return ClientError(
        f"the topic {topic!r} does not take {what}, {where}{first.reason}{others}. Nothing was written; to send such "
        "rows to another topic, set the option invalidRows"
    )
