"""The reader of an import: a process that gets an open, untrusted file, and sends its rows to a broker.

Only brokers start `python -m seaweedq.import_worker.child` (broker/imports/reader_process). The process bounds its own
memory and files before it looks at the file. It ends with its broker, whose pipe is its stdin.
"""

import os
import resource
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import msgspec
import pyarrow as pa

from seaweedq.broker.imports.pipe_protocol import GO, Job, ReaderMessage, head
from seaweedq.broker.imports.rules import Cutter
from seaweedq.codec.intake import Intake, refuse
from seaweedq.coordination.records.uploads import ImportProblem
from seaweedq.errors import InvalidImport, SeaweedqError
from seaweedq.import_worker.files import Error, check_expansion, chunks, outcomes
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import decode_fields

COMMAND = (sys.executable, "-P", "-m", "seaweedq.import_worker.child")
STDIN, STDOUT = 0, 1
T = TypeVar("T")
MAX_NAMED = 100  # rows of an import, whose record keeps them
KEPT_BYTES = 384 * 1024 * 1024  # of lines that were checked
SPARE_FILES = 4  # descriptors that may still be opened: the file under its name, and what Arrow opens beside it
_job = msgspec.json.Decoder(Job)
LINE_BYTES = 64 * 1024 * 1024  # of a job: a typed topic's columns are in it


def main() -> None:
    """Reads the job, then the file."""
    with open(STDIN, "rb", buffering=0, closefd=False) as stdin:
        job = _job.decode(_line(stdin.fileno()))
    job = msgspec.structs.replace(job, file=_lowest(job.file))
    asked = threading.Event()
    threading.Thread(target=_listen, args=(asked,), name="lifeline", daemon=True).start()
    _bound(job)
    try:
        _work(job, asked)
    except SeaweedqError as error:
        _refuse(error)
    except MemoryError:
        _refuse(InvalidImport("reading the file takes more memory than an import may use", reason="memory"))


def _refuse(error: SeaweedqError) -> None:
    _tell(ReaderMessage("refused", problem=ImportProblem(error.slug, error.detail, dict(error.fields))))


def _work(job: Job, asked: threading.Event) -> None:
    layout = Layout.of(Format(job.topic_format), decode_fields(job.columns) if job.columns else None)
    intake = Intake(layout, job.key_field, job.max_message_bytes, job.now_us, cluster_us=job.now_us)
    kept: list[pa.RecordBatch] = []
    if job.check:
        count, kept = _checked(job, intake)
        _tell(ReaderMessage("checked", rows=count))
        asked.wait()
    cutter, row = Cutter(layout, job.batch_rows), 0
    for rows in kept or _rows(job, intake):
        end = row + rows.num_rows
        if end > job.first_row:
            for batch in cutter.cut(rows.slice(max(0, job.first_row - row))):
                _send(batch)
        row = end
    for batch in cutter.end():
        _send(batch)
    _tell(ReaderMessage("ended"))


def _checked(job: Job, intake: Intake) -> tuple[int, list[pa.RecordBatch]]:
    """Returns the number of rows, all of them valid, and the rows themselves where they are lines and few enough to be
    kept: columns are faster read twice. Raises InvalidMessages, which names the first invalid ones, InvalidImport,
    InvalidRequest."""
    errors: list[tuple[int, str]] = []
    kept: list[pa.RecordBatch] | None = [] if job.format == "ndjson" else None
    count = decoded = 0
    for found in _found(job, intake):
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
        _tell(ReaderMessage("seen", rows=count))
    refuse(errors[:MAX_NAMED])
    if not count:
        raise InvalidImport("the file has no rows", format=job.format, reason="no rows")
    return count, kept or []


def _found(job: Job, intake: Intake) -> Iterator[pa.RecordBatch | Sequence[Error]]:
    for chunk in _ahead(chunks(f"/dev/fd/{job.file}", job.size, job.format, job.bare, intake)):
        yield from outcomes(chunk)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Yields the items, read by a thread that is one ahead: Arrow reads and decodes without the GIL."""
    with ThreadPoolExecutor(1, "reading") as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def _rows(job: Job, intake: Intake) -> Iterator[pa.RecordBatch]:
    for found in _found(job, intake):
        if not isinstance(found, pa.RecordBatch):
            raise InvalidImport("the file has changed since it was checked", format=job.format, reason="it has changed")
        yield found


def _send(batch: pa.RecordBatch) -> None:
    size = pa.MockOutputStream()
    _write(batch, size)
    sink = pa.FixedSizeBufferWriter(buffer := pa.allocate_buffer(size.size()))
    _write(batch, sink)
    _tell(ReaderMessage("rows", rows=batch.num_rows, size=buffer.size), buffer)


def _write(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _tell(told: ReaderMessage, body: pa.Buffer | None = None) -> None:
    for data in (head(told), body):
        left = memoryview(data) if data is not None else memoryview(b"")
        while left:
            left = left[os.write(STDOUT, left) :]


def _line(stdin: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(stdin, 65_536)
        if not data or len(line) > LINE_BYTES:
            os._exit(1)
        line += data
    return line


def _listen(asked: threading.Event) -> None:
    with suppress(OSError):
        while data := os.read(STDIN, 16):
            if GO in data:
                asked.set()
    os._exit(1)


def _lowest(file: int) -> int:
    """Returns the file under the lowest descriptor: free ones below it could be opened within any bound on
    descriptors."""
    low = os.dup(file)
    os.close(max(low, file))
    return min(low, file)


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


if __name__ == "__main__":
    main()
