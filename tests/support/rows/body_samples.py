"""What the tests of bodies share: a fixed time, intakes of each format, Arrow streams."""

from typing import Any

import pyarrow as pa

from seaweedq.rows.intake import Intake
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import parse_schema

NOW_US = 1_790_000_000_000_000  # 2026-09-21T14:13:20Z
LIMIT = 64 * 1024

TYPES = {
    "flag": "boolean",
    "small": "int",
    "big": "long",
    "single": "float",
    "wide": "double",
    "price": "decimal(10,2)",
    "day": "date",
    "clock": "time",
    "local": "timestamp",
    "moment": "timestamptz",
    "name": "string",
    "token": "uuid",
    "code": "fixed[3]",
    "blob": "binary",
}


def iceberg(types: dict[str, str], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """Iceberg's schema JSON for some fields."""
    fields = [
        {"id": at + 1, "name": name, "required": name in required, "type": kind}
        for at, (name, kind) in enumerate(types.items())
    ]
    return {"type": "struct", "schema-id": 7, "fields": fields}


FIELDS = parse_schema(iceberg(TYPES, required=("small",)))


def intake(format: str = "json", key_field: str | None = None, limit: int = LIMIT, request: int = 1 << 24) -> Intake:
    """An intake at NOW_US."""
    return Intake(Layout.from_format(Format(format), FIELDS), key_field, limit, NOW_US, request).at(NOW_US)


def stream(columns: dict[str, Any] | pa.Table | pa.RecordBatch, compression: str | None = None) -> bytes:
    """An Arrow IPC stream."""
    table = pa.table(columns) if isinstance(columns, dict) else columns
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def values(rows: pa.RecordBatch) -> list[Any]:
    """The `value` column."""
    return rows.column("value").to_pylist()


def reasons(error: Any) -> dict[int, str]:
    """Index to reason of an InvalidMessages."""
    return {each["index"]: each["reason"] for each in error.fields["errors"]}
