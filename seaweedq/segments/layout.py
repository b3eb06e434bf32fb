"""The record layout: the columns of a topic's rows, in memory, in the journal and in Parquet.

Columns that begin with `_` belong to the queue, all others to the user. Files have every column (`Layout.table`). On
the way there, *rows* are a record batch without `_offset` (a row's offset is the first one plus its index) and without
those optional columns in which every value is null. `Layout.rows` gives the schema for a mask of the present optional
columns, so that a frame needs four bits for its schema.

In files each column has a *field id*, the members of nested columns too, by which Iceberg knows columns. Iceberg's
readers take a file in which any column has an id as one in which all have, and find columns by nothing else. So either
all columns of a file have ids or none has. The queue's are fixed, above every id that a schema may state and below
those that Iceberg keeps for itself; docs/reference/files.md lists them. An id is never used for another column.

A typed topic's schema has *versions*, and each batch of rows has the columns of one. Rows stay as they are in memory,
in journals and in files; they are *raised* to a later version where they are put beside rows of that version, or shown.
So a version adds optional columns, widens types and drops columns (segments/evolution): no value changes when it is
raised, and those of dropped columns are no longer shown. No name is ever used for another column, so a column that a
version lacks, of rows of an earlier one, was dropped. Rows that are to be stored with a value there are not raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from seaweedq.errors import NotReady

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.string())
REFERENCE = pa.struct(
    [("uri", pa.string()), ("size", pa.int64()), ("content_type", pa.string()), ("sha256", pa.string())]
)

OFFSET_FIELD = pa.field("_offset", pa.int64(), nullable=False)
TIMESTAMP_FIELD = pa.field("_timestamp", TIMESTAMP, nullable=False)
OPTIONAL_FIELDS = (
    pa.field("_key", pa.string()),
    pa.field("_headers", HEADERS),
    pa.field("_expires", TIMESTAMP),
    pa.field("_reference", REFERENCE),
)
PARTITION_COLUMN = "segment"
SMALL_BYTES, SAMPLE = 64 * 1024, 32  # batches smaller than this, on average of a sample, are copied into one
SCHEMA_ID = b"schema-id"
FIELD_ID = b"PARQUET:field_id"
MAX_USER_ID = 1_999_999_999  # of a schema's field
MAX_SCHEMA_ID = 1_000_000  # that a schema may state of itself; later versions have the next ones
VALUE_ID = 1  # of `value`, on topics without a schema
QUEUE_IDS = {
    "_offset": 2_147_000_000,
    "_timestamp": 2_147_000_001,
    "_key": 2_147_000_002,
    "_headers": 2_147_000_003,
    "_headers.key": 2_147_000_004,
    "_headers.value": 2_147_000_005,
    "_expires": 2_147_000_006,
    "_reference": 2_147_000_007,
    "_reference.uri": 2_147_000_008,
    "_reference.size": 2_147_000_009,
    "_reference.content_type": 2_147_000_010,
    "_reference.sha256": 2_147_000_011,
    "segment": 2_147_000_012,  # the directory's column, which no file has: a table of Iceberg needs one for it
}


class Format(StrEnum):
    """How a topic stores values."""

    JSON = "json"
    BYTES = "bytes"
    TYPED = "typed"


@dataclass(frozen=True)
class Layout:
    """The columns of one topic. `values` are the user's columns: `value` alone, or a typed topic's fields."""

    format: Format
    values: pa.Schema
    table: pa.Schema = field(init=False)
    schema_id: int = field(init=False)  # of the schema that the values come from; 0 without one
    _rows: dict[int, pa.Schema] = field(init=False, default_factory=dict, compare=False, repr=False)  # by mask

    def __post_init__(self) -> None:
        columns = [OFFSET_FIELD, TIMESTAMP_FIELD, *OPTIONAL_FIELDS, *self.values]
        object.__setattr__(self, "table", pa.schema(columns))
        object.__setattr__(self, "schema_id", schema_id_of(self.values))

    @staticmethod
    def from_format(format: Format, fields: pa.Schema | None = None) -> "Layout":
        """Returns the layout of a format; `fields` are a typed topic's columns, else None."""
        if format is Format.TYPED:
            assert fields is not None
            return Layout(format, fields)
        kind = pa.string() if format is Format.JSON else pa.binary()
        return Layout(format, pa.schema([pa.field("value", kind)]))

    def rows(self, mask: int) -> pa.Schema:
        """Returns the schema of rows whose optional columns are those in `mask` (bit n: OPTIONAL_FIELDS[n])."""
        schema = self._rows.get(mask)
        if schema is None:
            optional = [field for bit, field in enumerate(OPTIONAL_FIELDS) if mask >> bit & 1]
            schema = self._rows[mask] = pa.schema([TIMESTAMP_FIELD, *optional, *self.values], self.values.metadata)
        return schema

    def of(self, there: pa.Schema, schema_id: int) -> "Layout":
        """Returns the layout of the version of this id, whose rows, or whose files, have these columns."""
        fields = [field for field in there if not field.name.startswith("_")]
        found = pa.schema(fields, {SCHEMA_ID: str(schema_id)} if self.format is Format.TYPED else None)
        return self if found.equals(self.values) else Layout(self.format, found)

    def raised(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows of this version or of an earlier one with the columns of this one, without those that were
        dropped. Raises NotReady for rows of a later version, which this broker does not know yet."""
        if self.format is not Format.TYPED:
            return rows
        schema = self.rows(mask_of(rows))
        if rows.schema.equals(schema):  # mostly the same object, so that no field is compared
            return rows
        there = rows.schema
        if (at := unheld(there, schema, dropped=self._is_earlier(there))) is not None:
            raise NotReady(f"the field {at!r} belongs to a newer version of the topic's schema; try again")
        queue = [rows.column(field.name) for field in schema if field.name.startswith("_")]
        return pa.RecordBatch.from_arrays([*queue, *self.values_of(rows)], schema=schema)

    def dropped_value(self, rows: pa.RecordBatch) -> str | None:
        """Returns a field that this version has dropped, and that has a value in these rows; None if there is none."""
        if not self._is_earlier(rows.schema):
            return None
        for at, one in enumerate(rows.schema):
            gone = not one.name.startswith("_") and self.values.get_field_index(one.name) < 0
            if gone and rows.column(at).null_count < rows.num_rows:
                return str(one.name)
        return None

    def _is_earlier(self, there: pa.Schema) -> bool:
        """Tells whether rows of these columns are of an earlier version."""
        return SCHEMA_ID in (there.metadata or {}) and schema_id_of(there) < self.schema_id

    def values_of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Returns the columns `values` of rows that they hold (`unheld`)."""
        found = []
        for one in self.values:
            at = rows.schema.get_field_index(one.name)
            column = pa.nulls(rows.num_rows, one.type) if at < 0 else rows.column(at)
            found.append(column if column.type == one.type else column.cast(one.type))
        return found

    def complete(self, rows: pa.RecordBatch, first_offset: int) -> pa.RecordBatch:
        """Completes rows, of this version or of an earlier one, to the columns of files: offsets from `first_offset`
        on, and nulls for absent columns. Raises NotReady as `raised`."""
        rows = self.raised(rows)
        return pa.RecordBatch.from_arrays(self._columns(rows, first_offset), schema=self.table)

    def gather(self, batches: Sequence[tuple[int, pa.RecordBatch]]) -> pa.Table:
        """Concatenates dense (first offset, rows) into one table with the columns of files.

        Many small batches are copied into one: a chunk costs a writer 100 us, however few rows it has.
        """
        if not batches:
            return self.table.empty_table()
        rows = pa.concat_tables([pa.Table.from_batches([rows]) for _, rows in batches], promote_options="default")
        sample = batches[:: len(batches) // SAMPLE + 1]  # to ask all of them takes as long as to copy them
        if sum(batch.nbytes for _, batch in sample) < SMALL_BYTES * len(sample):
            rows = rows.combine_chunks()
        return pa.Table.from_arrays(self._columns(rows, batches[0][0]), schema=self.table)

    def _columns(self, rows: pa.RecordBatch | pa.Table, first_offset: int) -> list[Any]:
        present, count = set(rows.schema.names), rows.num_rows
        found = [
            rows.column(name) if name in present else pa.nulls(count, self.table.field(name).type)
            for name in self.table.names[1:]
        ]
        return [offsets(first_offset, count), *found]


def unheld(before: pa.Schema, after: pa.Schema, *, dropped: bool = False) -> str | None:
    """Returns a field of columns which others, those of a later version or of another topic, do not hold; None if they
    hold all rows. With `dropped`, a field that the others lack was dropped, and need not be held."""
    own = {one.name: one for one in after}
    for one in before:
        known = own.pop(one.name, None)
        if known is None and dropped:
            continue
        if known is None or (one.nullable and not known.nullable):
            return str(one.name)
        if one.type != known.type and not is_wider(known.type, one.type):
            return str(one.name)
    return next((str(one.name) for one in own.values() if not one.nullable), None)


def is_wider(kind: pa.DataType, before: pa.DataType) -> bool:
    """Tells whether a type holds all values of another one, which Parquet's readers then read as that type."""
    if pa.types.is_decimal(kind) and pa.types.is_decimal(before):
        return bool(kind.scale == before.scale and kind.precision > before.precision)
    return (before, kind) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def schema_id_of(columns: pa.Schema) -> int:
    """Returns the id of the schema that rows, or values, come from; 0 without one."""
    return int((columns.metadata or {}).get(SCHEMA_ID, b"0"))


def offsets(first: int, count: int) -> pa.Array:
    """Returns the offsets first, first + 1, ... as an int64 array."""
    return pa.arange(first, first + count)


def mask_of(rows: pa.RecordBatch) -> int:
    """Returns a bit for each present optional column, in the order of OPTIONAL_FIELDS."""
    names, mask = rows.schema.names, 0
    for bit, optional in enumerate(OPTIONAL_FIELDS):
        if optional.name in names:
            mask |= 1 << bit
    return mask


def file_schema(layout: Layout) -> pa.Schema:
    """Returns the columns of files: `layout.table`, with an id for each."""
    ids = QUEUE_IDS if layout.format is Format.TYPED else QUEUE_IDS | {"value": VALUE_ID}
    return pa.schema([_numbered(field, field.name, ids) for field in layout.table])


def _numbered(field: pa.Field, path: str, ids: dict[str, int]) -> pa.Field:
    """Returns a field with its id, and with those of its members."""
    if path not in ids:
        return field  # the user's, with the id of its schema
    kind = field.type
    if pa.types.is_map(kind):
        kind = pa.map_(*(_numbered(each, f"{path}.{each.name}", ids) for each in (kind.key_field, kind.item_field)))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_numbered(each, f"{path}.{each.name}", ids) for each in kind])
    return pa.field(field.name, kind, field.nullable, {FIELD_ID: str(ids[path])})
