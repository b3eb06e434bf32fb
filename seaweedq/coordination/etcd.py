"""Coordination for clusters, on etcd 3.4 or newer: implements the interface with etcd's messages.

A key's revision is etcd's mod_revision, the store's is that of each answer's header. Reads are linearizable. A commit
without an answer may have happened, or may still happen, and is never repeated here: the caller gets
CoordinationUnavailable and reads again. Writes that must not arrive late compare revisions. Keys have a prefix, so that
several clusters can share one etcd.

A watch has one stream at a time; when it breaks, another begins after the last change that was yielded. A thread reads
the stream and passes each answer to the loop; everything else happens in the loop. An answer never splits a
transaction, since fragments are never requested. A change compacted before it was read is a gap: WatchLost.
"""

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import grpc

from seaweedq.coordination.etcd_transport import (
    SILENT,
    Access,
    Endpoint,
    LeaseNotFound,
    Metadata,
    Transport,
    meaning,
    rpc,
    stale_token,
    unavailable,
)
from seaweedq.coordination.interface import (
    Change,
    Compare,
    Delete,
    Entry,
    Grant,
    Leases,
    Page,
    Put,
    WatchLost,
    check_transaction,
)

FIRST = b"\0"
BEHIND_ALL = b"\0"  # as the end of a range
AHEAD = 16  # answers that wait for a slow reader; more wait in etcd
DUMPED = 500  # keys of an answer
RETRY_S = 0.2
POLL_S = 0.005
HEALS = SILENT | {grpc.StatusCode.CANCELLED}
JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class KeySpace:
    """All keys that begin with `prefix`, which the layers above never see. UTF-8 sorts as the strings do."""

    prefix: str

    def full(self, key: str) -> bytes:
        """Returns the key in etcd."""
        return (self.prefix + key).encode()

    def short(self, full: bytes) -> str:
        """Returns the key without the prefix."""
        return full.decode()[len(self.prefix) :]

    def interval(self, prefix: str, after: str = "") -> tuple[bytes, bytes]:
        """Returns the first key and the exclusive end of the keys that begin with `prefix` and sort after `after`."""
        low = self.full(prefix)
        start = max(low, self.full(after) + b"\0") if after else low
        # The end is the first key behind all with the prefix: UTF-8 has no byte 0xff, so the last byte can rise.
        end = low[:-1] + bytes([low[-1] + 1]) if low else BEHIND_ALL
        return start or FIRST, end


class WatchStream:
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
        except RuntimeError:  # the loop has gone, and its readers
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
        self._stream: WatchStream | None = None

    async def groups(self) -> AsyncGenerator[Sequence[Change], None]:
        """As Coordination.watch, to the end of the transport. Raises CoordinationUnavailable for errors that will not
        heal."""
        while not self._transport.closed:
            endpoint = self._transport.endpoint
            try:
                async with aclosing(self._follow(endpoint)) as groups:
                    async for group in groups:
                        yield group
            except grpc.RpcError as error:
                self._judge(error, endpoint)
            await asyncio.sleep(RETRY_S)

    def end(self) -> WatchStream | None:
        """Stop reading, in favour of `closed` in the transport; the stream whose thread is ending now."""
        if self._stream is not None:
            self._stream.end()
        return self._stream

    async def _follow(self, endpoint: Endpoint) -> AsyncGenerator[Sequence[Change], None]:
        self._metadata = await self._transport.metadata(endpoint)
        if self._transport.closed:
            return
        start, end = self._keys.interval(self._prefix)
        create = rpc.WatchCreateRequest(
            key=start, range_end=end, start_revision=self._revision + 1, progress_notify=True
        )
        request = rpc.WatchRequest(create_request=create)
        self._stream = stream = WatchStream(endpoint.watch(request, self._metadata))
        try:
            while (answer := await stream.next()) is not None:
                if answer.canceled:
                    self._canceled(answer, endpoint)
                    return
                if changes := self._changes(answer):
                    yield changes
        finally:
            stream.end()

    def _changes(self, answer: Any) -> tuple[Change, ...]:
        if answer.created:
            self._refused = False
            if answer.header.revision < self._revision:
                raise WatchLost(
                    f"etcd's revision went back from {self._revision} to {answer.header.revision}; etcd "
                    "was perhaps restored from a backup"
                )
        elif answer.events:
            self._revision = answer.events[-1].kv.mod_revision
        else:  # progress: nothing was left out up to here, so that a compaction below it does not matter
            self._revision = max(self._revision, answer.header.revision)
        return tuple(
            Change(
                self._keys.short(event.kv.key),
                None if event.type == event.DELETE else event.kv.value,
                event.kv.mod_revision,
            )
            for event in answer.events
        )

    def _canceled(self, answer: Any, endpoint: Endpoint) -> None:
        """Raises unless a new token may help; older etcds report a stale token as a lack of permission."""
        if answer.compact_revision:
            raise WatchLost(
                f"the changes after revision {self._revision} can no longer be read, because etcd has "
                f"compacted all changes up to revision {answer.compact_revision}"
            )
        if self._refused:
            raise unavailable(f"etcd at {endpoint.address} canceled the watch: {answer.cancel_reason}")
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


class EtcdCoordination:
    """Coordination and Leases on the cluster behind `access`, with `prefix` before every key.

    `timeout_s` bounds each call. The first call connects, so an unreachable etcd raises CoordinationUnavailable then.
    Raises ValueError without endpoints, OSError for TLS files that cannot be read.
    """

    def __init__(self, access: Access, prefix: str, *, timeout_s: float = 5.0) -> None:
        self.leases: Leases = self
        self._keys = KeySpace(prefix)
        self._transport = Transport(access, timeout_s)
        self._watches: dict[Watch, None] = {}

    async def get(self, key: str) -> Entry | None:
        answer = await self._transport.call(rpc.RangeRequest(key=self._keys.full(key)))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: str, after: str = "", limit: int = 500) -> Page:
        start, end = self._keys.interval(prefix, after)
        answer = await self._transport.call(rpc.RangeRequest(key=start, range_end=end, limit=limit))
        return Page(tuple(self._entry(kv) for kv in answer.kvs), answer.header.revision, answer.more)

    async def dump(self) -> Page:
        """Raises CoordinationUnavailable, too, if etcd compacts that revision meanwhile."""
        found: list[Entry] = []
        revision, more = 0, True
        while more:
            start, end = self._keys.interval("", found[-1].key if found else "")
            request = rpc.RangeRequest(key=start, range_end=end, limit=DUMPED, revision=revision)
            answer = await self._transport.call(request)
            found += map(self._entry, answer.kvs)
            revision, more = revision or answer.header.revision, answer.more
        return Page(tuple(found), revision, False)

    async def count(self, prefix: str) -> int:
        start, end = self._keys.interval(prefix, "")
        answer = await self._transport.call(rpc.RangeRequest(key=start, range_end=end, count_only=True))
        return int(answer.count)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        """Raises ValueError for more than 128 operations, or a key written twice."""
        check_transaction(compares, writes)
        request = rpc.TxnRequest(
            compare=[self._compare(compare) for compare in compares], success=[self._write(write) for write in writes]
        )
        try:
            answer = await self._transport.call(request, repeat=False)
        except LeaseNotFound:
            return None
        return int(answer.header.revision) if answer.succeeded else None

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[Change]]:
        """Reconnects without a gap, for as long as it takes."""
        self._transport.check_open()
        watch = Watch(self._transport, self._keys, prefix, revision)
        self._watches[watch] = None
        try:
            async with aclosing(watch.groups()) as groups:
                async for group in groups:
                    yield group
        finally:
            self._watches.pop(watch, None)

    async def grant(self, ttl_s: float) -> Grant:
        """etcd counts whole seconds: `ttl_s` is rounded up, and is at least 2 s by etcd's default."""
        granted = await self._transport.call(rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s)))
        return Grant(int(granted.ID), float(granted.TTL))

    async def renew(self, lease: int) -> bool:
        answer = await self._transport.call(rpc.LeaseKeepAliveRequest(ID=lease))
        return bool(answer.TTL > 0)

    async def revoke(self, lease: int) -> None:
        with suppress(LeaseNotFound):
            await self._transport.call(rpc.LeaseRevokeRequest(ID=lease))

    async def close(self) -> None:
        """Closing twice is no error. Its threads have ended afterwards."""
        self._transport.close()
        streams = [stream for watch in self._watches if (stream := watch.end())]
        await asyncio.gather(*(stream.ended(JOIN_S) for stream in streams))

    def _entry(self, kv: Any) -> Entry:
        return Entry(self._keys.short(kv.key), kv.value, kv.mod_revision, kv.lease)

    def _compare(self, compare: Compare) -> Any:
        key = self._keys.full(compare.key)
        kind = rpc.Compare
        return kind(result=kind.EQUAL, target=kind.MOD, key=key, mod_revision=compare.revision)

    def _write(self, write: Put | Delete) -> Any:
        key = self._keys.full(write.key)
        if isinstance(write, Put):
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=write.value, lease=write.lease))
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
