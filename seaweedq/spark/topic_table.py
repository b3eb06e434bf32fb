"""A topic as a DataFrame: Spark's own Parquet reader over its files, and the rows that are not in files yet.

The order: the brokers state starts, ends and pins (`client.core.table`), then Spark lists the files, then the rows
behind the pins are fetched from brokers, some through the driver and the others by executors. Executors need seaweedq
and a way to the brokers; files are read by Spark alone.

Spark's list has files below the starts, too, which retention deletes at any moment: they are left out by their names.
A start that is raised after it was stated leaves its files there for the grace, so for that long from the call on no
file goes that is read. The rows and files that a read has are conditions in Spark's SQL.

A read from the store alone, without a broker, is planned from a listing of the topic's folder, which has the chain of
each segment. The footer of a chain's last entry states its end, up to which all rows are in files: the segment's pin.
Files that appear later are behind the pins. Segments are listed one after the other, and brokers write their files
independently of each other, so rows of a segment may be there while the last ones of a predecessor are in no file yet.

Objects of somebody else are left out, as brokers do it, and Spark, which is told the names of entries. A folder of
somebody else is an error: Spark reads no others beside those of segments.

The chain must be whole from its first entry that is there. What stands before a gap may be left over from retention, or
the gap may be damage: brokers know that, a listing does not.
"""

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from seaweedq.client.core.calls import Expired, describe_topic, flush, topic_path, with_newest_schema, with_removed
from seaweedq.client.core.table import (
    SEGMENT,
    Bounds,
    Rows,
    TablePlan,
    bounds_by_segment,
    check_expired,
    check_order,
    conformed,
    expiry_time,
    opened,
    plan,
    table_schema,
)
from seaweedq.client.sync.client import Client
from seaweedq.clock import SystemClock
from seaweedq.errors import ChainDamaged, ClientError, TopicNotFound
from seaweedq.segments.entry import ENTRIES, MARKERS, EntryMetadata, EntryName, open_entry
from seaweedq.segments.evolution import aliases_of, distinct
from seaweedq.spark.compat import check_version, spark_schema_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)
_SEGMENT = re.compile(r"segment=(0|[1-9][0-9]*)")
FOOTERS = 8  # that are read at a time
MIB = 1024 * 1024
DRIVER_BYTES = 32 * MIB  # of rows that are in no file, through the driver; the others come by executors
TASK_ROWS = 200_000  # of those that one task fetches
NO_FIELDS: Mapping[str, Any] = {"fields": ()}
V1_SOURCES = "spark.sql.sources.useV1SourceList"
Tail = Literal["read", "flush", "skip"]
_FOLDER = "substring_index(substring_index(_metadata.file_path, '=', -1), '/', 1)"  # the segment's number


def read_topic(
    spark: "SparkSession",
    topic: str,
    url: str | Sequence[str] | None = None,
    tail: Tail = "read",
    starting: Bounds = None,
    ending: Bounds = None,
    segments: Collection[int] | None = None,
    headers: Mapping[str, str] | None = None,
    store: str | None = None,
    storage: Mapping[str, Any] | None = None,
    expired: Expired = "skip",
) -> "DataFrame":
    """Returns a topic's rows, unsorted: every row acknowledged before the call, exactly once.

    `url` is the URL of one broker or of several; the default is SEAWEEDQ_URL. `tail` decides about rows that are not in
    files yet: "read" fetches them from brokers, "flush" makes brokers write them to files first, and "skip" leaves them
    out. `starting` (inclusive) and `ending` (exclusive) are either offsets by segment or datetimes. Segments that the
    offsets omit are read from their start, or to their end. A datetime stands for each segment's first row with this
    `_timestamp` or a later one. `segments` excludes all other segments. `headers` are sent with every request. With the
    URL of a `store`, no broker is asked and `tail` must be "skip": the rows come from the store's files, which are
    listed with `storage` as fsspec options. Rows that have expired by the cluster's time (with a `store`: by this
    machine's time) are left out; `expired="keep"` includes them. The columns are those of spark.read.parquet, with
    `segment` at the end. Works in classic sessions and in Spark Connect.

    Raises ValueError for an unknown `tail`, `expired`, segment or offset, and for a start above its end; TopicNotFound;
    and ConnectionFailed if no broker answers within a client's timeout. A query that runs longer than the topic's
    `grace_s` may fail because retention has deleted a file; a query with a `store` may fail so at any time."""
    if tail not in get_args(Tail):
        raise ValueError(f"tail must be one of {', '.join(map(repr, get_args(Tail)))}, not {tail!r}")
    check_version(spark.version)
    check_expired(expired)
    check_order(starting, ending)
    if store is not None:
        folder = topic_folder(store, topic)
        if tail != "skip":
            detail = "with a store, tail must be 'skip', because only brokers have rows that are not in files"
            raise ValueError(f"tail is {tail!r}; {detail}")
        frame = _frame_of_store(spark, folder, starting, ending, segments, storage or {})
        now = datetime.fromtimestamp(SystemClock().now_us() / 1e6, UTC)
        return frame if expired == "keep" else frame.where(unexpired(now))
    where = url or os.environ.get("SEAWEEDQ_URL")
    if not where:
        raise ValueError("no broker URL is given, and SEAWEEDQ_URL is not set")

    with Client(where, headers=headers) as client:
        if tail == "flush":
            client.run(flush(topic))
        facts, answer = client.run(describe_topic(topic))
        facts = client.run(with_newest_schema(topic, facts))  # Spark finds the columns of files by their names
        known = client.run(with_removed(topic, answer["segments"], starting, ending, segments))
        begin, end = (client.run(bounds_by_segment(topic, known, bound)) for bound in (starting, ending))
        chosen = plan(known, begin, end, segments, tail=tail == "read")
        frame = planned_frame(
            spark, client, Fetch(where, topic, headers or {}, table_schema(facts)), facts, known, chosen
        )
    as_of = expiry_time(answer, expired)
    return frame.where(unexpired(as_of)) if as_of else frame


def planned_frame(
    spark: "SparkSession",
    client: Client,
    fetch: "Fetch",
    facts: Mapping[str, Any],
    known: Sequence[Mapping[str, Any]],
    chosen: TablePlan,
) -> "DataFrame":
    """Returns the planned rows of a topic, expired or not, given the topic as a broker shows it and its segments."""
    schema = spark_schema_of(table_schema(facts))
    first = {each["id"]: name for each in known if (name := each.get("start_file"))}  # brokers of before have none
    frame = _files(spark, facts["path"], schema, chosen, first, aliases_of(facts.get("schema") or NO_FIELDS))
    batches, rest = fetch_tail(client, fetch, chosen.tail)
    if batches:
        frame = frame.unionByName(spark.createDataFrame(pa.Table.from_batches(batches), schema))
    return frame.unionByName(_by_executors(spark, fetch, rest, schema)) if rest else frame


def _frame_of_store(
    spark: "SparkSession",
    folder: str,
    starting: Bounds,
    ending: Bounds,
    segments: Collection[int] | None,
    storage: Mapping[str, Any],
) -> "DataFrame":
    if isinstance(starting, datetime) or isinstance(ending, datetime):
        raise ValueError(
            "if a topic is read from a store and not through a broker, the arguments `starting` and `ending` must be "
            "offsets, because only brokers can find the offsets that belong to a time"
        )
    chosen, schema, aliases = plan_of_store(folder, storage, starting, ending, segments)
    return _files(spark, folder, spark_schema_of(schema), chosen, {}, aliases)


def _files(
    spark: "SparkSession",
    folder: str,
    schema: "StructType",
    chosen: TablePlan,
    first: Mapping[int, str],
    aliases: Mapping[str, Sequence[str]],
) -> "DataFrame":
    """Returns the rows of files, given the name of each segment's first file that counts, if some do not, and the
    `aliases` under which files of earlier versions have columns."""
    if not chosen.files:
        return spark.createDataFrame([], schema)  # a topic without files may have no folder
    from pyspark.sql.types import StructField, StructType

    earlier = {name: distinct(name, names) for name, names in aliases.items()}
    more = [StructField(one, schema[name].dataType) for name, names in earlier.items() for one in names]
    whole = StructType([*schema.fields[:-1], *more, schema.fields[-1]])
    files = spark.read.schema(whole).option("pathGlobFilter", ENTRIES).parquet(s3a(folder))
    of_files = file_condition(chosen.files, first)
    if of_files and "parquet" in (spark.conf.get(V1_SOURCES) or "").split(","):  # the others have no `_metadata`
        files = files.where(of_files)
    files = files.where(condition(chosen.files))
    return files.selectExpr(*(_first_of(name, earlier.get(name, ())) for name in schema.names)) if more else files


def _first_of(name: str, others: Sequence[str]) -> str:
    """Returns the one of these columns that has a value, as the column of a name, in Spark's SQL."""
    names = ["`" + one.replace("`", "``") + "`" for one in (name, *others)]
    return f"coalesce({', '.join(names)}) AS {names[0]}" if others else names[0]


class Fetch:
    """Fetches ranges of rows on an executor, with the `columns` that the topic had when the read was planned."""

    def __init__(self, url: str | Sequence[str], topic: str, headers: Mapping[str, str], columns: pa.Schema) -> None:
        self._url, self.topic, self._headers, self._columns = url, topic, dict(headers), columns

    def __call__(self, ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of ranges (segment, start, end)."""
        with Client(self._url, headers=self._headers) as client:
            for batch in ranges:
                for each in batch.to_pylist():
                    for rows in client.read_segment(self.topic, each["segment"], each["start"], each["end"], "keep"):
                        yield self.plain(rows)

    def plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows as Spark takes them: without the marks of a field's type, and fixed binary as plain."""
        rows = conformed(rows, self._columns, self._columns)
        columns = [
            each.cast(pa.binary()) if pa.types.is_fixed_size_binary(each.type) else each for each in rows.columns
        ]
        return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def s3a(path: str) -> str:
    """Returns the path of a topic's files as Spark takes it: its S3 reader goes by `s3a`."""
    return "s3a://" + path.removeprefix("s3://") if path.startswith("s3://") else path


def fetch_tail(client: Client, fetch: Fetch, tail: Iterable[Rows]) -> tuple[list[pa.RecordBatch], list[Rows]]:
    """Fetches rows until they have DRIVER_BYTES, and returns them with the ranges that are left."""
    held: list[pa.RecordBatch] = []
    rest: list[Rows] = []
    size = 0
    for rows in tail:
        if size >= DRIVER_BYTES:
            rest.append(rows)
            continue
        for batch in client.read_segment(fetch.topic, rows.segment, rows.start, rows.end, "keep"):
            held.append(fetch.plain(batch))
            size += batch.nbytes
            at = batch.column("_offset")[-1].as_py() + 1
            if size >= DRIVER_BYTES:
                rest += [Rows(rows.segment, at, rows.end)] if at < rows.end else []
                break
    return held, rest


def _by_executors(spark: "SparkSession", fetch: Fetch, rest: Iterable[Rows], schema: "StructType") -> "DataFrame":
    ranges = [(piece.segment, piece.start, piece.end) for rows in rest for piece in rows.cut(TASK_ROWS)]
    frame = spark.createDataFrame(ranges, "segment int, start bigint, end bigint")
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = fetch.__call__
    return frame.repartition(len(ranges)).mapInArrow(work, schema)


def condition(files: Sequence[Rows]) -> str:
    """Returns the rows that come from files as a condition; there is at most one range a segment.

    Two arrays by segment number instead of a term for each segment: of a hundred of those, Spark's planner alone takes
    seconds. Segments without rows are left out by their numbers alone, so that Spark opens none of their files.
    """
    if not files:
        return "false"
    known = {rows.segment: rows for rows in files}
    numbers = _numbers(files)
    lowest, highest = numbers[0], numbers[-1]
    ends = [known[n].end if n in known else 0 for n in numbers]
    starts = [known[n].start if n in known else 0 for n in numbers]
    terms = [f"segment BETWEEN {lowest} AND {highest}"]
    if gaps := [n for n in numbers if n not in known]:
        terms.append(f"segment NOT IN ({', '.join(map(str, gaps))})")
    terms.append(f"_offset < {_array(ends)}[segment - {lowest}]")
    if any(starts):
        terms.append(f"_offset >= {_array(starts)}[segment - {lowest}]")
    return " AND ".join(terms)


def file_condition(files: Sequence[Rows], first: Mapping[int, str]) -> str:
    """Returns the files that have these rows as a condition, given the name of each segment's first file that counts,
    if some before it do not. Empty if all count.

    Spark leaves out files by a condition on its `_metadata` alone when it plans a query, and evaluates it for each row
    again. So most rows are settled by one comparison of names, with that of the segment whose files begin last.
    """
    numbers = _numbers(files)
    names = [first.get(n, "") for n in numbers]
    last = max(names, default="")
    if not last:
        return ""
    settled = f"_metadata.file_name >= '{last}'"
    if len({*names}) == 1:
        return settled
    array = ", ".join(f"'{name}'" for name in names)
    return f"({settled} OR _metadata.file_name >= get(array({array}), CAST({_FOLDER} AS INT) - {numbers[0]}))"


def unexpired(as_of: datetime) -> str:
    """Returns the rows that have not expired at a time as a condition.

    Each plan has another time. One that stands alone is a part of the code that Spark generates, and has it compiled
    for each query anew, which costs half a second of CPU; what is in an array is handed to the same code. The index is
    0, and Spark does not know it.
    """
    return f"_expires IS NULL OR _expires > array(TIMESTAMP '{as_of.isoformat()}')[least(segment, 0)]"


def _numbers(files: Sequence[Rows]) -> Sequence[int]:
    segments = [rows.segment for rows in files]
    return range(min(segments), max(segments) + 1) if segments else ()


def _array(numbers: Sequence[int]) -> str:
    return f"array({', '.join(f'{number}L' for number in numbers)})"


def topic_folder(store: str, topic: str) -> str:
    """Returns the URL of a topic's folder in a store. Raises InvalidName."""
    topic_path(topic)
    return f"{store.rstrip('/')}/topics/{topic}"


def plan_of_store(
    folder: str,
    storage: Mapping[str, Any],
    starting: Mapping[int, int] | None,
    ending: Mapping[int, int] | None,
    only: Collection[int] | None,
) -> tuple[TablePlan, pa.Schema, Mapping[str, Sequence[str]]]:
    """Returns the rows of a topic that are in files, its columns, with `segment` at the end, and their aliases.

    Raises TopicNotFound if there are no files, ChainDamaged for a chain with a gap, ClientError if the schema changed
    meanwhile, ValueError as `plan`.
    """
    store, root = opened(folder, storage)
    chains, markers = _chains(_listed(store, root), folder)
    paths = [f"{root}/segment={number}/{names[-1]}" for number, names in chains.items()]
    newest = max(markers, key=lambda one: (one.first_offset, -one.sequence), default=None)
    with ThreadPoolExecutor(min(FOOTERS, len(paths))) as pool:
        last = list(pool.map(lambda path: _footer(store, path), paths))
        marker, columns = _footer(store, f"{root}/segment={MARKERS}/{newest}") if newest else last[-1]
    if any(metadata.schema_id > marker.schema_id for metadata, _ in last):  # its columns would be null
        raise ClientError(
            f"the schema of the topic at {folder} changed while the topic's files were listed; read the topic again"
        )
    known = [
        {
            "id": number,
            "start_offset": names[0].first_offset,
            "flushed_offset": metadata.next_offset,
            "end_offset": metadata.next_offset,
        }
        for (number, names), (metadata, _) in zip(chains.items(), last, strict=True)
    ]
    schema = columns.append(SEGMENT).remove_metadata()
    record = marker.schema_record if isinstance(marker.schema_record, dict) else {}
    return plan(known, starting, ending, only, tail=False), schema, aliases_of(record.get("schema", NO_FIELDS))


def _listed(store: FileSystem, root: str) -> list[str]:
    """Returns the places of files below a topic's folder."""
    try:
        infos = store.get_file_info(FileSelector(root, recursive=True))
    except FileNotFoundError:
        return []
    return [info.path.removeprefix(root).lstrip("/") for info in infos if info.type == FileType.File]


def _chains(places: Iterable[str], topic: str) -> tuple[dict[int, Sequence[EntryName]], Sequence[EntryName]]:
    """Returns the entries of each segment, in their order, by the segments' numbers, and the markers of the schema's
    versions."""
    found: dict[int, list[EntryName]] = {}
    markers: list[EntryName] = []
    others: list[str] = []
    for place in places:
        folder, _, name = place.rpartition("/")
        segment, entry = _SEGMENT.fullmatch(folder), EntryName.from_object(name)
        if entry and folder == f"segment={MARKERS}":
            markers.append(entry)
            continue
        if folder and not segment and not _is_hidden(folder):
            detail = (
                f"{place!r} at {topic} is in a folder that does not belong to a segment; Spark cannot read a topic "
                "beside such a file"
            )
            raise ClientError(detail, name=place)
        if segment and entry:
            found.setdefault(int(segment[1]), []).append(entry)
        else:
            others.append(place)
    if not found:
        raise TopicNotFound(f"no topic files were found at {topic}", url=topic)
    if others:
        logger.warning("ignoring objects in %s that seaweedq did not write: %s", topic, sorted(others)[:3])
    return {number: _check_whole(number, sorted(names)) for number, names in sorted(found.items())}, markers


def _is_hidden(folder: str) -> bool:
    """Tells whether Spark reads nothing below a folder."""
    return any(part.startswith((".", "_")) and "=" not in part for part in folder.split("/"))


def _check_whole(number: int, names: Sequence[EntryName]) -> Sequence[EntryName]:
    for one, following in pairwise(names):
        if following.sequence != one.sequence + 1:
            raise ChainDamaged(
                f"in segment {number}, the files between {one} and {following} are missing. Only brokers know whether "
                "retention deleted these files and all files before them; to find out, read the topic through a broker "
                "(give url, not store)",
                name=str(following),
            )
    return names


def _footer(store: FileSystem, path: str) -> tuple[EntryMetadata, pa.Schema]:
    with store.open_input_file(path) as file:
        parquet, metadata = open_entry(file, path)
        return metadata, parquet.schema_arrow
