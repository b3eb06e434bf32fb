"""A view of the keys below some prefixes: read once, then watched, and read again where a watch was lost.

A view, never the truth: it may be behind. Whatever decides goes through a transaction that compares revisions. Own
writes may be taken in at once (`take`); the watch brings them again, and an older revision never overwrites a newer
one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from seaweedq.coordination.interface import Change, Coordination, WatchLost
from seaweedq.coordination.transactions import read_all
from seaweedq.errors import CoordinationUnavailable

logger = logging.getLogger(__name__)
RETRY_S = 1.0


class View:
    """Hands every change of keys below `prefixes` to `apply`, in order, each key's revisions rising."""

    def __init__(self, coordination: Coordination, prefixes: Sequence[str], apply: Callable[[Change], None]) -> None:
        self._coordination = coordination
        self._prefixes = prefixes
        self._apply = apply
        self._seen: dict[str, int] = {}  # revision of each key, gone ones too

    async def load(self) -> int:
        """Read everything; gives the revision from which a watch must go on."""
        revisions = []
        for prefix in self._prefixes:
            entries, revision = await read_all(self._coordination, prefix)
            revisions.append(revision)
            here = {entry.key for entry in entries}
            gone = [key for key in self._seen if key.startswith(prefix) and key not in here]
            self.take([Change(key, None, revision) for key in gone])
            self.take([Change(entry.key, entry.value, entry.revision) for entry in entries])
        return min(revisions)

    async def refresh(self, key: str) -> None:
        """Read one key again."""
        there = await self._coordination.get(key)
        if there:
            self.take([Change(key, there.value, there.revision)])

    async def follow(self, revision: int) -> None:
        """Watch for ever; a watch that was lost reads everything again."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    for prefix in self._prefixes:
                        group.create_task(self._watch(prefix, revision))
            except* (WatchLost, CoordinationUnavailable):
                logger.warning("the watch of %s was lost, reading everything again", ", ".join(self._prefixes))
                revision = await self._load_again()

    def take(self, changes: Sequence[Change]) -> None:
        """Work changes in, unless a newer one of the same key is known."""
        for change in changes:
            if change.revision > self._seen.get(change.key, 0):
                self._seen[change.key] = change.revision
                self._apply(change)

    async def _load_again(self) -> int:
        while True:
            try:
                return await self.load()
            except CoordinationUnavailable:
                await asyncio.sleep(RETRY_S)

    async def _watch(self, prefix: str, revision: int) -> None:
        async for changes in self._coordination.watch(prefix, revision):
            self.take(changes)
