"""The asynchronous side of the single-machine backends: runs an engine's steps, and wakes watches.

A commit of this process wakes at once the watches whose keys it writes. One poll for all watches finds the commits of
other processes, and leases that ended. The engine makes all decisions; this module reads no key.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from seaweedq.coordination.interface import Change, Compare, Delete, Entry, Grant, Leases, Page, Put, check_transaction
from seaweedq.errors import CoordinationUnavailable, SeaweedqError

ALL = 2**62  # keys: more than there are
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes below a prefix up to `revision`; `more` tells whether later revisions exist already."""

    changes: tuple[Change, ...]
    revision: int
    more: bool


class Engine(Protocol):
    """The state behind a backend, in atomic steps. Expired leases end before each step."""

    def revision(self) -> int:
        """Returns the newest revision."""

    def get(self, key: str) -> Entry | None:
        """As Coordination.get."""

    def range(self, prefix: str, after: str, limit: int) -> Page:
        """As Coordination.range."""

    def count(self, prefix: str) -> int:
        """As Coordination.count."""

    def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        """As Coordination.commit."""

    def changes(self, prefix: str, revision: int) -> Changes:
        """Returns the changes after a revision; raises WatchLost if the log does not reach back that far."""

    def grant(self, ttl_s: float) -> Grant:
        """As Leases.grant."""

    def renew(self, lease: int) -> bool:
        """As Leases.renew."""

    def revoke(self, lease: int) -> None:
        """As Leases.revoke."""

    def close(self) -> None:
        """Closes files."""


class PollingCoordination:
    """Coordination and Leases over an engine. A subclass runs the engine's steps (`_run`)."""

    def __init__(self, engine: Engine, poll_s: float) -> None:
        self.leases: Leases = self
        self._engine = engine
        self._poll_s = poll_s
        self._closed = False
        self._watches: dict[asyncio.Event, str] = {}  # their prefixes, in the order in which they began, and are woken
        self._poller: asyncio.Task[None] | None = None

    async def get(self, key: str) -> Entry | None:
        return await self._step(self._engine.get, key)

    async def range(self, prefix: str, after: str = "", limit: int = 500) -> Page:
        return await self._step(self._engine.range, prefix, after, limit)

    async def dump(self) -> Page:
        return await self._step(self._engine.range, "", "", ALL)

    async def count(self, prefix: str) -> int:
        return await self._step(self._engine.count, prefix)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        """Raises ValueError for more than 128 operations, or a key written twice."""
        check_transaction(compares, writes)
        revision = await self._step(self._engine.commit, compares, writes)
        if revision is not None:
            self._wake([write.key for write in writes])
        return revision

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[Change]]:
        changed = asyncio.Event()
        self._watches[changed] = prefix
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll(), name="coordination-poll")
        try:
            while not self._closed:
                changed.clear()
                found = await self._step(self._engine.changes, prefix, revision)
                revision = found.revision
                if found.changes:
                    yield found.changes
                if not found.more:
                    await changed.wait()
        finally:
            self._watches.pop(changed, None)
            if not self._watches:
                self._stop_poll()

    async def grant(self, ttl_s: float) -> Grant:
        return await self._step(self._engine.grant, ttl_s)

    async def renew(self, lease: int) -> bool:
        return await self._step(self._engine.renew, lease)

    async def revoke(self, lease: int) -> None:
        await self._step(self._engine.revoke, lease)
        self._wake()

    async def close(self) -> None:
        """Closing twice is no error."""
        if not self._closed:
            self._closed = True
            self._stop_poll()
            self._wake()
            await self._run(self._engine.close)

    async def _step(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._closed:
            raise CoordinationUnavailable("this broker has closed its connection to coordination")
        return await self._run(step, *args, **kwargs)

    async def _run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        raise NotImplementedError

    def _wake(self, keys: Collection[str] | None = None) -> None:
        """Makes the watches of these keys look for changes, or all watches."""
        for changed, prefix in self._watches.items():
            if keys is None or any(key.startswith(prefix) for key in keys):
                changed.set()

    async def _poll(self) -> None:
        seen: int | None = None
        while True:
            try:
                revision = await self._step(self._engine.revision)
            except SeaweedqError:
                revision = None  # the watches ask themselves, and raise to their readers
            if revision is None or revision != seen:
                self._wake()
            seen = revision
            await asyncio.sleep(self._poll_s)

    def _stop_poll(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None
