"""Reads records from files (NDJSON, CSV, Parquet) as arguments of `Producer.send`."""

import io
import json
import re
from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from seaweedq.errors import UnreadableBody
from seaweedq.extras import needs
from seaweedq.units import seconds_of

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A quote counts where a value begins; two of them inside of it are one of its text. Group 1 is the quote that closes
# the value, if it is there, and group 2 is there if the value ends with that quote.
_QUOTED = re.compile(rb'"(?<=[,\r\n]")(?:[^"]++|"")*+("((?=[ \t]*(?:[,\r\n]|\Z)))?)?')
# Texts that leave the same state as all that was read: a value begins, or goes on without a quote that counts.
_BEGINS, _GOES_ON = b"\n", b"x"


class QuotedFile(io.RawIOBase):
    """A CSV file that is read from its start. `open` tells whether a quote is open at the position read so far.

    If more text follows the closing quote of a value with several lines, the quote really opens a later value, and the
    earlier value was never closed. The file then ends there, with an open quote."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._state = file, b""
        self.open = False
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Returns the next bytes of the file."""
        found = b"" if self._ended else self._file.read(size)
        return self._watch(found) if found else b""

    def _watch(self, found: bytes) -> bytes:
        text = self._state + found if self._state else _BEGINS + found.removeprefix(_BYTE_ORDER_MARK)
        quoted = None
        for quoted in _QUOTED.finditer(text):
            if quoted[1] and quoted[2] is None and b"\n" in quoted[0]:
                self.open = self._ended = True
                return found[: len(found) - len(text) + quoted.end()] + b'"'  # two quotes close nothing
        self.open = quoted is not None and quoted[1] is None
        if quoted is not None and quoted.end() == len(text):
            self._state = b'\n"' + (b"\n" if b"\n" in quoted[0] else b"") + (quoted[1] or b"")
        else:
            self._state = _BEGINS if text[-1:] in (b",", b"\r", b"\n") else _GOES_ON
        return found


if TYPE_CHECKING:
    import pyarrow as pa

_ENVELOPE = frozenset(("key", "value", "headers", "timestamp", "expires_in_s"))
_text, _value = msgspec.json.Decoder(msgspec.Raw), msgspec.json.Decoder()


class BadRecord(Exception):
    """A record is not a valid message; the text is the reason."""


class InputFormat(StrEnum):
    """The format of a record file."""

    NDJSON = "ndjson"
    CSV = "csv"
    PARQUET = "parquet"


def format_of(path: Path | None) -> InputFormat:
    """Returns the format that a file's suffix means; NDJSON for other suffixes, and for stdin."""
    suffix = path.suffix.lower().lstrip(".") if path else ""
    return InputFormat(suffix) if suffix in list(InputFormat) else InputFormat.NDJSON


def records(file: BinaryIO, format: InputFormat) -> Iterator[tuple[int, Any]]:
    """Yields the values of a file with their line or row numbers, from 1.

    NDJSON yields unchecked JSON texts (msgspec.Raw); CSV and Parquet yield an object per row. CSV needs a header, and
    column types are inferred. A row with the wrong number of columns, or with text that is not UTF-8, yields a
    BadRecord. A byte order mark at the start is ignored. Raises UnreadableBody for a file in another format, and for
    the CSV row in which a quote is not closed."""
    if format is InputFormat.NDJSON:
        return _lines(file)
    malformed: deque[tuple[int, BadRecord]] = deque()
    return _numbered(_rows(file, format, malformed), malformed)


def checked(record: Any) -> Any:
    """Returns a record unchanged if its line is one JSON text, or its row has all columns. Raises BadRecord
    otherwise."""
    if isinstance(record, BadRecord):
        raise record
    if isinstance(record, msgspec.Raw):
        _decode(_text, record)
    return record


def envelope(line: msgspec.Raw) -> dict[str, Any]:
    """Converts a line that is a whole message to the arguments of `send`. Raises BadRecord."""
    found = _decode(_value, line)
    if not isinstance(found, dict) or "value" not in found or not found.keys() <= _ENVELOPE:
        raise BadRecord(
            "a line must be a message: a JSON object that has the field `value`, and no fields "
            f"other than {', '.join(sorted(_ENVELOPE))}"
        )
    if isinstance(lifetime := found.get("expires_in_s"), str):
        try:
            found["expires_in_s"] = seconds_of(lifetime)
        except ValueError as error:
            raise BadRecord(f"expires_in_s {error}") from error
    return found


def key_of(record: Any, field: str) -> str | None:
    """Returns the key in a record's field: a string, or the JSON text of a number. Returns None if the field is missing
    or null. Raises BadRecord."""
    found = _decode(_value, record) if isinstance(record, msgspec.Raw) else record
    key = found.get(field) if isinstance(found, dict) else None
    if isinstance(key, dict | list):
        raise BadRecord(f"the field {field} is an object or an array, which cannot be a key")
    return key if key is None or isinstance(key, str) else msgspec.json.encode(key).decode()


def _decode(decoder: msgspec.json.Decoder[Any], line: msgspec.Raw) -> Any:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        if "UTF-8" in str(error):
            raise BadRecord("not UTF-8") from error
        raise BadRecord(f"not JSON ({'cut off' if 'truncated' in str(error) else _where(line)})") from error


def _where(line: msgspec.Raw) -> str:
    """Returns the column of the first token that is not JSON; msgspec reports the byte at which it stopped."""
    try:
        json.loads(bytes(line).decode())  # of bytes it would take a byte order mark, and UTF-16
    except ValueError as error:
        return f"column {getattr(error, 'colno', 1)}"
    return "NaN and Infinity are not"


def _lines(file: BinaryIO) -> Iterator[tuple[int, msgspec.Raw]]:
    for number, line in enumerate(file, 1):
        text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if text and not text.isspace():
            yield number, msgspec.Raw(text)


def _rows(file: BinaryIO, format: InputFormat, malformed: deque[tuple[int, BadRecord]]) -> Iterator[Any]:
    """Yields the rows that have all columns. Appends the remaining rows to a list, with their numbers, before it yields
    the next valid row."""
    with needs("arrow", f"reading {format.value}"):
        import pyarrow as pa
        from pyarrow import parquet

    try:
        if format is InputFormat.CSV:
            yield from _rows_of_csv(file, malformed)
            return
        source = file if file.seekable() else pa.BufferReader(file.read())
        for batch in parquet.ParquetFile(source).iter_batches(10_000):
            yield from _rows_of(batch)
    except pa.ArrowInvalid as error:
        raise UnreadableBody(f"the file cannot be read as {format.value}: {error}") from error


def _rows_of_csv(file: BinaryIO, malformed: deque[tuple[int, BadRecord]]) -> Iterator[Any]:
    """Yields the rows of a CSV file. The last row is yielded only if all quotes are closed, because pyarrow lets the
    end of the file close an open quote: the last row would then contain everything after that quote."""
    import pyarrow as pa
    from pyarrow import csv

    count, quotes = 0, QuotedFile(file)

    def skip(row: csv.InvalidRow) -> str:
        nonlocal count
        count += 1
        reason = f"{row.expected_columns} columns expected, but the row has {row.actual_columns}"
        malformed.append((row.number - 1, BadRecord(reason)))  # pyarrow counts the header
        return "skip"

    reading = csv.ReadOptions(use_threads=False)  # pyarrow numbers rows only so
    parsing = csv.ParseOptions(invalid_row_handler=skip, newlines_in_values=True)
    converting = csv.ConvertOptions(check_utf8=False)  # else one wrong text makes bytes of its column
    last: list[Any] = []
    try:
        for batch in csv.open_csv(quotes, reading, parsing, converting):
            rows = last + _rows_of(batch)
            count += batch.num_rows
            yield from rows[:-1]
            last = rows[-1:]
    except pa.ArrowInvalid as error:
        if quotes.open and "straddling" in str(error):  # pyarrow's word for a row of several blocks
            where = f"row {count + 1}" if count else "the header or in row 1"
            raise _not_closed(f"a quote in {where} is not closed within 1 MiB") from error
        if not quotes.open or count:
            raise
    if quotes.open:
        raise _not_closed(f"a quote in {f'row {count}' if count else 'the header'} is not closed")
    yield from last


def _not_closed(what: str) -> UnreadableBody:
    return UnreadableBody(f"the file cannot be read as csv: {what}")


def _rows_of(batch: "pa.RecordBatch") -> list[Any]:
    """Returns the rows of a batch as objects; a row with text that is not UTF-8 becomes a BadRecord. Raises
    UnreadableBody."""
    import pyarrow as pa

    try:
        names = batch.schema.names
    except UnicodeDecodeError:
        raise UnreadableBody("a column name is not valid UTF-8") from None
    if twice := sorted({name for name in names if names.count(name) > 1}):  # a value can have only one of them
        raise UnreadableBody(f"several columns have the name {twice[0]!r}; column names must be unique")
    wrong = [name for name, column in zip(names, batch.columns, strict=True) if not _is_utf_8(column)]
    for name in wrong:
        place = names.index(name)
        batch = batch.set_column(place, name, batch.column(place).cast(pa.large_binary()))
    return [_decoded(row, wrong) for row in batch.to_pylist()] if wrong else batch.to_pylist()


def _is_utf_8(column: "pa.Array") -> bool:
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True


def _decoded(row: dict[str, Any], names: list[str]) -> dict[str, Any] | BadRecord:
    """Decodes the bytes in some columns of a row as text."""
    for name in names:
        try:
            row[name] = None if row[name] is None else row[name].decode()
        except UnicodeDecodeError:
            return BadRecord(f"column {name!r} is not UTF-8")
    return row


def _numbered(rows: Iterator[Any], malformed: deque[tuple[int, BadRecord]]) -> Iterator[tuple[int, Any]]:
    number = 1
    for row in rows:
        while malformed and malformed[0][0] == number:
            yield malformed.popleft()
            number += 1
        yield number, row
        number += 1
    yield from malformed
