"""The partitions of a read, and the part of a reader that goes to the executors. They read files by themselves, and the
rows that are in no file from brokers, which they ask by `Client.run`: a query survives a broker's restart.

Files are cut at row groups, which all have ROW_GROUP_ROWS rows but a file's last, so that no footer is read for it.
Small parts share a partition.

Between planning and reading retention may delete rows. If rows are missed, a broker says whether it has deleted them:
then they are a loss, which fails the query or is logged, as the option failOnDataLoss has it. A file that is missing
for another reason is always an error.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from seaweedq.client.core.calls import call, segments, segments_of_another, topic_path, with_removed
from seaweedq.client.core.table import FilePart, Rows, TableRead, table_schema
from seaweedq.client.sync.client import Client
from seaweedq.errors import BelowRetention, ClientError, FileMissing, SegmentNotFound
from seaweedq.segments.entry import ROW_GROUP_ROWS
from seaweedq.spark.compat import arrow_schema, check_columns
from seaweedq.spark.offsets import Loss
from seaweedq.spark.options import Options

TASK_ROWS = 200_000  # of a tail, that one task fetches
OPEN_BYTES = 1024 * 1024  # the cost of opening a file, as bytes


@dataclass(frozen=True, slots=True)
class TaskShare:
    """The rows that one task reads."""

    files: tuple[FilePart, ...] = ()
    tail: tuple[Rows, ...] = ()


def divide(
    parts: Sequence[FilePart], tail: Sequence[Rows], most_bytes: int, least: int | None = None
) -> list[TaskShare]:
    """Returns the shares of tasks that read about `most_bytes` of files at most, and at least `least` tasks if there is
    as much to cut."""
    if least:
        most_bytes = max(1, min(most_bytes, sum(map(_bytes, parts)) // least))
    cut = [piece for part in parts for piece in _cut(part, most_bytes)]
    found = [TaskShare(files=files) for files in _pack(cut, most_bytes, least or 1)]
    return found + [TaskShare(tail=(piece,)) for rows in tail for piece in rows.cut(TASK_ROWS)]


def _bytes(part: FilePart) -> int:
    rows = part.file.next_offset - part.file.first_offset
    return part.file.bytes * (part.end - part.start) // rows


def _cut(part: FilePart, most_bytes: int) -> Iterator[FilePart]:
    rows = part.file.next_offset - part.file.first_offset
    groups = max(1, most_bytes * rows // max(1, part.file.bytes) // ROW_GROUP_ROWS)
    step, first = groups * ROW_GROUP_ROWS, part.file.first_offset
    at = part.start
    while at < part.end:
        behind = min(first + ((at - first) // step + 1) * step, part.end)
        yield FilePart(part.file, at, behind)
        at = behind


def _pack(parts: Sequence[FilePart], most_bytes: int, least: int) -> Iterator[tuple[FilePart, ...]]:
    """Shares parts among as few tasks as there must be, all alike: the last one would get all that the
    others had no room for. A task has half a part more or less than its share of the rest."""
    costs = [_bytes(part) + min(OPEN_BYTES, most_bytes // 4) for part in parts]
    left, tasks = sum(costs), max(-(-sum(costs) // most_bytes), least)
    held: list[FilePart] = []
    size = 0
    for number, (part, cost) in enumerate(zip(parts, costs, strict=True)):
        if held and (size + cost / 2 > left / tasks or len(parts) - number < tasks):
            yield tuple(held)
            left, tasks = left - size, tasks - 1
            held, size = [], 0
        held.append(part)
        size += cost
    if held:
        yield tuple(held)


if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)
BEYOND = 2**63 - 1  # a start above all offsets


@dataclass(frozen=True)
class TopicFacts:
    """The part of a topic's description that its reads need: the columns of files, where they are, when the topic was
    created, which tells it from another of its name, and the version of a typed topic's schema, that of the columns."""

    schema: pa.Schema
    folder: str
    created_at: str
    schema_id: int | None = None

    @staticmethod
    def fetch(client: Client, topic: str) -> "TopicFacts":
        """Asks a broker."""
        facts = client.run(call("GET", topic_path(topic)))
        return TopicFacts(table_schema(facts), facts["path"], facts["created_at"], facts.get("schema_id"))

    def check_same(self, known: Sequence[Mapping[str, Any]]) -> None:
        """Raises ClientError for a segment map of another topic of this name."""
        if other := segments_of_another(self.created_at, known):
            raise ClientError(
                f"the topic at {self.folder} was deleted and created again: the query reads the topic "
                f"that was created at {self.created_at}, but segment {other[0]['id']} belongs to a "
                f"topic that was created at {other[0]['created_at']}. To read the new topic, call "
                "load() again; a stream of the new topic needs a new checkpoint"
            )


class TopicPartition(InputPartition):
    """The share of one task, and its facts of the topic and the plan: readers are made anew for executors.
    What has expired at `as_of` is left out."""

    def __init__(self, share: TaskShare, facts: TopicFacts, as_of: datetime | None = None) -> None:
        super().__init__(share)
        self.share = share
        self.facts = facts
        self.as_of = as_of


class PartitionReader:
    """Reads partitions, on executors."""

    def __init__(self, options: Options, schema: "StructType", facts: TopicFacts | None = None) -> None:
        self.options = options
        self.schema = schema
        self.facts = facts  # those by which the schema was told, if Spark has asked for it

    def describe(self, client: Client) -> TopicFacts:
        """Returns the facts of the topic, asked for once. Raises ValueError for a column that it does not have."""
        if self.facts is None:
            facts = TopicFacts.fetch(client, self.options.topic)
            check_columns(facts.schema, arrow_schema(self.schema))
            self.facts = facts
        return self.facts

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition."""
        if not isinstance(partition, TopicPartition):
            return
        share, facts = partition.share, partition.facts
        read = TableRead(
            self.options.topic,
            facts.schema,
            arrow_schema(self.schema),
            facts.folder,
            share.files,
            share.tail,
            partition.as_of,
            self.options.storage,
            alone=False,
            schema_id=facts.schema_id,
        )
        if not read.columns.names and not read.as_of:
            yield from read.empty_batches()
            return
        yield from self._read_files(read, facts)
        if share.tail:
            with Client(self.options.url) as client:
                for rows in share.tail:
                    yield from self._read_tail(client, read, rows, facts)

    def lose(self, losses: Sequence[Loss]) -> None:
        """Raises ClientError for lost rows, or logs them if the query is to go on."""
        if not losses:
            return
        said = "; ".join(map(str, losses[:10])) + (f"; and {len(losses) - 10} more" if len(losses) > 10 else "")
        detail = f"rows of topic {self.options.topic!r} were deleted before they were read: {said}"
        if self.options.fail_on_data_loss:
            raise ClientError(f"{detail}. To skip the deleted rows and continue, set the option failOnDataLoss=false")
        logger.warning("%s; the query skips the deleted rows and continues", detail)

    def _read_files(self, read: TableRead, facts: TopicFacts) -> Iterator[pa.RecordBatch]:
        def is_gone(part: FilePart) -> bool:
            with Client(self.options.url) as client:
                gone = self._losses(client, facts, [_rows(part)])
            self.lose(gone)
            return [loss.end for loss in gone] == [part.end]

        try:
            yield from read.file_batches(None if self.options.fail_on_data_loss else is_gone)
        except FileMissing:
            with Client(self.options.url) as client:
                self.lose(self._losses(client, facts, [_rows(part) for part in read.files]))
            raise

    def _read_tail(self, client: Client, read: TableRead, rows: Rows, facts: TopicFacts) -> Iterator[pa.RecordBatch]:
        at = rows.start
        while at < rows.end:
            try:
                for batch in client.read_segment(read.topic, rows.segment, at, rows.end, "keep"):
                    if batch.num_rows:
                        at = batch.column("_offset")[-1].as_py() + 1
                        yield read.conform(batch)
                return
            except (BelowRetention, SegmentNotFound):
                gone = self._losses(client, facts, [Rows(rows.segment, at, rows.end)])
                if not gone:
                    raise
                self.lose(gone)
                at = gone[0].end or rows.end

    def _losses(self, client: Client, facts: TopicFacts, wanted: Sequence[Rows]) -> list[Loss]:
        """Asks which of these rows retention has deleted. Raises ClientError if the topic was created anew."""
        there = client.run(segments(self.options.topic))
        facts.check_same(there)
        known = client.run(with_removed(self.options.topic, there, {rows.segment for rows in wanted}))
        starts = {each["id"]: each["start_offset"] for each in known}
        behind = [(rows, min(starts.get(rows.segment, BEYOND), rows.end)) for rows in wanted]
        return [Loss(rows.segment, rows.start, start) for rows, start in behind if start > rows.start]


def loss_of(rows: Rows) -> Loss:
    """Returns rows as a loss."""
    return Loss(rows.segment, rows.start, rows.end)


def _rows(part: FilePart) -> Rows:
    return Rows(part.file.segment, part.start, part.end)
