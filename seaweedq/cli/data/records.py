"""Reads records from files (NDJSON, CSV, Parquet) as arguments of `Producer.send`."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from seaweedq.errors import UnreadableBody


class InputFormat(StrEnum):
    """The format of a file of records."""

    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"


def format_of(path: Path | None) -> InputFormat:
    """Returns the format of the file's suffix; NDJSON for any other suffix, and for stdin."""
    suffix = path.suffix.lower().lstrip(".") if path else ""
    return InputFormat(suffix) if suffix in list(InputFormat) else InputFormat.NDJSON


def records(file: BinaryIO, format: InputFormat) -> Iterator[Any]:
    """Yields the values of a file: JSON texts (msgspec.Raw) of NDJSON, objects of CSV rows and Parquet rows.

    CSV has a header, and its types are inferred. Raises UnreadableBody for a file of another format.
    """
    if format is InputFormat.NDJSON:
        return (msgspec.Raw(line) for line in file if not line.isspace())
    return _rows(file, format)


def envelopes(lines: Iterator[msgspec.Raw]) -> Iterator[dict[str, Any]]:
    """Yields the arguments of `send` for NDJSON lines that are whole messages. Raises UnreadableBody with the line's
    number."""
    allowed = {"key", "value", "headers", "timestamp", "expires_in_s"}
    for number, line in enumerate(lines, 1):
        found = decoded(line, number)
        if not isinstance(found, dict) or "value" not in found or not found.keys() <= allowed:
            raise UnreadableBody(
                f"record {number} is not a message; it must be an object with value, and only {sorted(allowed)}"
            )
        yield found


def key_of(record: Any, field: str, number: int) -> str | None:
    """Returns the key in a record's field: a string, or a number's JSON text; None if missing or null."""
    found = decoded(record, number) if isinstance(record, msgspec.Raw) else record
    key = found.get(field) if isinstance(found, dict) else None
    if isinstance(key, dict | list):
        raise UnreadableBody(f"record {number}: {field} is an object or an array, which cannot be a key")
    return key if key is None or isinstance(key, str) else msgspec.json.encode(key).decode()


def decoded(line: msgspec.Raw, number: int) -> Any:
    """Decodes a line's JSON. Raises UnreadableBody with the record's number."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableBody(f"record {number} is not JSON: {error}") from error


def _rows(file: BinaryIO, format: InputFormat) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        if format is InputFormat.PARQUET:
            source = file if file.seekable() else pa.BufferReader(file.read())
            batches = parquet.ParquetFile(source).iter_batches(10_000)
        else:
            batches = csv.open_csv(file)
        for batch in batches:
            yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise UnreadableBody(f"the file cannot be read as {format.value}: {error}") from error
