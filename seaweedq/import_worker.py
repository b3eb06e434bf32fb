"""The child process that reads the uploaded files of an import or a write, and trusts none of them: a process that gets
open files, one after the other, and sends their rows to a broker.

Only brokers start `python -m seaweedq.import_worker` (broker/imports/reader_process). The process bounds its own memory
and files before it looks at a file. It ends with its broker, whose socket is its stdin.

It reads Parquet, NDJSON, Arrow streams and files, under the rules of a publish. The bytes are hostile. A chunk has at
most CHUNK_ROWS rows, and the decoders of a publish decode it. The bound on this process's memory stops parts that only
claim to be large (a page, a dictionary, a row group): then fewer rows are read at a time, and if even a few are too
many, the file is refused.
"""

import os
import queue
import re
import resource
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from seaweedq.broker.imports.reader_protocol import BATCH_BYTES, JOB, Cutter, Job, ReaderMessage, head
from seaweedq.coordination.records import ImportProblem
from seaweedq.errors import (
    InvalidImport,
    InvalidMessages,
    MessageTooLarge,
    RequestTooLarge,
    SeaweedqError,
    UnreadableBody,
)
from seaweedq.rows.arrow_bodies import FILE_MAGIC, check_columns, decode_batch
from seaweedq.rows.bodies import decode_ndjson
from seaweedq.rows.checking import CHUNK_BYTES
from seaweedq.rows.intake import Intake, refuse
from seaweedq.segments.ipc_bounds import messages, stated_bytes
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import decode_fields

COMMAND = (sys.executable, "-P", "-m", "seaweedq.import_worker")
STDIN, STDOUT = 0, 1
T = TypeVar("T")
MAX_NAMED = 100  # rows of an import, whose record keeps them
KEPT_BYTES = 384 * 1024 * 1024  # of lines that were checked
SPARE_FILES = (
    4  # descriptors that may still be opened: the file under its name, and the files that Arrow opens beside it
)
_job = msgspec.json.Decoder(Job)
Commands = queue.SimpleQueue[Job | None]
JOB_BYTES = 64 * 1024 * 1024  # of a job: a typed topic's columns are in it
CHUNK_ROWS = 65_536
MESSAGE_BYTES = 384 * 1024 * 1024  # of an Arrow message, decompressed
LINES_BYTES = 8 * 1024 * 1024
LINE_BYTES = 16 * 1024 * 1024  # of the longest line, beside four times the largest message
BUFFER_BYTES = 1024 * 1024
FEWEST_ROWS = 16
EXPANSION, EXPANSION_BYTES = 1000, 1024 * 1024 * 1024  # a file may expand to so many times its size, plus so much
TAIL_BYTES = 10  # of an Arrow file: the size of the footer in four bytes, and the magic
PARQUET_MAGIC = b"PAR1"  # at the beginning and at the end
FOOTER_BYTES = 64 * 1024 * 1024  # of a Parquet file's metadata, and of each text in it

Error = dict[str, Any]
FILE_ERRORS = (pa.ArrowException, ValueError, TypeError, LookupError, OverflowError, OSError, RecursionError)


def main() -> None:
    """Reads the jobs, and the files."""
    stdin, commands = socket.socket(fileno=STDIN), Commands()
    job = _command(stdin)
    if job is None:
        return
    threading.Thread(target=_listen, args=(stdin, commands), name="lifeline", daemon=True).start()
    _bound(job)
    try:
        read_files(job, commands)
    except SeaweedqError as error:
        _refuse(error)
    except MemoryError:
        _refuse(InvalidImport("reading the file needs more memory than an import may use", reason="memory"))


def _refuse(error: SeaweedqError) -> None:
    send_message(ReaderMessage("refused", problem=ImportProblem(error.slug, error.detail, dict(error.fields))))


def read_files(job: Job, commands: Commands) -> None:
    """Does jobs, one after the other. Raises the errors of their files."""
    layout = Layout.from_format(Format(job.topic_format), decode_fields(job.columns) if job.columns else None)
    cutter = Cutter(layout, job.batch_rows)  # which goes on from one file to the next
    while True:
        following = _read_file(job, layout, cutter, commands)
        if following is None:
            for batch in cutter.end() if job.last else ():
                _write_rows(batch)
            os.close(job.file)
            send_message(ReaderMessage("ended"))
            following = commands.get()
        else:
            os.close(job.file)
        if following is None:
            raise InvalidImport("the import asked for rows of a file that was not checked before", reason="order")
        job = following


def _read_file(job: Job, layout: Layout, cutter: Cutter, commands: Commands) -> Job | None:
    """Does a job. Returns the next one if that comes in place of the wish for a checked file's rows."""
    intake = Intake(layout, job.key_field, job.max_message_bytes, job.now_us).at(job.now_us)
    kept: list[pa.RecordBatch] = []
    if job.check:
        count, kept = _checked(job, intake)
        send_message(ReaderMessage("checked", rows=count))
        if following := commands.get():
            return following
    row = 0
    for rows in kept or _outcomes(job, intake):
        if not isinstance(rows, pa.RecordBatch):
            reason = "it has changed"
            raise InvalidImport("the file has changed since it was checked", format=job.format, reason=reason)
        end = row + rows.num_rows
        if end > job.first_row:
            for batch in cutter.cut(rows.slice(max(0, job.first_row - row))):
                _write_rows(batch)
        row = end
    return None


def _checked(job: Job, intake: Intake) -> tuple[int, list[pa.RecordBatch]]:
    """Returns the number of rows, all of them valid, and the rows themselves if they are lines and few enough to be
    kept: columns are faster read twice. Raises InvalidMessages, which names the first invalid ones, InvalidImport,
    InvalidRequest."""
    errors: list[tuple[int, str]] = []
    kept: list[pa.RecordBatch] | None = [] if job.format == "ndjson" else None
    count = decoded = 0
    for found in _outcomes(job, intake):
        if isinstance(found, pa.RecordBatch):
            count, decoded = count + found.num_rows, decoded + found.nbytes
            check_expansion(decoded, job.size)
            if kept is not None:
                kept.append(found)
            if decoded > KEPT_BYTES:
                kept = None
        else:
            errors += [(int(error["index"]), str(error["reason"])) for error in found]
        if len(errors) >= MAX_NAMED:
            break
        send_message(ReaderMessage("seen", rows=count))
    refuse(errors[:MAX_NAMED], at_least=len(errors) >= MAX_NAMED)
    if not count:
        raise InvalidImport("the file has no rows", format=job.format, reason="no rows")
    return count, kept or []


def _outcomes(job: Job, intake: Intake) -> Iterator[pa.RecordBatch | Sequence[Error]]:
    for chunk in _ahead(chunks(f"/dev/fd/{job.file}", job.size, job.format, job.bare, intake)):
        yield from outcomes(chunk)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Yields the items, read by a thread that is one ahead: Arrow reads and decodes without the GIL."""
    with ThreadPoolExecutor(1, "reading") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def _write_rows(batch: pa.RecordBatch) -> None:
    size = pa.MockOutputStream()
    _write_stream(batch, size)
    sink = pa.FixedSizeBufferWriter(buffer := pa.allocate_buffer(size.size()))
    _write_stream(batch, sink)
    send_message(ReaderMessage("rows", rows=batch.num_rows, size=buffer.size), buffer)


def _write_stream(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def send_message(message: ReaderMessage, body: pa.Buffer | None = None) -> None:
    """Sends a message to the broker, and its rows as a stream."""
    for data in (head(message), body):
        left = memoryview(data) if data is not None else memoryview(b"")
        while left:
            left = left[os.write(STDOUT, left) :]


def _command(stdin: socket.socket) -> Job | None:
    """Returns the next job, with its file; None is the wish for rows. Ends the process once its broker has ended."""
    kind, files, _, _ = socket.recv_fds(stdin, 1, 1)
    if not kind:
        os._exit(1)
    if kind != JOB:
        return None
    line = b""
    while not line.endswith(b"\n"):
        data = stdin.recv(65_536)
        if not data or len(line) > JOB_BYTES:
            os._exit(1)
        line += data
    return replace(_job.decode(line), file=files[0])


def _listen(stdin: socket.socket, commands: Commands) -> None:
    with suppress(OSError):
        while True:
            commands.put(_command(stdin))
    os._exit(1)


def _bound(job: Job) -> None:
    """Limits the memory and the files that this process may use from here on."""
    highest = max(job.file, STDOUT + 1, *(int(name) for name in os.listdir("/dev/fd") if name.isdigit()))
    for what, bound in (
        (resource.RLIMIT_DATA, job.memory_bytes),
        (resource.RLIMIT_NOFILE, highest + SPARE_FILES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # a bound that is lower already stays
            resource.setrlimit(what, (bound, bound))


class Chunk(Protocol):
    """Some rows that are not decoded yet."""

    @property
    def first(self) -> int:
        """The number of the first row or line, by which errors name it."""

    def decode(self) -> pa.RecordBatch:
        """Returns the rows. Raises InvalidMessages, MessageTooLarge, RequestTooLarge, UnreadableBody."""

    def halves(self) -> "Sequence[Chunk]":
        """Returns the rows as two chunks, none if there is one row."""


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
            f"the file of {size} bytes expands to {decoded_bytes} bytes of rows; the limit is "
            f"{EXPANSION_BYTES} bytes plus {EXPANSION} times the file's size; split the rows into several files, and "
            "upload each file",
            reason="the file expands too much",
        )


def outcomes(chunk: Chunk) -> "Iterator[pa.RecordBatch | Sequence[Error]]":
    """Yields the rows of a chunk, or the errors of its invalid rows; in halves if the chunk is too large."""
    try:
        yield chunk.decode()
    except InvalidMessages as error:
        yield [{**one, "index": chunk.first + int(one["index"])} for one in error.fields["errors"]]
    except MessageTooLarge as error:
        index = chunk.first + int(error.fields["index"])
        yield [{"index": index, "reason": f"over max_message_bytes={error.fields['limit_bytes']}"}]
    except UnreadableBody as error:
        raise InvalidImport(
            f"the rows from {chunk.first} on cannot be read: {error.detail}", reason=error.detail
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
    except UnreadableBody as error:
        raise InvalidImport(
            f"the file cannot be read as {format}: {error.detail}", format=format, reason=error.detail
        ) from None
    except SeaweedqError:
        raise
    except MemoryError:
        raise InvalidImport(
            f"the file cannot be read as {format}, because that needs more memory than an import may use",
            format=format,
            reason="memory",
        ) from None
    except FILE_ERRORS as error:
        raise InvalidImport(
            f"the file cannot be read as {format}: {_brief(error)}", format=format, reason=_brief(error)
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
        return decode_batch(self.batch, self.intake)

    def halves(self) -> Sequence[Chunk]:
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
        check_columns(file.schema_arrow, intake)
        _check_alone(path, file.metadata)
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
            raise ValueError(f"the footer of the file states {file.metadata.num_rows} rows, but the file has {done}")


def _check_alone(path: str, metadata: pq.FileMetaData) -> None:
    """Raises ValueError for two files in one: the footer of the last one would be taken for that of the first one's
    rows, if both are alike."""
    end = 0
    if metadata.num_row_groups:
        last = metadata.row_group(metadata.num_row_groups - 1)
        for number in range(min(last.num_columns, metadata.num_columns)):
            chunk = last.column(number)
            begin = chunk.dictionary_page_offset or chunk.data_page_offset
            end = max(end, begin + chunk.total_compressed_size)
    with pa.memory_map(path) as mapped:
        if re.search(PARQUET_MAGIC * 2, memoryview(mapped.read_buffer())[end:]):
            raise ValueError(
                "the file consists of several Parquet files, one after the other; upload each file separately"
            )


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
        if body.size >= 8 and body[: len(FILE_MAGIC)].to_pybytes() == FILE_MAGIC:
            body = _stream_of(body)
        for message in messages(body):
            if (stated := stated_bytes(message)) > MESSAGE_BYTES and stated > len(message.body or b""):
                raise ValueError(
                    f"a batch has {stated} bytes after decompression, which exceeds the limit of {MESSAGE_BYTES}"
                )
        with pa.ipc.open_stream(body) as reader:
            check_columns(reader.schema, intake)
            yield from reader


def _stream_of(file: pa.Buffer) -> pa.Buffer:
    """Returns the stream in an Arrow file, without its footer. Raises ValueError."""
    tail = file.slice(max(0, file.size - TAIL_BYTES)).to_pybytes()
    end = file.size - TAIL_BYTES - int.from_bytes(tail[:4], "little")
    if not tail.endswith(FILE_MAGIC) or end < 8:
        raise ValueError("the file begins like an Arrow file, but does not end like one")
    return file.slice(8, end - 8)


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
        return decode_ndjson(self.text, self.intake, self.bare)

    def halves(self) -> Sequence[Chunk]:
        """Returns none: lines do not expand, so they need no halves."""
        return ()


def _brief(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


if __name__ == "__main__":
    main()
