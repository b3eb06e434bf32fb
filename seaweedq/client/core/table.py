"""A topic as one Arrow table: its files and, with `live`, the acknowledged rows that are not in a file yet.

Why no row is missing or doubled: first the brokers state each segment's end, then the files are listed, and then the
brokers return the rows after a segment's last file up to that end, wherever they are by then. Only the offsets decide,
and a file is never rewritten. Rows that retention had taken by the first request are left out, also where their files
are still there. If there are files of a segment that the brokers did not list, it has replaced others since: their last
rows, which precede its own, are read too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from seaweedq.client.core.calls import call, segments, topic_path
from seaweedq.client.core.effects import Steps, Work
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.segment_rows import SEGMENT, fetch_rows
from seaweedq.errors import ClientError
from seaweedq.segments.entry import EntryName

_PARTITIONS = ds.partitioning(pa.schema([SEGMENT]), flavor="hive")


@dataclass(frozen=True)
class Files:
    """A topic's files as listed once: a dataset, and for each segment the offset after its last file."""

    dataset: ds.Dataset
    next_offsets: dict[int, int]

    @staticmethod
    def list(url: str, starts: Mapping[int, int] = MappingProxyType({})) -> "Files":
        """Lists the files of a topic's directory from each segment's start on; on S3 with the credentials and the
        endpoint of boto's variables and files. Raises ClientError if there are none, since every topic has one."""
        try:
            filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ImportError:
            raise ClientError(f"reading {url} needs s3fs: pip install 'seaweedq[s3]'", url=url) from None
        listed = (path for path in filesystem.find(root) if path.endswith(".parquet"))
        found = sorted(p for p in listed if EntryName.parse(p).first_offset >= starts.get(_segment(p), 0))
        if not found:
            raise ClientError(f"no Parquet files are visible at {url} from this machine", url=url)
        last = {_segment(path): path for path in found}
        next_offsets = {}
        for segment, path in last.items():
            with filesystem.open(path) as file:
                next_offsets[segment] = EntryName.parse(path).first_offset + pq.read_metadata(file).num_rows
        dataset = ds.dataset(
            found, format="parquet", filesystem=filesystem, partitioning=_PARTITIONS, partition_base_dir=root
        )
        return Files(dataset, next_offsets)

    def check(self, columns: Sequence[str] | None) -> None:
        """Raises ValueError for an unknown column."""
        unknown = sorted(set(columns or ()) - set(self.dataset.schema.names))
        if unknown:
            raise ValueError(f"the table has no columns {unknown}; it has {self.dataset.schema.names}")

    def read(self, columns: Sequence[str] | None, tail: Sequence[pa.RecordBatch]) -> pa.Table:
        """Returns the files' rows and the tail's, with the files' columns."""
        names = list(columns) if columns is not None else self.dataset.schema.names
        table = self.dataset.to_table(columns=names)
        schema = table.schema.remove_metadata()
        return pa.concat_tables([table.cast(schema), *(_conform(batch, schema) for batch in tail)])


def _segment(path: str) -> int:
    return int(path.rsplit("/", 2)[-2].removeprefix("segment="))


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in present else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def read_table(topic: str, columns: Sequence[str] | None, live: bool, patience: Patience) -> Steps[pa.Table]:
    """Returns a topic's rows, in no particular order."""
    facts = yield from call("GET", topic_path(topic))
    known: list[dict[str, Any]] = (yield from segments(topic)) if live else []
    begin = {int(number): offset for number, offset in facts.get("start_offsets", {}).items()}
    files: Files = yield Work(lambda: Files.list(facts["path"], begin))
    files.check(columns)
    ends = {segment["id"]: segment["end_offset"] for segment in known}
    if live and files.next_offsets.keys() - ends.keys():
        known = yield from segments(topic)
        ends |= {each["id"]: each["end_offset"] for each in known if each.get("state") == "sealed"}
    starts = {segment["id"]: segment["start_offset"] for segment in known}
    tail: list[pa.RecordBatch] = []
    for number, end in sorted(ends.items()):
        start = max(files.next_offsets.get(number, 0), starts.get(number, 0))
        tail += yield from _tail(topic, number, start, end, patience)
    table: pa.Table = yield Work(lambda: files.read(columns, tail))
    return table


def _tail(topic: str, segment: int, start: int, end: int, patience: Patience) -> Steps[list[pa.RecordBatch]]:
    batches: list[pa.RecordBatch] = []
    while start < end:
        some, start = yield from fetch_rows(topic, segment, start, end, patience)
        batches += some
    return batches
