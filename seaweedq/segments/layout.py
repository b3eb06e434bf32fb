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
So a version adds optional columns, widens types, and renames and drops columns (segments/evolution): no value changes
when it is raised, and those of dropped columns are no longer shown. Columns of versions are found by their ids. No id
is ever used for another column, so a column that a version lacks, of rows of an earlier one, was dropped. Rows that are
to be stored with a value there are not raised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import pyarrow as pa

from seaweedq.errors import NotReady, SchemaMismatch

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
MAX_SCHEMA_ID = 1_000_000
MAX_FIRST_ID = MAX_SCHEMA_ID - 1_000  # of a topic's first version: a thousand later ones have the next ids
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

    @cached_property
    def file(self) -> pa.Schema:
        """The columns of files: `table`, with an id for each."""
        ids = QUEUE_IDS if self.format is Format.TYPED else QUEUE_IDS | {"value": VALUE_ID}
        return pa.schema([_numbered(field, field.name, ids) for field in self.table])

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
        is_own = self.format is not Format.TYPED or schema_id == self.schema_id
        return self if is_own and found.equals(self.values) else Layout(self.format, found)

    def raised(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows of this version or of an earlier one with the columns of this one, without those that were
        dropped. Raises NotReady for rows of a later version, which this broker does not know yet."""
        if self.format is not Format.TYPED:
            return rows
        schema = self.rows(mask_of(rows))
        there = rows.schema
        if there.equals(schema, check_metadata=True):  # mostly the same object, so that no field is compared
            return rows  # the metadata has the id of the version: an earlier one may have had the same columns
        if (at := unheld(there, schema, dropped=self._is_earlier(there))) is not None:
            raise NotReady(
                f"the field {at!r} belongs to a version of the topic's schema that this broker does not know yet; "
                "try again"
            )
        queue = [rows.column(field.name) for field in schema if field.name.startswith("_")]
        return pa.RecordBatch.from_arrays([*queue, *self._values(rows, identity)], schema=schema)

    def dropped_value(self, rows: pa.RecordBatch) -> str | None:
        """Returns a field that this version has dropped, and that has a value in these rows; None if there is none."""
        if not self._is_earlier(rows.schema):
            return None
        own = {*map(identity, self.values)}
        for at, one in enumerate(rows.schema):
            gone = not one.name.startswith("_") and identity(one) not in own
            if gone and rows.column(at).null_count < rows.num_rows:
                return str(one.name)
        return None

    def check_values(self, rows: pa.RecordBatch, topic: str) -> None:
        """Raises SchemaMismatch if rows of the topic have a value in a field that this version has dropped."""
        if (name := self.dropped_value(rows)) is not None:
            own = schema_id_of(rows.schema)
            needed = f", and not as version {own}, which requires it" * (not rows.schema.field(name).nullable)
            detail = (
                f"a message has a value for the field {name!r}, which version {self.schema_id} of the schema of topic "
                f"{topic!r} no longer has; publish the messages again without this field{needed}"
            )
            raise SchemaMismatch(detail, topic=topic, schema_id=self.schema_id, field=name)

    def _is_earlier(self, there: pa.Schema) -> bool:
        """Tells whether rows of these columns are of an earlier version."""
        return SCHEMA_ID in (there.metadata or {}) and schema_id_of(there) < self.schema_id

    def values_of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Returns the columns `values` of rows of another topic, found by their names. Raises NotReady if these columns
        do not hold the rows (`unheld`), because a value would be lost: a schema has changed since that was checked."""
        there = pa.schema([one for one in rows.schema if not one.name.startswith("_")])
        if (at := unheld(there, self.values, by_name)) is not None:
            raise NotReady(
                f"the rows come from another topic and have the field {at!r}, which this topic's schema cannot hold, "
                "because one of the two schemas has just changed; try again"
            )
        return self._values(rows, by_name)

    def _values(self, rows: pa.RecordBatch, by: "By") -> list[pa.Array]:
        places = {by(one): at for at, one in enumerate(rows.schema)}
        found = []
        for one in self.values:
            at = places.get(by(one))
            column = pa.nulls(rows.num_rows, one.type) if at is None else rows.column(at)
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
        try:
            rows = pa.Table.from_batches([rows for _, rows in batches])
        except pa.ArrowInvalid:  # some lack optional columns; one by one they take twenty times as long
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


By = Callable[[pa.Field], int | str]


def by_name(one: pa.Field) -> str:
    """Returns what a column is known by in all topics."""
    return str(one.name)


def identity(one: pa.Field) -> int | str:
    """Returns what a column is known by in all versions of a topic's schema: its id, or the name of the queue's own,
    and of one that has no id."""
    number = None if one.name.startswith("_") else (one.metadata or {}).get(FIELD_ID)
    return str(one.name) if number is None else int(number)


def renamed(name: str | None, before: pa.Schema, after: pa.Schema) -> str | None:
    """Returns the name that the field of this name in one version of a schema has in another version; a name that is in
    neither stays as it is."""
    at = -1 if name is None or before is after else before.get_field_index(name)
    if at < 0:
        return name
    known = identity(before.field(at))
    return next((str(one.name) for one in after if identity(one) == known), name)


def unheld(before: pa.Schema, after: pa.Schema, by: By = identity, *, dropped: bool = False) -> str | None:
    """Returns a field of columns which others, those of a later version or (by name) of another topic, do not hold;
    None if they hold all rows. With `dropped`, a field that the others lack was dropped, and need not be held."""
    own = {by(one): one for one in after}
    for one in before:
        known = own.pop(by(one), None)
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
