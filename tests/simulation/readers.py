"""The reader of an import's files in place of its process: the child's own function, in a thread.

The thread runs only while the simulation waits for it, so that nothing depends on how fast it is.
"""

import os
import threading
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import pyarrow as pa

from seaweedq import import_worker
from seaweedq.broker.imports.reader_process import MessageAndRows, ReaderDied
from seaweedq.broker.imports.reader_protocol import Job, ReaderMessage
from seaweedq.coordination.records import ImportProblem
from seaweedq.errors import SeaweedqError
from seaweedq.segments.layout import Layout

STALLED_S = 30.0  # real ones: nobody waits for it
_mine = threading.local()


class _Closed(Exception):
    """The reader was ended."""


class _Commands(SimpleQueue[Any]):
    def get(self, *arguments: Any, **more: Any) -> Any:
        if isinstance(found := super().get(*arguments, **more), _Closed):
            raise found
        return found


class InPlaceReader:
    """As ReaderProcess."""

    def __init__(self, job: Job) -> None:
        self._commands = _Commands()
        self._said: SimpleQueue[MessageAndRows | None] = SimpleQueue()
        threading.Thread(target=self._work, args=(_own(job),), daemon=True).start()

    async def next_message(self) -> ReaderMessage:
        return (await self.next_rows())[0]

    async def request_rows(self) -> None:
        self._commands.put(None)

    async def next_rows(self) -> MessageAndRows:
        try:
            found = self._said.get(timeout=STALLED_S)
        except Empty:
            raise AssertionError(f"a reader's thread has said nothing for {STALLED_S:g} s of real time") from None
        if found is None:
            raise ReaderDied("it has ended")
        return found

    async def next_file(self, job: Job) -> None:
        self._commands.put(_own(job))

    async def close(self) -> None:
        self._commands.put(_Closed())

    def _work(self, job: Job) -> None:
        _mine.said = self._said
        try:
            import_worker.read_files(job, self._commands)
        except SeaweedqError as error:
            problem = ImportProblem(error.slug, error.detail, dict(error.fields))
            self._said.put((ReaderMessage("refused", problem=problem), None))
        except _Closed:
            pass
        finally:
            self._said.put(None)


async def in_place(job: Job, layout: Layout) -> InPlaceReader:
    """Starts one."""
    import_worker.send_message = _say  # type: ignore[assignment]
    return InPlaceReader(job)


def _say(message: ReaderMessage, body: pa.Buffer | None = None) -> None:
    rows = pa.ipc.open_stream(body).read_next_batch() if body is not None else None
    _mine.said.put((message, rows))


def _own(job: Job) -> Job:
    return msgspec.structs.replace(job, file=os.dup(job.file))
