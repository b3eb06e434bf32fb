"""A typed topic's schema: converts Iceberg's schema JSON into an Arrow schema of flat columns.

It refuses nested types, names that Spark could not tell apart or that belong to the queue, and more than 1,000 fields.
The metadata `PARQUET:field_id` holds a field's id, and the schema's metadata the schema id. A uuid is stored as text,
which every reader of Parquet shows alike, and so is a time of day (`HH:MM:SS.ffffff`): Spark opens no file with a TIME
column. The metadata marks such fields.
"""

import base64
from typing import Any

import pyarrow as pa

from seaweedq.errors import InvalidRequest
from seaweedq.segments.field_ids import FIELD_ID, MAX_USER_ID
from seaweedq.segments.layout import PARTITION_COLUMN

MAX_FIELDS = 1000
SCHEMA_ID = b"schema-id"

_MARK = b"iceberg.type"
_QUOTING = frozenset('"\\')  # what would have to be escaped in JSON; the decoder of values takes no such names
_AS_TEXT = {"time", "uuid"}
_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.string(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "uuid": pa.string(),
    "binary": pa.binary(),
}


def parse_schema(stated: Any) -> pa.Schema:
    """Parses Iceberg's schema JSON (already decoded) into columns. Raises InvalidRequest, which names the field."""
    from pyiceberg.schema import Schema  # costs 0.3 s, and a running broker seldom needs it
    from pyiceberg.types import NestedField

    listed = stated.get("fields") if isinstance(stated, dict) else None
    for field in listed if isinstance(listed, list) else []:
        name = str(field.get("name", "")) if isinstance(field, dict) else ""
        _validated(NestedField, field, name)
    schema = _validated(Schema, stated, "schema")
    if not 1 <= len(schema.fields) <= MAX_FIELDS:
        raise _refused("schema", f"it has {len(schema.fields)} fields; 1 to {MAX_FIELDS} are allowed")
    _check_names([field.name for field in schema.fields])
    _check_ids({field.name: field.field_id for field in schema.fields})
    return pa.schema([_arrow_field(field) for field in schema.fields], {SCHEMA_ID: str(schema.schema_id)})


def encode_fields(fields: pa.Schema) -> str:
    """Encodes a schema as text for a topic's record."""
    return base64.b64encode(fields.serialize()).decode()


def decode_fields(text: str) -> pa.Schema:
    """Decodes the text of `encode_fields`, without pyiceberg."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def schema_id(fields: pa.Schema) -> int:
    """Returns the id of the schema that the columns come from; 0 without one, as for `json` and `bytes`."""
    return int((fields.metadata or {}).get(SCHEMA_ID, b"0"))


def is_uuid(field: pa.Field) -> bool:
    """Tells whether a string column holds UUIDs."""
    return (field.metadata or {}).get(_MARK) == b"uuid"


def is_time(field: pa.Field) -> bool:
    """Tells whether a string column holds times of day."""
    return (field.metadata or {}).get(_MARK) == b"time"


def _validated(model: Any, stated: Any, name: str) -> Any:
    """Validates JSON with a model of pyiceberg, which raises errors of many kinds for input that it does not
    understand."""
    try:
        return model.model_validate(stated)
    except Exception as error:
        raise _refused(name, f"it is not valid in an Iceberg schema: {str(error)[:500]}") from None


def _arrow_field(field: Any) -> pa.Field:
    from pyiceberg.types import DecimalType, FixedType

    kind, name = field.field_type, field.name
    if getattr(field, "initial_default", None) is not None or getattr(field, "write_default", None) is not None:
        raise _refused(name, "default values are not supported")
    if isinstance(kind, DecimalType):
        if not (1 <= kind.precision <= 38 and 0 <= kind.scale <= kind.precision):
            raise _refused(name, f"{kind} needs a precision of 1 to 38 and a scale of 0 to the precision")
        arrow = pa.decimal128(kind.precision, kind.scale)
    elif isinstance(kind, FixedType):
        if not 1 <= len(kind) <= 65_536:
            raise _refused(name, f"{kind} needs a length of 1 to 65,536")
        arrow = pa.binary(len(kind))
    elif str(kind) in _PRIMITIVES:
        arrow = _PRIMITIVES[str(kind)]
    else:
        raise _refused(
            name, f"the type {str(kind)[:200]} is not supported; fields must be flat and of a primitive type"
        )
    marks = {_MARK: str(kind).encode()} if str(kind) in _AS_TEXT else {}
    return pa.field(name, arrow, nullable=not field.required, metadata={FIELD_ID: str(field.field_id), **marks})


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > 255 or not name.isprintable() or not _QUOTING.isdisjoint(name):
            raise _refused(name, 'a name must have 1 to 255 printable characters, none of them " or \\')
        if name.startswith("_") or name.casefold() == PARTITION_COLUMN:
            raise _refused(name, f"names that begin with _, and {PARTITION_COLUMN}, are reserved for the queue")
        if name.casefold() in seen:
            raise _refused(name, "names must be unique, ignoring case")
        seen.add(name.casefold())


def _check_ids(ids: dict[str, int]) -> None:
    seen: set[int] = set()
    for name, number in ids.items():
        if not 1 <= number <= MAX_USER_ID or number in seen:
            raise _refused(name, f"the id {number} must be unique and between 1 and {MAX_USER_ID}")
        seen.add(number)


def _refused(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"the schema is not valid, field {name[:100]!r}: {reason}", field=name, reason=reason)
