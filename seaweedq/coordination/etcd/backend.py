"""Coordination for clusters, on etcd 3.4 or newer: implements the interface with etcd's messages.

A key's revision is etcd's mod_revision, the store's is that of each answer's header. Reads are linearizable. A commit
without an answer may have happened, or may still happen, and is never repeated here: the caller gets
CoordinationUnavailable and reads again. Writes that must not arrive late compare revisions.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

from seaweedq.coordination.etcd.key_space import KeySpace
from seaweedq.coordination.etcd.rpc import rpc
from seaweedq.coordination.etcd.transport import Access, LeaseNotFound, Transport
from seaweedq.coordination.etcd.watch import Watch
from seaweedq.coordination.interface import Change, Compare, Delete, Entry, Grant, Leases, Page, Put
from seaweedq.coordination.transactions import check_transaction

JOIN_S = 5.0


class EtcdCoordination:
    """Coordination and Leases on the cluster behind `access`, with `prefix` before every key.

    `timeout_s` bounds each call. The first call connects, so an unreachable etcd raises CoordinationUnavailable then.
    Raises ValueError without endpoints, OSError for TLS files that cannot be read.
    """

    def __init__(self, access: Access, prefix: str, *, timeout_s: float = 5.0) -> None:
        self.leases: Leases = self
        self._keys = KeySpace(prefix)
        self._transport = Transport(access, timeout_s)
        self._watches: set[Watch] = set()

    async def get(self, key: str) -> Entry | None:
        """As Coordination."""
        answer = await self._transport.call(rpc.RangeRequest(key=self._keys.full(key)))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: str, after: str = "", limit: int = 500) -> Page:
        """As Coordination."""
        start, end = self._keys.interval(prefix, after)
        answer = await self._transport.call(rpc.RangeRequest(key=start, range_end=end, limit=limit))
        return Page(tuple(self._entry(kv) for kv in answer.kvs), answer.header.revision, answer.more)

    async def count(self, prefix: str) -> int:
        """As Coordination."""
        start, end = self._keys.interval(prefix, "")
        answer = await self._transport.call(rpc.RangeRequest(key=start, range_end=end, count_only=True))
        return int(answer.count)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        """As Coordination. Raises ValueError for more than 128 operations, or a key written twice."""
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
        """As Coordination. Reconnects without a gap, for as long as it takes."""
        self._transport.check_open()
        watch = Watch(self._transport, self._keys, prefix, revision)
        self._watches.add(watch)
        try:
            async with aclosing(watch.groups()) as groups:
                async for group in groups:
                    yield group
        finally:
            self._watches.discard(watch)

    async def grant(self, ttl_s: float) -> Grant:
        """As Leases. etcd counts whole seconds: `ttl_s` is rounded up, and is at least 2 s by etcd's default."""
        granted = await self._transport.call(rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s)))
        return Grant(int(granted.ID), float(granted.TTL))

    async def renew(self, lease: int) -> bool:
        """As Leases."""
        answer = await self._transport.call(rpc.LeaseKeepAliveRequest(ID=lease))
        return bool(answer.TTL > 0)

    async def revoke(self, lease: int) -> None:
        """As Leases."""
        with suppress(LeaseNotFound):
            await self._transport.call(rpc.LeaseRevokeRequest(ID=lease))

    async def close(self) -> None:
        """As Coordination; closing twice is no error. Its threads have ended afterwards."""
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
