"""The broker's side of an import's reader: a child process that is started, asked, and killed.

Its messages are bounded and validated like bytes from outside, since a hostile file may control it.
"""

import asyncio
import fcntl
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeAlias

import msgspec
import pyarrow as pa

from seaweedq.broker.imports.reader_protocol import BATCH_BYTES, GO, JOB, Job, ReaderMessage, read_head
from seaweedq.concurrency.pools import Pool
from seaweedq.errors import BadRequest, Damaged
from seaweedq.segments.ipc_bounds import check_bounds
from seaweedq.segments.layout import Layout, mask_of

MessageAndRows = tuple[ReaderMessage, pa.RecordBatch | None]
MEMORY_BYTES = 1536 * 1024 * 1024
STALLED_S = 120.0
KEPT = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
SET = {  # memory that was touched once is kept, and no threads beside those that read
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
    "OPENBLAS_NUM_THREADS": "1",
}
PIPE_BYTES = 1024 * 1024


class ReaderDied(Exception):
    """The child has ended, has hung, or has sent an invalid message."""


class ImportReader(Protocol):
    """The reader of one import's file, or of one write's files."""

    async def next_message(self) -> ReaderMessage:
        """Returns the next message without rows. Raises ReaderDied."""

    async def request_rows(self) -> None:
        """Asks for the rows."""

    async def next_rows(self) -> MessageAndRows:
        """Returns the next message, and its rows. Raises ReaderDied."""

    async def next_file(self, job: Job) -> None:
        """Goes on with another file, once the one before was checked, or has ended."""

    async def close(self) -> None:
        """Ends the reader, and waits until it is gone."""


Started: TypeAlias = "tuple[subprocess.Popen[bytes], socket.socket]"
StartReader: TypeAlias = Callable[[Job, Layout], Awaitable[ImportReader]]


async def no_reader(job: Job, layout: Layout) -> ImportReader:
    """Raises ReaderDied: a broker that was given no way to read files imports none."""
    raise ReaderDied("this broker cannot import files, because it has no reader process")


class ReaderProcess:
    """One child. Its messages are read in a thread of their own, so that a slow child takes none of the broker's; the
    next batch is read ahead."""

    def __init__(self, process: "subprocess.Popen[bytes]", commands: socket.socket, layout: Layout, job: Job) -> None:
        self._process = process
        self._commands = commands
        self._layout = layout
        self._job = job
        self._limit_bytes = 2 * BATCH_BYTES + 4 * job.max_message_bytes
        self._threads = Pool("import", 1)
        self._ahead: Future[MessageAndRows] | None = None

    @staticmethod
    async def start(command: Sequence[str], job: Job, layout: Layout) -> "ReaderProcess":
        """Starts a child on a job, of whose file it gets a descriptor of its own. A start that is cancelled ends the
        child."""
        job = msgspec.structs.replace(job, file=os.dup(job.file))
        starting = asyncio.create_task(asyncio.to_thread(_started, command, job))
        try:
            return ReaderProcess(*await asyncio.shield(starting), layout, job)
        except asyncio.CancelledError:
            starting.add_done_callback(partial(_forgo, layout, job))
            raise

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def next_message(self) -> ReaderMessage:
        """Returns the next message without rows. Raises ReaderDied."""
        found, _ = await self.next_rows()
        return found

    async def request_rows(self) -> None:
        """Asks for the rows."""
        with suppress(OSError):
            self._commands.sendall(GO)

    async def next_file(self, job: Job) -> None:
        """Goes on with another file, of which the child gets a descriptor of its own."""
        job = msgspec.structs.replace(job, file=os.dup(job.file))
        await asyncio.to_thread(_send, self._commands, job)

    async def close(self) -> None:
        """Ends the child, and waits until it is gone; it ends also if the wait is cancelled."""
        await asyncio.shield(asyncio.wrap_future(self.end()))

    def end(self) -> Future[None]:
        """Ends the child. Returns a future that is done when it is gone."""
        self._process.kill()
        reaped = self._threads.submit(self._reap)
        self._threads.shutdown(wait=False)
        return reaped

    def _reap(self) -> None:
        self._process.wait()
        self._commands.close()
        with suppress(OSError):
            assert self._process.stdout
            self._process.stdout.close()

    async def next_rows(self) -> MessageAndRows:
        """Returns the next message, and its rows. Raises ReaderDied."""
        coming = self._ahead or self._threads.submit(self._read)
        try:
            async with asyncio.timeout(STALLED_S):
                message, rows = await asyncio.wrap_future(coming)
            self._ahead = self._threads.submit(self._read) if rows is not None else None
            return message, rows
        except TimeoutError:
            raise ReaderDied(f"the reader process made no progress for {STALLED_S:g} s") from None
        except (EOFError, OSError):
            self._process.kill()
            status = await asyncio.get_running_loop().run_in_executor(self._threads, self._process.wait)
            raise ReaderDied(
                f"the reader process was ended by signal {-status}"
                if status < 0
                else f"the reader process ended with status {status}"
            ) from None
        except (Damaged, pa.ArrowException, ValueError) as error:
            raise ReaderDied(f"the output of the reader process cannot be parsed: {str(error)[:200]}") from None

    def _read(self) -> MessageAndRows:
        message = read_head(self._exactly)
        if message.kind != "rows":
            return message, None
        if not 0 < message.size <= self._limit_bytes or not 0 < message.rows <= self._job.batch_rows:
            raise Damaged(
                f"the reader process sent a batch of {message.rows} rows and {message.size} bytes; "
                f"a batch must have 1 to {self._job.batch_rows} rows, and at most {self._limit_bytes} bytes"
            )
        rows = _one_batch(self._exactly(message.size), self._limit_bytes)
        rows.validate(full=True)
        if rows.num_rows != message.rows or not rows.schema.equals(self._layout.rows(mask_of(rows))):
            raise Damaged(
                "the reader process sent a batch whose columns are not the expected columns, or whose number of rows "
                "is not the announced number"
            )
        return message, rows

    def _exactly(self, size: int) -> bytes:
        assert self._process.stdout
        descriptor, buffer = self._process.stdout.fileno(), pa.allocate_buffer(size)
        left = memoryview(buffer)
        while left:
            count = os.readv(descriptor, [left])
            if not count:
                raise EOFError
            left = left[count:]
        return buffer if size > PIPE_BYTES else buffer.to_pybytes()  # type: ignore[no-any-return]


def _forgo(layout: Layout, job: Job, started: "asyncio.Task[Started]") -> None:
    if not started.cancelled() and not started.exception():
        ReaderProcess(*started.result(), layout, job).end()


def _one_batch(stream: bytes, limit_bytes: int) -> pa.RecordBatch:
    """Returns the only batch of a stream. Raises Damaged, also if it would be larger once decompressed, and what
    Arrow raises."""
    try:
        check_bounds(pa.py_buffer(stream), limit_bytes)
        with pa.ipc.open_stream(stream) as reader:
            return reader.read_next_batch()
    except BadRequest as error:
        raise Damaged(error.detail) from None
    except StopIteration:  # which no future can hold
        raise Damaged("the reader process sent an Arrow stream without a batch") from None


def _started(command: Sequence[str], job: Job) -> Started:
    environment = {name: value for name in KEPT if (value := os.environ.get(name)) is not None}
    commands, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            command,
            stdin=theirs.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**environment, **SET},
        )
    except BaseException:
        os.close(job.file)
        commands.close()
        raise
    finally:
        theirs.close()
    assert process.stdout
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # of Linux alone; elsewhere a batch takes more reads
        with suppress(OSError):
            fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    _send(commands, job)
    return process, commands


def _send(commands: socket.socket, job: Job) -> None:
    """Sends a job with its file, and closes that here. A child that has ended is noticed by whoever reads."""
    try:
        with suppress(OSError):
            socket.send_fds(commands, [JOB], [job.file])
            commands.sendall(msgspec.json.encode(job) + b"\n")
    finally:
        os.close(job.file)
