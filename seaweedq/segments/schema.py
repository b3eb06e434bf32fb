"""A typed topic's schema: converts Iceberg's schema JSON into an Arrow schema of flat columns.

It refuses nested types, names that Spark could not tell apart or that belong to the queue, and more than 1,000 fields.
The metadata `PARQUET:field_id` holds a field's id, and the schema's metadata the schema id. A uuid is stored as text,
which every reader of Parquet shows alike, and so is a time of day (`HH:MM:SS.ffffff`): Spark opens no file with a TIME
column. The metadata marks such fields.
"""

import base64
import re
from typing import Any, Literal

import msgspec
import pyarrow as pa

from seaweedq.errors import InvalidRequest
from seaweedq.json_reasons import in_words
from seaweedq.segments.layout import FIELD_ID, MAX_SCHEMA_ID, MAX_USER_ID, PARTITION_COLUMN, SCHEMA_ID

MAX_FIELDS = 1000

_MARK = b"iceberg.type"
_QUOTING = frozenset('"\\')  # what would have to be escaped in JSON; the decoder of values takes no such names
_AS_TEXT = {"time", "uuid"}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)", re.ASCII)
_FIXED = re.compile(r"fixed\[\s*(\d{1,9})\s*\]", re.ASCII)
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
_TEXTS = {kind: name for name, kind in _PRIMITIVES.items() if name not in _AS_TEXT}

_MEANT = {  # by the names of other systems
    **dict.fromkeys(("bool", "bit"), "boolean"),
    **dict.fromkeys(("int8", "int16", "int32", "integer", "smallint", "short"), "int"),
    **dict.fromkeys(("int64", "uint32", "bigint"), "long"),
    **dict.fromkeys(("float32", "real"), "float"),
    **dict.fromkeys(("float64", "number", "numeric"), "double"),
    **dict.fromkeys(("str", "text", "varchar", "char", "utf8"), "string"),
    **dict.fromkeys(("bytes", "blob", "bytea"), "binary"),
    **dict.fromkeys(("datetime", "timestamp_tz", "instant"), "timestamptz"),
}


class _Field(msgspec.Struct, rename={"initial_default": "initial-default", "write_default": "write-default"}):
    """A field, as the specification has it; the type of a nested one is an object."""

    id: int
    name: str
    type: str | dict[str, Any]
    required: bool = False
    doc: str | None = None
    initial_default: Any = None
    write_default: Any = None

    @property
    def kind(self) -> str:
        """Returns the type's name, also of a nested one."""
        return self.type if isinstance(self.type, str) else str(self.type.get("type"))


class _Schema(
    msgspec.Struct, rename={"schema_id": "schema-id", "identifier_field_ids": "identifier-field-ids"}, kw_only=True
):
    """A schema, as the specification has it (https://iceberg.apache.org/spec/#schemas)."""

    fields: list[Any]
    type: Literal["struct"] = "struct"
    schema_id: int = 0
    identifier_field_ids: list[int] = []


def parse_schema(stated: Any) -> pa.Schema:
    """Parses Iceberg's schema JSON (already decoded) into columns. Raises InvalidRequest, which names the field."""
    schema: _Schema = _converted(_Schema, stated, "schema")
    fields: list[_Field] = [_converted(_Field, field, _name_of(field)) for field in schema.fields]
    if not 1 <= len(fields) <= MAX_FIELDS:
        raise _refused("schema", f"the schema must have 1 to {MAX_FIELDS} fields, not {len(fields)}")
    _check_names([field.name for field in fields])
    _check_ids({field.name: field.id for field in fields})
    _check_identifiers(schema.identifier_field_ids, fields)
    if not 0 <= schema.schema_id <= MAX_SCHEMA_ID:
        raise _refused("schema", f"the schema-id {schema.schema_id} must be between 0 and {MAX_SCHEMA_ID}")
    return pa.schema([_arrow_field(field) for field in fields], {SCHEMA_ID: str(schema.schema_id)})


def encode_fields(fields: pa.Schema) -> str:
    """Encodes a schema as text for a topic's record."""
    return base64.b64encode(fields.serialize()).decode()


def decode_fields(text: str) -> pa.Schema:
    """Decodes the text of `encode_fields`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def is_uuid(field: pa.Field) -> bool:
    """Tells whether a string column holds UUIDs."""
    return (field.metadata or {}).get(_MARK) == b"uuid"


def is_time(field: pa.Field) -> bool:
    """Tells whether a string column holds times of day."""
    return (field.metadata or {}).get(_MARK) == b"time"


def type_text(field: pa.Field) -> str:
    """Returns the type of a column as schemas state it."""
    kind = field.type
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    mark = (field.metadata or {}).get(_MARK, b"").decode()
    return mark or _TEXTS[kind]


def plain_type(kind: str) -> str:
    """Returns a type as schemas state it in one spelling: without spaces and leading zeros."""
    if found := _DECIMAL.fullmatch(kind):
        return f"decimal({int(found[1])},{int(found[2])})"
    if found := _FIXED.fullmatch(kind):
        return f"fixed[{int(found[1])}]"
    return kind


def _name_of(stated: Any) -> str:
    return str(stated.get("name", "")) if isinstance(stated, dict) else ""


def _converted(model: Any, stated: Any, name: str) -> Any:
    try:
        return msgspec.convert(stated, model)
    except msgspec.ValidationError as error:
        raise _refused(name, f"this is not allowed in an Iceberg schema: {in_words(error)[:500]}") from None


def _arrow_field(field: _Field) -> pa.Field:
    if field.initial_default is not None or field.write_default is not None:
        raise _refused(field.name, "default values are not supported")
    marks = {_MARK: field.kind.encode()} if field.kind in _AS_TEXT else {}
    metadata = {FIELD_ID: str(field.id), **marks}
    return pa.field(field.name, _arrow_type(field), nullable=not field.required, metadata=metadata)


def _arrow_type(field: _Field) -> pa.DataType:
    kind = field.kind
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if found := _DECIMAL.fullmatch(kind):
        precision, scale = map(int, found.groups())
        if not (1 <= precision <= 38 and scale <= precision):
            raise _refused(
                field.name,
                f"the type is {kind}; its precision must be between 1 and 38, and its scale between 0 and "
                "the precision",
            )
        return pa.decimal128(precision, scale)
    if found := _FIXED.fullmatch(kind):
        if not 1 <= int(found[1]) <= 65_536:
            raise _refused(field.name, f"the type is {kind}; its length must be 1 to 65,536")
        return pa.binary(int(found[1]))
    meant = _MEANT.get(kind.lower())
    hint = f"use {meant!r}" if meant else f"use one of {', '.join(_PRIMITIVES)}, decimal(P, S), fixed[N]"
    raise _refused(field.name, f"the type {kind[:200]} is not supported; {hint}")


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > 255 or not name.isprintable() or not _QUOTING.isdisjoint(name):
            raise _refused(name, 'a field name must have 1 to 255 printable characters other than " and \\')
        if name.startswith("_") or name.casefold() == PARTITION_COLUMN:
            raise _refused(
                name,
                f"a field name must not begin with _ and must not be {PARTITION_COLUMN}: seaweedq reserves these names",
            )
        if name.casefold() in seen:
            raise _refused(name, "two fields have the same name (case is ignored)")
        seen.add(name.casefold())


def _check_ids(ids: dict[str, int]) -> None:
    seen: set[int] = set()
    for name, number in ids.items():
        if not 1 <= number <= MAX_USER_ID or number in seen:
            raise _refused(name, f"the field's id, {number}, must be unique, and between 1 and {MAX_USER_ID}")
        seen.add(number)


def _check_identifiers(ids: list[int], fields: list[_Field]) -> None:
    required = {field.id for field in fields if field.required and field.kind not in ("float", "double")}
    for number in ids:
        if number not in required:
            raise _refused("schema", f"the identifier field {number} must be a required field, and not a float")


def _refused(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"the schema is not valid, field {name[:100]!r}: {reason}", field=name, reason=reason)
