"""The readers of a topic's directory, each by its most ordinary call, and the rows that they give as plain Arrow."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

SPARK = "spark"
UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")
SEGMENT = pa.field("segment", pa.int32())
QUEUE_COLUMNS = [
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", UTC_TIMESTAMP),
    pa.field("_key", pa.string()),
    pa.field("_headers", pa.map_(pa.string(), pa.string())),
    pa.field("_expires", UTC_TIMESTAMP),
    pa.field(
        "_reference",
        pa.struct([("uri", pa.string()), ("size", pa.int64()), ("content_type", pa.string()), ("sha256", pa.string())]),
    ),
]


@dataclass(frozen=True)
class Reader:
    """`open` reads a directory; `types` are its columns in the reader's own names, `arrow` its rows in a schema."""

    name: str
    open: Callable[[str], Any]
    types: Callable[[Any], Mapping[str, str]]
    arrow: Callable[[Any, pa.Schema], pa.Table]

    @property
    def package(self) -> str:
        """What the reader is of: one library has one name for a type."""
        return self.name.split()[0]

    def rows(self, path: str, *values: pa.Field) -> pa.Table:
        """All columns of the directory, of which there must be no others, in the order of segment and offset."""
        schema = pa.schema([*QUEUE_COLUMNS, *values, SEGMENT])
        opened = self.open(path)
        assert list(self.types(opened)) == schema.names
        table = self.arrow(opened, schema)
        return table.sort_by([("segment", "ascending"), ("_offset", "ascending")])


def assert_dense(table: pa.Table) -> None:
    """Sorted rows have each offset of each segment, from 0 on, once."""
    offsets = defaultdict(list)
    for segment, offset in zip(table["segment"].to_pylist(), table["_offset"].to_pylist(), strict=True):
        offsets[segment].append(offset)
    assert dict(offsets) == {segment: list(range(len(found))) for segment, found in offsets.items()}


def spark_reader(session: Any) -> Reader:
    """Spark, in a session."""
    return Reader(
        SPARK,
        session.read.parquet,
        lambda frame: dict(frame.dtypes),
        lambda frame, schema: _cast(frame.toArrow(), schema),
    )


def _polars(open: Callable[[str], Any], name: str) -> Reader:
    return Reader(
        name,
        open,
        lambda frame: {name: str(kind) for name, kind in frame.schema.items()},
        lambda frame, schema: _cast(frame.to_arrow(), schema),
    )


def _arrow(open: Callable[[str], Any], name: str) -> Reader:
    return Reader(name, open, lambda table: {field.name: str(field.type) for field in table.schema}, _cast)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([table[field.name].cast(field.type) for field in schema], schema=schema)


READERS = {
    reader.name: reader
    for reader in (
        Reader(
            "duckdb",
            lambda path: duckdb.sql(f"select * from read_parquet('{path}/**/*.parquet', hive_partitioning=true)"),
            lambda relation: dict(zip(relation.columns, map(str, relation.types), strict=True)),
            lambda relation, schema: _cast(relation.to_arrow_table(), schema),
        ),
        _polars(pl.read_parquet, "polars"),
        _polars(lambda path: pl.scan_parquet(path).collect(), "polars scan"),
        Reader(
            "pandas",
            pd.read_parquet,
            lambda frame: {name: str(kind) for name, kind in frame.dtypes.items()},
            lambda frame, schema: pa.Table.from_pandas(
                frame, schema=schema, preserve_index=False
            ).replace_schema_metadata(),
        ),
        _arrow(lambda path: ds.dataset(path, partitioning="hive").to_table(), "pyarrow dataset"),
        _arrow(pq.read_table, "pyarrow read_table"),
    )
}
