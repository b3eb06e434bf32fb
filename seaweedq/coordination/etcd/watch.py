"""One watch on etcd: one stream at a time; when it breaks, another begins after the last change that was yielded.

A thread reads the stream and passes each answer to the loop; everything else happens in the loop. An answer never
splits a transaction, since fragments are never requested. A change compacted before it was read is a gap: WatchLost.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import grpc

from seaweedq.coordination.etcd.key_space import KeySpace
from seaweedq.coordination.etcd.rpc import rpc
from seaweedq.coordination.etcd.transport import (
    SILENT,
    Endpoint,
    Metadata,
    Transport,
    meaning,
    stale_token,
    unavailable,
)
from seaweedq.coordination.interface import Change, WatchLost

AHEAD = 16  # answers that wait for a slow reader; more wait in etcd
RETRY_S = 0.2
POLL_S = 0.005
HEALS = SILENT | {grpc.StatusCode.CANCELLED}


class Stream:
    """The answers of one call, read by a thread of its own; `None` once `end` or the server has ended it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._room = threading.Semaphore(AHEAD)
        self._thread = threading.Thread(target=self._read, name="etcd-watch", daemon=True)
        self._thread.start()

    async def next(self) -> Any:
        """Returns the next answer. Raises grpc.RpcError."""
        answer = await self._answers.get()
        self._room.release()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self) -> None:
        """Stops reading."""
        self._call.cancel()
        self._room.release()

    async def ended(self, within_s: float) -> None:
        """Waits for the end of the thread, for at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._thread.is_alive():
                    await asyncio.sleep(POLL_S)

    def _read(self) -> None:
        last: BaseException | None = None
        try:
            for answer in self._call:
                self._room.acquire()
                self._hand_over(answer)
        except grpc.RpcError as error:
            last = error
        self._hand_over(last)

    def _hand_over(self, answer: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._answers.put_nowait, answer)
        except RuntimeError:  # the loop has gone, and whoever read with it
            self._call.cancel()


class Watch:
    """Changes of the keys below `prefix` after `revision`, which rises as they are yielded."""

    def __init__(self, transport: Transport, keys: KeySpace, prefix: str, revision: int) -> None:
        self._transport = transport
        self._keys = keys
        self._prefix = prefix
        self._revision = revision
        self._refused = False
        self._metadata: Metadata = ()
        self._stream: Stream | None = None

    async def groups(self) -> AsyncGenerator[Sequence[Change], None]:
        """As Coordination.watch, to the end of the transport. Raises CoordinationUnavailable for what will not heal."""
        while not self._transport.closed:
            endpoint = self._transport.endpoint
            try:
                async with aclosing(self._follow(endpoint)) as groups:
                    async for group in groups:
                        yield group
            except grpc.RpcError as error:
                self._judge(error, endpoint)
            await asyncio.sleep(RETRY_S)

    def end(self) -> Stream | None:
        """Stop reading, in favour of `closed` in the transport; the stream whose thread is ending now."""
        if self._stream is not None:
            self._stream.end()
        return self._stream

    async def _follow(self, endpoint: Endpoint) -> AsyncGenerator[Sequence[Change], None]:
        self._metadata = await self._transport.metadata(endpoint)
        if self._transport.closed:
            return
        self._stream = stream = Stream(endpoint.watch(self._request(), self._metadata))
        try:
            while (answer := await stream.next()) is not None:
                if answer.canceled:
                    self._canceled(answer, endpoint)
                    return
                if changes := self._changes(answer):
                    yield changes
        finally:
            stream.end()

    def _request(self) -> Any:
        start, end = self._keys.interval(self._prefix)
        create = rpc.WatchCreateRequest(
            key=start, range_end=end, start_revision=self._revision + 1, progress_notify=True
        )
        return rpc.WatchRequest(create_request=create)

    def _changes(self, answer: Any) -> tuple[Change, ...]:
        if answer.created:
            self._refused = False
            if answer.header.revision < self._revision:
                raise WatchLost(
                    f"etcd went back from revision {self._revision} to {answer.header.revision} (restored?)"
                )
        elif answer.events:
            self._revision = answer.events[-1].kv.mod_revision
        else:  # progress: nothing was left out up to here, so that a compaction below it does not matter
            self._revision = max(self._revision, answer.header.revision)
        return tuple(self._change(event) for event in answer.events)

    def _change(self, event: Any) -> Change:
        value = None if event.type == event.DELETE else event.kv.value
        return Change(self._keys.short(event.kv.key), value, event.kv.mod_revision)

    def _canceled(self, answer: Any, endpoint: Endpoint) -> None:
        """Raises unless a new token may help; older etcds report a stale token as a lack of permission."""
        if answer.compact_revision:
            raise WatchLost(
                f"etcd has compacted the changes after revision {self._revision}, up to {answer.compact_revision}"
            )
        if self._refused:
            raise unavailable(f"etcd at {endpoint.address} ended the watch: {answer.cancel_reason}")
        self._refused = True
        self._transport.refresh(self._metadata)

    def _judge(self, error: Any, endpoint: Endpoint) -> None:
        if stale_token(error.details()) and not self._refused:
            self._refused = True
            self._transport.refresh(self._metadata)
        elif error.code() in HEALS:
            self._transport.blame(endpoint)
        else:
            raise meaning(error, endpoint) from error
