"""Field ids in files: a number for each column, also for the members of nested ones, by which Iceberg knows columns.

Iceberg's readers take a file in which any column has an id as one in which all have, and find columns by nothing else.
So either all columns of a file have ids or none has. The queue's are fixed, above every id that a schema may state and
below those that Iceberg keeps for itself; docs/reference/files.md lists them. An id is never used for another column.
"""

import pyarrow as pa

from seaweedq.segments.layout import Format, Layout

FIELD_ID = b"PARQUET:field_id"
MAX_USER_ID = 1_999_999_999  # of a schema's field

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


def file_schema(layout: Layout) -> pa.Schema:
    """Returns the columns of files: `layout.table`, with an id for each."""
    ids = QUEUE_IDS if layout.format is Format.TYPED else QUEUE_IDS | {"value": VALUE_ID}
    return pa.schema([_numbered(field, field.name, ids) for field in layout.table])


def _numbered(field: pa.Field, path: str, ids: dict[str, int]) -> pa.Field:
    """Returns a field with its id, and with those of what it contains."""
    if path not in ids:
        return field  # the user's, with the id of its schema
    kind = field.type
    if pa.types.is_map(kind):
        kind = pa.map_(*(_numbered(each, f"{path}.{each.name}", ids) for each in (kind.key_field, kind.item_field)))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_numbered(each, f"{path}.{each.name}", ids) for each in kind])
    return pa.field(field.name, kind, field.nullable, {FIELD_ID: str(ids[path])})
