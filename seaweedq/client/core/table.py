"""A topic as Arrow: its files and, with `live`, the acknowledged rows that are not in a file yet.

Why no row is missing or doubled: first the brokers state each segment's pin and end (`table_plan`), then they list the
files, and then they return the rows from each pin up to the end, wherever these are by then. Only the offsets decide,
and a file is never rewritten. Rows that a list ought to have and has not (another broker made it, or retention went on
meanwhile) come from brokers, too, unless retention has taken them. No file is opened before its rows are read.

Rows that expire stay in their files. So expiry is judged here, of all rows alike, by the time of the cluster at which
the read was planned: whether a row is in a file, and when it is read, makes no difference.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa

from seaweedq.client.core.calls import Expired, TopicFile, described, offsets_of, segments, topic_files, with_removed
from seaweedq.client.core.effects import Steps, Work
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.segment_rows import SEGMENT, fetch_rows
from seaweedq.client.core.table_plan import FilePart, Rows, check_expired, check_order, parts, plan, uncovered
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import parse_schema

Bounds: TypeAlias = Mapping[int, int] | datetime | None
EXPIRES = "_expires"
NOW = "now"  # of a segment map, and of the offsets of a stream
COUNTED_ROWS = 100_000  # of a batch without columns


@dataclass(frozen=True)
class ReadOptions:
    """The rows of a topic to read: its columns, half-open bounds by segment or by time, segments, and whether those
    that have expired are among them. Raises ValueError for an unknown `expired`, and bounds that are reversed."""

    columns: Sequence[str] | None = None
    live: bool = False
    starting: Bounds = None
    ending: Bounds = None
    only: Collection[int] | None = None
    expired: Expired = "skip"

    def __post_init__(self) -> None:
        check_expired(self.expired)
        check_order(self.starting, self.ending)


@dataclass(frozen=True)
class TableRead:
    """A planned read: the columns, the parts of files below `folder`, and the rows that only brokers have. Rows whose
    `_expires` the time `as_of` has reached are left out; without that time none are. `alone` is that of a FileScan."""

    topic: str
    schema: pa.Schema
    columns: pa.Schema
    folder: str
    files: Sequence[FilePart]
    tail: Sequence[Rows]
    as_of: datetime | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = True

    def of_files(self, gone: Callable[[FilePart], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of files; on S3 with the credentials and the endpoint of boto's variables and files, unless
        `storage` has others. Blocks. Raises FileMissing if a file is not there, unless `gone` says that retention has
        taken it."""
        from seaweedq.client.core.file_scan import FileScan  # costs 0.3 s, which who reads otherwise is spared

        names = self.columns.names
        if self.as_of and EXPIRES not in names:
            names = [*names, EXPIRES]
        scan = FileScan(self.folder, self.schema, names, self.storage, self.alone)
        yield from map(self.conformed, scan.batches(self.files, gone))

    def counted(self) -> Iterator[pa.RecordBatch]:
        """Yields rows without columns, as many as the plan has, expired or not: nothing is opened or fetched."""
        for rows in [*(Rows(part.file.segment, part.start, part.end) for part in self.files), *self.tail]:
            for piece in rows.cut(COUNTED_ROWS):
                yield pa.record_batch([pa.nulls(len(piece))], [SEGMENT.name]).select([])

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with exactly the columns of the read, and without those that have expired."""
        if self.as_of:
            batch = unexpired(batch, self.as_of)
        if not self.columns.names:
            return batch.select([])  # which keeps the number of rows
        present = set(batch.schema.names)
        columns = []
        for one in self.columns:
            column = batch.column(one.name) if one.name in present else pa.nulls(batch.num_rows, one.type)
            # Arrow would load all its functions also for a cast to the same type.
            columns.append(column if column.type == one.type else column.cast(one.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.columns)

    def table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Returns batches of the read as one table."""
        return pa.Table.from_batches(batches, self.columns)


def unexpired(batch: pa.RecordBatch, as_of: datetime) -> pa.RecordBatch:
    """Returns the rows whose `_expires` is later than a time, or null."""
    expires = batch.column(EXPIRES)
    if expires.null_count == len(expires):
        return batch
    import pyarrow.compute as pc  # costs 20 ms, which rows that never expire are spared

    return batch.filter(pc.greater(expires, pa.scalar(as_of, expires.type)).fill_null(True))


def table_schema(facts: Mapping[str, Any]) -> pa.Schema:
    """Returns the columns of a topic's files, and `segment` at the end, given the topic as a broker shows it."""
    fields = parse_schema(facts["schema"]) if facts.get("schema") else None
    return Layout.of(Format(facts["format"]), fields).table.append(SEGMENT).remove_metadata()


def plan_table(topic: str, wanted: ReadOptions) -> Steps[TableRead]:
    """Plans a read. Raises ValueError for an unknown column, segment or offset."""
    facts, answer = yield from described(topic)
    there = answer["segments"]
    schema = table_schema(facts)
    columns = _chosen(schema, wanted.columns)
    known = yield from with_removed(topic, there, wanted.starting, wanted.ending, wanted.only)
    starting = yield from by_segment(topic, known, wanted.starting)
    ending = yield from by_segment(topic, known, wanted.ending)
    planned = plan(known, starting, ending, wanted.only, tail=wanted.live)
    listed = (yield from topic_files(topic)) if planned.files else []
    found = yield from completed(topic, listed, planned.files)
    tail = (*found.unlisted, *planned.tail)
    return TableRead(topic, schema, columns, facts["path"], found.files, tail, time_of(answer, wanted.expired))


def time_of(answer: Mapping[str, Any], expired: Expired) -> datetime | None:
    """Returns the time by which rows have expired, given a segment map, or what else states it; None where they are
    kept."""
    return None if expired == "keep" else datetime.fromisoformat(answer[NOW])


@dataclass(frozen=True)
class Found:
    """The files that have some rows, the rows that only brokers can return, and those that retention took meanwhile."""

    files: Sequence[FilePart]
    unlisted: Sequence[Rows] = ()
    gone: Sequence[Rows] = ()


def completed(topic: str, listed: Sequence[TopicFile], wanted: Sequence[Rows]) -> Steps[Found]:
    """Looks for rows that brokers have said to be in files. Asks for the segments again where a list has not all."""
    files = parts(listed, wanted)
    missing = uncovered(files, wanted)
    if not missing:
        return Found(files)
    starts = {each["id"]: each["start_offset"] for each in (yield from segments(topic))}
    gone, unlisted = [], []
    for rows in missing:
        start = min(max(starts.get(rows.segment, rows.end), rows.start), rows.end)
        gone.append(Rows(rows.segment, rows.start, start))
        unlisted.append(Rows(rows.segment, start, rows.end))
    return Found(files, [rows for rows in unlisted if len(rows)], [rows for rows in gone if len(rows)])


def by_segment(topic: str, known: Sequence[Mapping[str, Any]], bounds: Bounds) -> Steps[Mapping[int, int] | None]:
    """Returns bounds as offsets of the known segments; those of a time are at most their ends."""
    if not isinstance(bounds, datetime):
        return bounds
    found = yield from offsets_of(topic, bounds)
    return {each["id"]: min(found.get(each["id"], each["end_offset"]), each["end_offset"]) for each in known}


def _chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        return schema
    if unknown := sorted(set(columns) - set(schema.names)):
        raise ValueError(f"the table has no columns {unknown}; it has {schema.names}")
    return pa.schema([schema.field(name) for name in columns])


def read_table(topic: str, wanted: ReadOptions, patience: Patience) -> Steps[pa.Table]:
    """Returns a topic's rows, in no particular order."""
    read = yield from plan_table(topic, wanted)
    batches: list[pa.RecordBatch] = yield Work(lambda: list(read.of_files()))
    for rows in read.tail:
        batches += yield from tail_batches(read, rows, patience)
    return read.table(batches)


def tail_batches(read: TableRead, rows: Rows, patience: Patience) -> Steps[list[pa.RecordBatch]]:
    """Returns rows that brokers have, with the columns of the read."""
    batches: list[pa.RecordBatch] = []
    start = rows.start
    while start < rows.end:
        some, start = yield from fetch_rows(read.topic, rows.segment, start, rows.end, patience, "keep")
        batches += map(read.conformed, some)
    return batches


def next_batch(batches: Iterator[pa.RecordBatch]) -> Steps[pa.RecordBatch | None]:
    """Returns the next batch, None at the end."""
    batch: pa.RecordBatch | None = yield Work(lambda: next(batches, None))
    return batch
