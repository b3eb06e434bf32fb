"""Reads uploaded files in chunks of rows: Parquet, NDJSON, Arrow streams and files, under the rules of a publish.

The bytes are hostile. A chunk has at most CHUNK_ROWS rows, and the decoders of a publish decode it. The bound on this
process's memory stops parts that only claim to be large (a page, a dictionary, a row group): then fewer rows are read
at a time, and if even a few are too many, the file is refused.
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

CHUNK_ROWS = 65_536
CHUNK_BYTES = 128 * 1024 * 1024  # of columns, once dictionaries and views are expanded
MESSAGE_BYTES = 384 * 1024 * 1024  # of an Arrow message, decompressed
LINES_BYTES = 8 * 1024 * 1024
LINE_BYTES = 16 * 1024 * 1024  # of the longest line, beside four times the largest message
BUFFER_BYTES = 1024 * 1024
FEWEST_ROWS = 16
EXPANSION, EXPANSION_BYTES = 1000, 1024 * 1024 * 1024  # a file may expand to so many times its size, plus so much
FOOTER_BYTES = 64 * 1024 * 1024  # of a Parquet file's metadata, and of each text in it

Error = dict[str, Any]
FILE_ERRORS = (pa.ArrowException, ValueError, TypeError, LookupError, OverflowError, OSError, RecursionError)


class Chunk(Protocol):
    """Some rows that are not decoded yet."""

    @property
    def first(self) -> int:
        """The number of the first row or line, by which errors name it."""

    def decode(self) -> pa.RecordBatch:
        """Returns the rows. Raises InvalidMessages, MessageTooLarge, RequestTooLarge, UnreadableBody."""

    def halves(self) -> "Sequence[Chunk]":
        """Returns the rows as two chunks, none where there is one row."""


def chunks(path: str, size: int, format: str, bare: bool, intake: Intake) -> Iterator[Chunk]:
    """Yields all rows of a file. Raises InvalidImport, InvalidRequest (a column does not fit)."""
    intake = replace(intake, max_request_bytes=CHUNK_BYTES)
    if format == "ndjson":
        return _named(format, _ndjson(path, bare, intake))
    batches = _parquet(path, intake) if format == "parquet" else _arrow(path, intake)
    return _named(format, _columns(batches, intake))


def check_expansion(decoded_bytes: int, size: int) -> None:
    """Raises InvalidImport for a file that expands to far more bytes than it has."""
    if decoded_bytes > EXPANSION * size + EXPANSION_BYTES:
        raise InvalidImport(
            f"the file of {size} bytes expands to {decoded_bytes} bytes of rows, over {EXPANSION} times its size",
            reason="it expands too far",
        )


def outcomes(chunk: Chunk) -> "Iterator[pa.RecordBatch | Sequence[Error]]":
    """Yields the rows of a chunk, or the errors of its invalid rows; in halves where the chunk is too large."""
    try:
        yield chunk.decode()
    except InvalidMessages as error:
        yield [{**one, "index": chunk.first + int(one["index"])} for one in error.fields["errors"]]
    except MessageTooLarge as error:
        index = chunk.first + int(error.fields["index"])
        yield [{"index": index, "reason": f"over max_message_bytes={error.fields['limit_bytes']}"}]
    except UnreadableBody as error:
        raise InvalidImport(
            f"the rows from {chunk.first} on are not readable: {error.detail}", reason=error.detail
        ) from None
    except RequestTooLarge as error:
        halves = chunk.halves()
        if not halves:
            yield [{"index": chunk.first, "reason": f"over {error.fields['limit_bytes']} bytes"}]
        for half in halves:
            yield from outcomes(half)


def _named(format: str, found: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yields the chunks. Raises InvalidImport in place of Arrow's errors."""
    try:
        yield from found
    except SeaweedqError:
        raise
    except MemoryError:
        raise InvalidImport(
            f"reading the file as {format} takes more memory than an import may use",
            format=format,
            reason="memory",
        ) from None
    except FILE_ERRORS as error:
        raise InvalidImport(
            f"the file is not readable as {format}: {_brief(error)}", format=format, reason=_brief(error)
        ) from None


def _columns(batches: Iterator[pa.RecordBatch], intake: Intake) -> Iterator[Chunk]:
    first = 0
    for batch in batches:
        for at in range(0, batch.num_rows, CHUNK_ROWS):
            yield _Columns(first + at, batch.slice(at, CHUNK_ROWS), intake)
        first += batch.num_rows


@dataclass(frozen=True)
class _Columns:
    """Rows of a Parquet or Arrow file, as they were read."""

    first: int
    batch: pa.RecordBatch
    intake: Intake

    def decode(self) -> pa.RecordBatch:
        """As Chunk."""
        return decode_batch(self.batch, self.intake)

    def halves(self) -> Sequence[Chunk]:
        """As Chunk."""
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
            raise ValueError(f"its footer states {file.metadata.num_rows} rows, but it has {done}")


def _behind(batches: Iterator[pa.RecordBatch], done: int) -> Iterator[pa.RecordBatch]:
    """Yields the batches without the first `done` rows."""
    for batch in batches:
        skipped = min(done, batch.num_rows)
        done -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)


def _read_rows(metadata: pq.FileMetaData) -> int:
    """Returns how many rows to read at a time. The file's own numbers suffice for an honest file."""
    widest = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        widest = max(widest, group.total_byte_size // max(1, group.num_rows))
    return max(FEWEST_ROWS, min(CHUNK_ROWS, BATCH_BYTES // widest))


def _arrow(path: str, intake: Intake) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as mapped:
        body = mapped.read_buffer()
        if body.size >= 8 and body[:6].to_pybytes() == b"ARROW1":
            body = body.slice(8)  # an Arrow file is a stream, with something around it
        for message in pa.ipc.MessageReader.open_stream(body):
            if (stated := stated_bytes(message)) > MESSAGE_BYTES and stated > len(message.body or b""):
                raise ValueError(f"a batch has {stated} bytes once decompressed, over {MESSAGE_BYTES}")
        with pa.ipc.open_stream(body) as reader:
            check_schema(reader.schema, intake)
            yield from reader


def _ndjson(path: str, bare: bool, intake: Intake) -> Iterator[Chunk]:
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
    """Cuts a block of whole lines into parts of at most CHUNK_ROWS lines."""
    at = 0
    while at < len(block):
        count = block.count(b"\n", at)
        end = len(block)
        if count > CHUNK_ROWS:
            end, count = at, CHUNK_ROWS
            for _ in range(CHUNK_ROWS):
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
        """As Chunk."""
        return decode_ndjson(self.text, self.intake, self.bare)

    def halves(self) -> Sequence[Chunk]:
        """As Chunk. Lines do not expand, so they need no halves."""
        return ()


def _brief(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
