"""Uploaded files as rows, piece by piece: Parquet, NDJSON, Arrow streams and files, under the rules of a request.

The bytes are hostile. A piece is at most PIECE_ROWS rows, and each is decoded by what decodes a publish. What only says
that it is large (a page, a dictionary, a row group) is met by the bound on this process's memory: then fewer rows are
read at a time, and if few are too many still, the file is refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from seaweedq.broker.imports.rules import BATCH_BYTES
from seaweedq.codec.arrow_bodies import check_schema, decode_batch
from seaweedq.codec.bodies import decode_ndjson
from seaweedq.codec.intake import Intake
from seaweedq.errors import (
    InvalidImport,
    InvalidMessages,
    MessageTooLarge,
    RequestTooLarge,
    SeaweedqError,
    UnreadableBody,
)
from seaweedq.segments.ipc_bounds import stated_bytes

PIECE_ROWS = 65_536
PIECE_BYTES = 128 * 1024 * 1024  # of columns, once dictionaries and views are expanded
MESSAGE_BYTES = 384 * 1024 * 1024  # of an Arrow message, decompressed
LINES_BYTES = 8 * 1024 * 1024
LINE_BYTES = 16 * 1024 * 1024  # of the longest line, beside four times the largest message
BUFFER_BYTES = 1024 * 1024
FEWEST_ROWS = 16
EXPANSION, EXPANSION_BYTES = 1000, 1024 * 1024 * 1024  # what a file may stand for: so many times its size, and so much
FOOTER_BYTES = 64 * 1024 * 1024  # of a Parquet file's metadata, and of each text in it

Error = dict[str, Any]
FILE_ERRORS = (pa.ArrowException, ValueError, TypeError, LookupError, OverflowError, OSError, RecursionError)


class Piece(Protocol):
    """Some rows that are not decoded yet."""

    @property
    def first(self) -> int:
        """What errors call the first one: its row, or its line."""

    def decode(self) -> pa.RecordBatch:
        """The rows. Raises InvalidMessages, MessageTooLarge, RequestTooLarge, UnreadableBody."""

    def halves(self) -> "Sequence[Piece]":
        """The same in two; none where it is one row."""


def pieces(path: str, size: int, format: str, bare: bool, intake: Intake) -> Iterator[Piece]:
    """All rows of a file. Raises InvalidImport, InvalidRequest (a column does not fit)."""
    intake = replace(intake, max_request_bytes=PIECE_BYTES)
    if format == "ndjson":
        return _named(format, _ndjson(path, bare, intake))
    batches = _parquet(path, intake) if format == "parquet" else _arrow(path, intake)
    return _named(format, _columns(batches, intake))


def check_expansion(decoded_bytes: int, size: int) -> None:
    """Raises InvalidImport for a file that stands for far more than it has."""
    if decoded_bytes > EXPANSION * size + EXPANSION_BYTES:
        raise InvalidImport(
            f"the file of {size} bytes stands for {decoded_bytes} bytes of rows, over {EXPANSION} times as many",
            reason="it expands too far",
        )


def outcomes(piece: Piece) -> "Iterator[pa.RecordBatch | Sequence[Error]]":
    """The rows of a piece, or which of them are not valid; in parts where they are too much at once."""
    try:
        yield piece.decode()
    except InvalidMessages as error:
        yield [{**one, "index": piece.first + int(one["index"])} for one in error.fields["errors"]]
    except MessageTooLarge as error:
        index = piece.first + int(error.fields["index"])
        yield [{"index": index, "reason": f"over max_message_bytes={error.fields['limit_bytes']}"}]
    except UnreadableBody as error:
        raise InvalidImport(f"from row {piece.first} on: {error.detail}", reason=error.detail) from None
    except RequestTooLarge as error:
        halves = piece.halves()
        if not halves:
            yield [{"index": piece.first, "reason": f"over {error.fields['limit_bytes']} bytes"}]
        for half in halves:
            yield from outcomes(half)


def _named(format: str, found: Iterator[Piece]) -> Iterator[Piece]:
    """The same, with whatever Arrow says about a file as a problem of it."""
    try:
        yield from found
    except SeaweedqError:
        raise
    except MemoryError:
        raise InvalidImport(
            f"reading the file as {format} takes more memory than a reader may have", format=format, reason="memory"
        ) from None
    except FILE_ERRORS as error:
        raise InvalidImport(
            f"the file is not readable as {format}: {_brief(error)}", format=format, reason=_brief(error)
        ) from None


def _columns(batches: Iterator[pa.RecordBatch], intake: Intake) -> Iterator[Piece]:
    first = 0
    for batch in batches:
        for at in range(0, batch.num_rows, PIECE_ROWS):
            yield _Columns(first + at, batch.slice(at, PIECE_ROWS), intake)
        first += batch.num_rows


@dataclass(frozen=True)
class _Columns:
    """Rows of a Parquet or Arrow file, as they were read."""

    first: int
    batch: pa.RecordBatch
    intake: Intake

    def decode(self) -> pa.RecordBatch:
        """As Piece."""
        return decode_batch(self.batch, self.intake)

    def halves(self) -> Sequence[Piece]:
        """As Piece."""
        half = self.batch.num_rows // 2
        if not half:
            return ()
        second = _Columns(self.first + half, self.batch.slice(half), self.intake)
        return _Columns(self.first, self.batch.slice(0, half), self.intake), second


def _parquet(path: str, intake: Intake) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(path) as source:
        file = pq.ParquetFile(
            source,
            buffer_size=BUFFER_BYTES,
            pre_buffer=False,
            thrift_string_size_limit=FOOTER_BYTES,
            thrift_container_size_limit=1_000_000,
            arrow_extensions_enabled=False,
        )
        check_schema(file.schema_arrow, intake)
        rows, done = _read_rows(file.metadata), 0
        while True:
            try:
                for batch in _behind(file.iter_batches(rows), done):
                    yield batch
                    done += batch.num_rows
                break
            except MemoryError:
                if rows <= FEWEST_ROWS:
                    raise
                rows = max(FEWEST_ROWS, rows // 16)
        if done != file.metadata.num_rows:
            raise ValueError(f"its footer says {file.metadata.num_rows} rows, and there are {done}")


def _behind(batches: Iterator[pa.RecordBatch], done: int) -> Iterator[pa.RecordBatch]:
    """The same without the first `done` rows."""
    for batch in batches:
        skipped = min(done, batch.num_rows)
        done -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)


def _read_rows(metadata: pq.FileMetaData) -> int:
    """Rows at a time, by what the file says of its row groups: an honest one is read in bounded memory at once."""
    widest = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        widest = max(widest, group.total_byte_size // max(1, group.num_rows))
    return max(FEWEST_ROWS, min(PIECE_ROWS, BATCH_BYTES // widest))


def _arrow(path: str, intake: Intake) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as mapped:
        body = mapped.read_buffer()
        if body.size >= 8 and body[:6].to_pybytes() == b"ARROW1":
            body = body.slice(8)  # an Arrow file is a stream, with something around it
        for message in pa.ipc.MessageReader.open_stream(body):
            if (stated := stated_bytes(message)) > MESSAGE_BYTES and stated > len(message.body or b""):
                raise ValueError(f"a batch holds {stated} bytes when decompressed, over {MESSAGE_BYTES}")
        with pa.ipc.open_stream(body) as reader:
            check_schema(reader.schema, intake)
            yield from reader


def _ndjson(path: str, bare: bool, intake: Intake) -> Iterator[Piece]:
    longest = LINE_BYTES + 4 * intake.max_message_bytes
    lines = 0
    with open(path, "rb", buffering=0) as file:
        left = b""
        while True:
            data = file.read(LINES_BYTES)
            block = left + data
            end = block.rfind(b"\n") + 1 if data else len(block)
            if end == 0 and len(block) > longest:
                raise ValueError(f"line {lines} has more than {longest} bytes")
            for text, count in _cut_lines(block[:end]):
                if text.strip():
                    yield _Lines(lines, text, bare, intake)
                lines += count
            left = block[end:]
            if not data:
                return


def _cut_lines(block: bytes) -> Iterator[tuple[bytes, int]]:
    """A block of whole lines, in parts of at most PIECE_ROWS of them."""
    at = 0
    while at < len(block):
        count = block.count(b"\n", at)
        end = len(block)
        if count > PIECE_ROWS:
            end, count = at, PIECE_ROWS
            for _ in range(PIECE_ROWS):
                end = block.index(b"\n", end) + 1
        yield block[at:end], count
        at = end


@dataclass(frozen=True)
class _Lines:
    """Lines of an NDJSON file."""

    first: int
    text: bytes
    bare: bool
    intake: Intake

    def decode(self) -> pa.RecordBatch:
        """As Piece."""
        return decode_ndjson(self.text, self.intake, self.bare)

    def halves(self) -> Sequence[Piece]:
        """As Piece; lines are bounded by what they have."""
        return ()


def _brief(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
