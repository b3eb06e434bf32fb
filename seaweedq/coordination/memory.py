"""Coordination in dictionaries: the twin of the real backends for tests, with the same rules."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ParamSpec, TypeVar

from seaweedq.clock import Clock
from seaweedq.coordination.interface import Change, Compare, Delete, Entry, Grant, Page, Put, WatchLost
from seaweedq.coordination.polling import Changes, PollingCoordination

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class _Lease:
    ttl_s: float
    renewed_s: float


class MemoryCoordination(PollingCoordination):
    """Coordination within one event loop; leases age by `clock`. Watches reach back `log_limit` revisions."""

    def __init__(self, clock: Clock, *, log_limit: int = 10_000, poll_s: float = 0.05) -> None:
        super().__init__(MemoryEngine(clock, log_limit), poll_s)

    async def _run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await asyncio.sleep(0)  # others get a turn, as with a real backend
        return step(*args, **kwargs)


class MemoryEngine:
    def __init__(self, clock: Clock, log_limit: int) -> None:
        self._clock = clock
        self._revision = 0
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, _Lease] = {}
        self._granted = 0
        self._log: deque[tuple[Change, ...]] = deque(maxlen=log_limit)

    def revision(self) -> int:
        self._end_leases()
        return self._revision

    def get(self, key: str) -> Entry | None:
        self._end_leases()
        return self._entries.get(key)

    def range(self, prefix: str, after: str, limit: int) -> Page:
        self._end_leases()
        keys = sorted(key for key in self._entries if key.startswith(prefix) and key > after)
        return Page(tuple(self._entries[key] for key in keys[:limit]), self._revision, len(keys) > limit)

    def count(self, prefix: str) -> int:
        self._end_leases()
        return sum(key.startswith(prefix) for key in self._entries)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        self._end_leases()
        unchanged = all(self._revision_of(compare.key) == compare.revision for compare in compares)
        if not unchanged or any(isinstance(w, Put) and w.lease and w.lease not in self._leases for w in writes):
            return None
        self._apply([write for write in writes if isinstance(write, Put) or write.key in self._entries])
        return self._revision

    def changes(self, prefix: str, revision: int) -> Changes:
        self._end_leases()
        oldest = self._revision - len(self._log)
        if revision < oldest:
            raise WatchLost(
                f"the changes after revision {revision} can no longer be read, because all changes up "
                f"to revision {oldest} were removed"
            )
        later = islice(self._log, revision - oldest, None)
        found = tuple(change for changes in later for change in changes if change.key.startswith(prefix))
        return Changes(found, max(revision, self._revision), more=False)

    def grant(self, ttl_s: float) -> Grant:
        self._granted += 1
        self._leases[self._granted] = _Lease(ttl_s, self._clock.monotonic_s())
        return Grant(self._granted, ttl_s)

    def renew(self, lease: int) -> bool:
        self._end_leases()
        if lease in self._leases:
            self._leases[lease].renewed_s = self._clock.monotonic_s()
        return lease in self._leases

    def revoke(self, lease: int) -> None:
        if lease in self._leases:  # 0 is that of keys without one
            self._end({lease})

    def close(self) -> None:
        self._entries.clear()

    def _revision_of(self, key: str) -> int:
        return self._entries[key].revision if key in self._entries else 0

    def _end_leases(self) -> None:
        now = self._clock.monotonic_s()
        if ended := {id for id, lease in self._leases.items() if lease.renewed_s + lease.ttl_s <= now}:
            self._end(ended)

    def _end(self, leases: set[int]) -> None:
        for lease in leases:
            self._leases.pop(lease, None)
        self._apply([Delete(key) for key, entry in sorted(self._entries.items()) if entry.lease in leases])

    def _apply(self, writes: Sequence[Put | Delete]) -> None:
        if not writes:
            return
        self._revision += 1
        for write in writes:
            if isinstance(write, Put):
                self._entries[write.key] = Entry(write.key, write.value, self._revision, write.lease)
            else:
                del self._entries[write.key]
        values = ((write.key, write.value if isinstance(write, Put) else None) for write in writes)
        self._log.append(tuple(Change(key, value, self._revision) for key, value in values))
