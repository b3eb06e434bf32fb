"""A view of the keys below some prefixes: read once, then watched, and read again if a watch was lost.

A view may be behind, so decisions need a transaction that compares revisions. A process may apply its own writes at
once (`take`); the watch reports them again, and an older revision never overwrites a newer one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.interface import Change, Coordination, WatchLost, read_all
from seaweedq.errors import CoordinationUnavailable

logger = logging.getLogger(__name__)
RETRY_S = 1.0


class View:
    """Passes every change of keys below `prefixes` to `apply`, in order, with rising revisions per key."""

    def __init__(self, coordination: Coordination, prefixes: Sequence[str], apply: Callable[[Change], None]) -> None:
        self._coordination = coordination
        self._prefixes = prefixes
        self._apply = apply
        self._seen: dict[str, int] = {}  # the revision of each key that is there, and of those in `_gone`
        self._gone: set[str] = set()  # until nothing older can come any more
        self._floors = dict.fromkeys(prefixes, 0)  # of each prefix all changes up to here were taken in

    async def load(self) -> int:
        """Reads everything. Returns the revision from which a watch must continue."""
        revisions = [await self.reread(prefix) for prefix in self._prefixes]
        for prefix, revision in zip(self._prefixes, revisions, strict=True):
            self._raise_floor(prefix, revision)
        return min(revisions)

    async def reread(self, prefix: str) -> int:
        """Reads all keys below a prefix again; the prefix must be within those of the view. Returns the revision of the
        read."""
        entries, revision = await read_all(self._coordination, prefix)
        here = {entry.key for entry in entries}
        gone = [key for key in self._seen if key.startswith(prefix) and key not in here]
        self.take([Change(key, None, revision) for key in gone])
        self.take([Change(entry.key, entry.value, entry.revision) for entry in entries])
        return revision

    async def refresh(self, key: str) -> None:
        """Reads one key again."""
        page = await self._coordination.range(key, limit=1)
        there = next((entry for entry in page.entries if entry.key == key), None)
        self.take([Change(key, there.value, there.revision) if there else Change(key, None, page.revision)])

    async def follow(self, revision: int) -> None:
        """Watches for ever; after a lost watch it reads everything again."""
        while True:
            try:
                # Not a task group: it swallows the cancellation of a caller whose child fails in the same step.
                await gather_bounded(len(self._prefixes), partial(self._watch, revision), self._prefixes)
            except (WatchLost, CoordinationUnavailable):
                logger.warning(
                    "the watch for changes of the keys %s was lost; reading all these keys again",
                    ", ".join(self._prefixes),
                )
                revision = await self._load_again()

    def take(self, changes: Sequence[Change]) -> None:
        """Applies changes, unless a newer one of the same key is known."""
        for change in changes:
            known = self._seen.get(change.key)
            if known is None:
                known = next(floor for prefix, floor in self._floors.items() if change.key.startswith(prefix))
            if change.revision > known:
                was_there = change.key in self._seen and change.key not in self._gone
                self._seen[change.key] = change.revision
                (self._gone.add if change.value is None else self._gone.discard)(change.key)
                if was_there or change.value is not None:
                    self._apply(change)

    def _raise_floor(self, prefix: str, floor: int) -> None:
        """Records that all changes below a prefix up to this revision are known: an unknown key is deleted, or
        newer."""
        self._floors[prefix] = max(self._floors[prefix], floor)
        for key in sorted(
            key for key in self._gone if key.startswith(prefix) and self._seen[key] <= self._floors[prefix]
        ):
            self._gone.remove(key)
            del self._seen[key]

    async def _load_again(self) -> int:
        while True:
            try:
                return await self.load()
            except CoordinationUnavailable:
                await asyncio.sleep(RETRY_S)

    async def _watch(self, revision: int, prefix: str) -> None:
        async for changes in self._coordination.watch(prefix, revision):
            self.take(changes)
            self._raise_floor(prefix, max(change.revision for change in changes))
