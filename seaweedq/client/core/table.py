"""A topic as Arrow: its files and, with `live`, the acknowledged rows that are not in a file yet.

Why no row is missing or doubled: first the brokers state for each segment the offset up to which all rows are in files,
and its end. The first is the segment's *pin*: rows below it come from files, rows from it up to the end from brokers.
Then the brokers list the files, and then they return the rows from each pin up to the end, wherever these are by then.
Files are never rewritten, and only offsets decide, whatever brokers flush, split or merge meanwhile. Rows that a list
ought to have and lacks (another broker made it, or retention went on meanwhile) come from brokers, too, unless
retention has removed them. No file is opened before its rows are read.

Rows that expire stay in their files. So expiry is judged here, of all rows alike, by the time of the cluster at which
the read was planned: it does not matter whether a row is in a file, or when it is read.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, get_args

import pyarrow as pa

from seaweedq.client.core.attempts import Patience
from seaweedq.client.core.calls import (
    Expired,
    TopicFile,
    describe_topic,
    fetch_request,
    offsets_at,
    segments,
    topic_files,
    with_removed,
)
from seaweedq.client.core.effects import ARROW, BlockingCall, Steps
from seaweedq.errors import ClientError, FileMissing
from seaweedq.extras import install_command
from seaweedq.segments.evolution import aliases_of
from seaweedq.segments.layout import Format, Layout, by_name, identity
from seaweedq.segments.schema import parse_schema

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FETCH_ROWS = 10_000
SEGMENT = pa.field("segment", pa.int32())
Bounds: TypeAlias = Mapping[int, int] | datetime | None
EXPIRES = "_expires"
NOW = "now"  # of a segment map, and of the offsets of a stream
COUNTED_ROWS = 100_000  # of a batch without columns
UNKNOWN = -1  # the version of a file that no broker told
BATCH_ROWS = 32_768  # few enough to stay in a processor's cache until they are used


@dataclass(frozen=True, slots=True)
class Rows:
    """A half-open range of a segment's offsets."""

    segment: int
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def cut(self, most: int) -> list["Rows"]:
        """Returns the range in pieces of at most `most` rows."""
        return [Rows(self.segment, at, min(at + most, self.end)) for at in range(self.start, self.end, most)]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The rows that come from files, and those that come from brokers. Empty ranges are left out."""

    files: tuple[Rows, ...]
    tail: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class FilePart:
    """The rows of [start, end) of a file."""

    file: TopicFile
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Tells whether these are all of the file's rows."""
        return (self.start, self.end) == (self.file.first_offset, self.file.next_offset)


def parts(files: Iterable[TopicFile], wanted: Iterable[Rows]) -> list[FilePart]:
    """Returns the parts of files that have these rows. There is at most one range a segment."""
    ranges = {rows.segment: rows for rows in wanted}
    found = []
    for file in files:
        rows = ranges.get(file.segment, Rows(file.segment, 0, 0))
        start, end = max(file.first_offset, rows.start), min(file.next_offset, rows.end)
        if start < end:
            found.append(FilePart(file, start, end))
    return found


def find_gaps(found: Iterable[FilePart], wanted: Iterable[Rows]) -> list[Rows]:
    """Returns those of the wanted rows that are in none of the parts found."""
    by_segment: dict[int, list[FilePart]] = {}
    for part in sorted(found, key=lambda one: one.start):
        by_segment.setdefault(part.file.segment, []).append(part)
    gaps = []
    for rows in wanted:
        at = rows.start
        for part in by_segment.get(rows.segment, ()):
            gaps.append(Rows(rows.segment, at, part.start))
            at = part.end
        gaps.append(Rows(rows.segment, at, rows.end))
    return [gap for gap in gaps if len(gap)]


def plan(
    known: Sequence[Mapping[str, Any]],
    starting: Mapping[int, int] | None = None,
    ending: Mapping[int, int] | None = None,
    only: Collection[int] | None = None,
    *,
    tail: bool = True,
) -> TablePlan:
    """Plans a read of the segments that brokers listed (`Client.segments`).

    `starting` and `ending` are offsets by segment; those that they do not name are read from their start, to their end.
    `only` leaves out all other segments. Rows that retention has taken are left out. Raises ValueError for an unknown
    segment, and for an offset beyond a segment's end.
    """
    starting, ending = dict(starting or {}), dict(ending or {})
    ends = {each["id"]: each["end_offset"] for each in known}
    _check("segments", dict.fromkeys(ends if only is None else only, 0), ends)
    _check("starting", starting, ends)
    _check("ending", ending, ends)
    files, rest = [], []
    for each in sorted(known, key=lambda one: int(one["id"])):
        number = each["id"]
        if only is not None and number not in only:
            continue
        start = max(starting.get(number, 0), each["start_offset"])
        end = ending.get(number, each["end_offset"])
        files.append(Rows(number, start, min(each["flushed_offset"], end)))
        rest.append(Rows(number, max(start, each["flushed_offset"]), end))
    return TablePlan(tuple(filter(len, files)), tuple(filter(len, rest)) if tail else ())


def check_order(starting: object, ending: object, names: tuple[str, str] = ("starting", "ending")) -> None:
    """Raises ValueError for a start that is above its end: two offsets of a segment, or two times."""
    start, end = names
    if isinstance(starting, Mapping) and isinstance(ending, Mapping):
        for segment in starting.keys() & ending.keys():
            first, last = starting[segment], ending[segment]
            if isinstance(first, int) and isinstance(last, int) and first > last:
                raise ValueError(
                    f"for segment {segment}, {start} has offset {first}, but {end} has offset {last}; the start must "
                    "not be later than the end"
                )
    elif _is_time(starting) and _is_time(ending) and starting > ending:
        raise ValueError(
            f"{start} must not be later than {end}, but {start} is {starting.isoformat()}, and {end} is "
            f"{ending.isoformat()}"
        )


def _is_time(bound: object) -> TypeGuard[datetime]:
    return isinstance(bound, datetime) and bound.tzinfo is not None


def check_expired(expired: object) -> None:
    """Raises ValueError for what `expired` cannot be."""
    if expired not in get_args(Expired):
        raise ValueError(f"expired must be one of {', '.join(map(repr, get_args(Expired)))}, not {expired!r}")


def _check(option: str, stated: Mapping[int, int], ends: Mapping[int, int]) -> None:
    for segment, offset in stated.items():
        if segment not in ends:
            numbers = sorted(ends)
            shown = ", ".join(map(str, numbers[:10])) + (f", ... {numbers[-1]}" if len(numbers) > 10 else "")
            raise ValueError(
                f"{option} names segment {segment!r}, which the topic does not have; the topic's segments are {shown}"
            )
        if not isinstance(offset, int) or not 0 <= offset <= ends[segment]:
            raise ValueError(
                f"the offset of segment {segment} in {option} must be from 0 to {ends[segment]} (the segment's end), "
                f"not {offset!r}"
            )


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
    `_expires` the time `as_of` has reached are left out; without that time none are. `schema` has all columns that
    files have. `alone` is false if others read beside this process, one for each core: then a scan takes one thread,
    which costs less CPU, and yields small batches. `schema_id` is the version of a typed topic's schema;
    `aliases` are the earlier names of its renamed columns."""

    topic: str
    schema: pa.Schema
    columns: pa.Schema
    folder: str
    files: Sequence[FilePart]
    tail: Sequence[Rows]
    as_of: datetime | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = True
    schema_id: int | None = None
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_versions(self) -> bool:
        """Tells whether some of the files may be of earlier versions of the topic's schema."""
        return any(self._version(part) is not None for part in self.files)

    @property
    def is_behind(self) -> bool:
        """Tells whether some of the files are of a later version than the one that the broker knew, whose names some
        columns of theirs may not have."""
        return any((part.file.schema_id or 0) > (self.schema_id or 0) for part in self.files)

    def file_batches(self, gone: Callable[[FilePart], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of files, in the order of `files`; on S3 with the credentials and the endpoint of boto's
        variables and files, unless `storage` has others. Blocks. Raises FileMissing if a file is not there, unless
        `gone` says that retention has removed it.

        Whole files that follow each other are one scan, which reads ahead, and each part of a file is one by itself. If
        files may be gone, each file is a scan of its own, so that the others are read all the same."""
        if not self.files:
            return
        store, root = opened(self.folder, self.storage)
        scans: list[list[FilePart]] = []
        for (whole, version), run in groupby(self.files, lambda part: (part.is_whole, self._version(part))):
            parts = [*run]
            scans += [parts] if whole and not gone and version != UNKNOWN else [[part] for part in parts]
        for parts in scans:
            try:
                yield from self._scan(parts, store, root)
            except FileNotFoundError as error:
                if gone and gone(parts[0]):
                    continue
                detail = f"not all Parquet files are visible at {self.folder} from this machine: {error}"
                raise FileMissing(detail, url=self.folder) from None

    def _version(self, part: FilePart) -> int | None:
        """Returns the version of a file's columns; None for those of the read."""
        if self.schema_id in (None, part.file.schema_id):
            return None
        return UNKNOWN if part.file.schema_id is None else part.file.schema_id

    def _scan(self, parts: Sequence[FilePart], store: "FileSystem", root: str) -> Iterator[pa.RecordBatch]:
        """Yields the rows of whole files, which are of one version of the schema, or of one part of a file."""
        import pyarrow.dataset as ds  # with fsspec it costs 0.3 s, which readers of other rows are spared

        parquet = ds.ParquetFileFormat()
        fragments = [
            parquet.make_fragment(
                f"{root}/{part.file.path}",
                store,
                partition_expression=ds.field(SEGMENT.name) == pa.scalar(part.file.segment, SEGMENT.type),
                file_size=part.file.bytes,
            )
            for part in parts
        ]
        rows = None
        if not parts[0].is_whole:
            rows = (ds.field("_offset") >= parts[0].start) & (ds.field("_offset") < parts[0].end)
        names = self.columns.names
        if self.as_of and EXPIRES not in names:
            names = [*names, EXPIRES]
        # The default pool, mimalloc, gives pages back and faults them in again: as much CPU as the decoding itself.
        pace: dict[str, Any] = {} if self.alone else {"batch_size": BATCH_ROWS, "use_threads": False}
        there = self.schema
        if self._version(parts[0]) is not None:
            there = fragments[0].physical_schema.append(SEGMENT).remove_metadata()  # which is read for the rows anyway
        own = {identity(self.schema.field(name)): name for name in names}
        named = {one.name: own[identity(one)] for one in there if identity(one) in own}
        data = ds.FileSystemDataset(fragments, there, parquet, store)
        scan = data.scanner(columns=[*named], filter=rows, memory_pool=pa.system_memory_pool(), **pace)
        for batch in scan.to_batches():
            if batch.num_rows:
                yield self.conform(batch.rename_columns([named[name] for name in batch.schema.names]))

    def empty_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields rows without columns, as many as the plan has, expired or not: nothing is opened or fetched."""
        for rows in [*(Rows(part.file.segment, part.start, part.end) for part in self.files), *self.tail]:
            for piece in rows.cut(COUNTED_ROWS):
                yield pa.record_batch([pa.nulls(len(piece))], [SEGMENT.name]).select([])

    def conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with exactly the columns of the read, and without those that have expired."""
        if self.as_of:
            batch = drop_expired(batch, self.as_of)
        if not self.columns.names:
            return batch.select([])  # which keeps the number of rows
        return conformed(batch, self.columns, self.schema)

    def table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Returns batches of the read as one table."""
        return pa.Table.from_batches(batches, self.columns)


def conformed(batch: pa.RecordBatch, columns: pa.Schema, known: pa.Schema) -> pa.RecordBatch:
    """Returns rows with exactly these columns, found by the ids of the `known` ones if rows have ids: null for those
    that rows of an earlier version of the schema lack, and without those of a later one. Raises ClientError for a value
    of a later version that does not fit."""
    places = {by(one): at for by in (by_name, identity) for at, one in enumerate(batch.schema)}
    found = []
    for one in columns:
        at = places.get(identity(known.field(one.name)), places.get(one.name))
        column = pa.nulls(batch.num_rows, one.type) if at is None else batch.column(at)
        # Arrow would load all its functions also for a cast to the same type.
        found.append(column if column.type == one.type else _cast(column, one))
    return pa.RecordBatch.from_arrays(found, schema=columns)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        found = column.cast(field.type)
        fits = field.type != pa.float32() or found.cast(column.type).fill_null(0).equals(column.fill_null(0))
    except pa.ArrowInvalid:
        fits = False
    if not fits:
        detail = f"the column {field.name!r} has values of a later version of the topic's schema; begin the read again"
        raise ClientError(detail)
    return found


def opened(folder: str, storage: Mapping[str, Any] = MappingProxyType({})) -> tuple["FileSystem", str]:
    """Returns the file system of a folder's URL, and its path there. Raises ClientError if a package is missing."""
    import fsspec
    from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

    try:
        store, root = fsspec.core.url_to_fs(folder, **{"use_listings_cache": False, **storage})
    except ImportError:
        raise ClientError(f"reading {folder} needs s3fs: {install_command('s3')}", url=folder) from None
    local = "file" in store.protocol if isinstance(store.protocol, tuple) else store.protocol == "file"
    return LocalFileSystem() if local else PyFileSystem(FSSpecHandler(store)), root


def drop_expired(batch: pa.RecordBatch, as_of: datetime) -> pa.RecordBatch:
    """Returns the rows whose `_expires` is later than a time, or null."""
    expires = batch.column(EXPIRES)
    if expires.null_count == len(expires):
        return batch
    import pyarrow.compute as pc  # costs 20 ms, which rows that never expire are spared

    return batch.filter(pc.greater(expires, pa.scalar(as_of, expires.type)).fill_null(True))


def table_schema(facts: Mapping[str, Any]) -> pa.Schema:
    """Returns the columns of a topic's files, and `segment` at the end, given the topic as a broker shows it."""
    fields = parse_schema(facts["schema"]) if facts.get("schema") else None
    return Layout.from_format(Format(facts["format"]), fields).table.append(SEGMENT).remove_metadata()


def plan_table(topic: str, wanted: ReadOptions) -> Steps[TableRead]:
    """Plans a read. Raises ValueError for an unknown column, segment or offset."""
    facts, answer = yield from describe_topic(topic)
    there = answer["segments"]
    schema = table_schema(facts)
    names = schema.names if wanted.columns is None else wanted.columns
    if unknown := sorted(set(names) - set(schema.names)):
        raise ValueError(f"the table has no columns {unknown}; its columns are {schema.names}")
    columns = schema if wanted.columns is None else pa.schema([schema.field(name) for name in names])
    known = yield from with_removed(topic, there, wanted.starting, wanted.ending, wanted.only)
    starting = yield from bounds_by_segment(topic, known, wanted.starting)
    ending = yield from bounds_by_segment(topic, known, wanted.ending)
    planned = plan(known, starting, ending, wanted.only, tail=wanted.live)
    listed = (yield from topic_files(topic)) if planned.files else []
    found = yield from cover_rows(topic, listed, planned.files)
    tail = (*found.unlisted, *planned.tail)
    as_of, version = expiry_time(answer, wanted.expired), facts.get("schema_id")
    aliases = aliases_of(facts["schema"]) if facts.get("schema") else {}
    return TableRead(
        topic, schema, columns, facts["path"], found.files, tail, as_of, schema_id=version, aliases=aliases
    )


def expiry_time(answer: Mapping[str, Any], expired: Expired) -> datetime | None:
    """Returns the time by which rows have expired, as a segment map or a stream's offsets state it; None if all
    are kept."""
    return None if expired == "keep" else datetime.fromisoformat(answer[NOW])


@dataclass(frozen=True)
class Coverage:
    """The files that have some rows, the rows that only brokers can return, and those that retention took meanwhile."""

    files: Sequence[FilePart]
    unlisted: Sequence[Rows] = ()
    gone: Sequence[Rows] = ()


def cover_rows(topic: str, listed: Sequence[TopicFile], wanted: Sequence[Rows]) -> Steps[Coverage]:
    """Looks for rows that brokers have said to be in files. Asks for the segments again if a list lacks some."""
    files = parts(listed, wanted)
    missing = find_gaps(files, wanted)
    if not missing:
        return Coverage(files)
    starts = {each["id"]: each["start_offset"] for each in (yield from segments(topic))}
    gone, unlisted = [], []
    for rows in missing:
        start = min(max(starts.get(rows.segment, rows.end), rows.start), rows.end)
        gone.append(Rows(rows.segment, rows.start, start))
        unlisted.append(Rows(rows.segment, start, rows.end))
    return Coverage(files, [rows for rows in unlisted if len(rows)], [rows for rows in gone if len(rows)])


def bounds_by_segment(
    topic: str, known: Sequence[Mapping[str, Any]], bounds: Bounds
) -> Steps[Mapping[int, int] | None]:
    """Returns bounds as offsets of the known segments; those of a time are at most their ends."""
    if not isinstance(bounds, datetime):
        return bounds
    found = yield from offsets_at(topic, bounds)
    return {each["id"]: min(found.get(each["id"], each["end_offset"]), each["end_offset"]) for each in known}


def read_table(topic: str, wanted: ReadOptions, patience: Patience) -> Steps[pa.Table]:
    """Returns a topic's rows, in no particular order."""
    read = yield from plan_table(topic, wanted)
    batches: list[pa.RecordBatch] = yield BlockingCall(lambda: list(read.file_batches()))
    for rows in read.tail:
        batches += yield from tail_batches(read, rows, patience)
    return read.table(batches)


def fetch_rows(
    topic: str, segment: int, start: int, end: int, patience: Patience, expired: Expired
) -> Steps[tuple[list[pa.RecordBatch], int]]:
    """Returns some rows of [start, end), with the column `segment` at the end, and the offset after them.

    Waits for an owner as `patience` allows. Raises BelowRetention if the first is gone.
    """
    request = fetch_request(topic, segment, start, min(FETCH_ROWS, end - start), accept=ARROW, expired=expired)
    reply = yield from patience.send(request)
    rows = pa.ipc.open_stream(reply.body).read_all().combine_chunks()
    next_offset = int(reply.headers["next-offset"])
    if next_offset <= start:
        raise ClientError(
            f"the broker returned no rows of segment {segment} from offset {start} on, although "
            f"the segment ends at offset {end}",
            segment=segment,
            offset=start,
        )
    batches = rows.to_batches()
    if SEGMENT.name in rows.schema.names:
        return batches, next_offset
    number = pa.scalar(segment, SEGMENT.type)
    return [batch.append_column(SEGMENT, pa.repeat(number, batch.num_rows)) for batch in batches], next_offset


def tail_batches(read: TableRead, rows: Rows, patience: Patience) -> Steps[list[pa.RecordBatch]]:
    """Returns rows that brokers have, with the columns of the read."""
    batches: list[pa.RecordBatch] = []
    start = rows.start
    while start < rows.end:
        some, start = yield from fetch_rows(read.topic, rows.segment, start, rows.end, patience, "keep")
        batches += map(read.conform, some)
    return batches
