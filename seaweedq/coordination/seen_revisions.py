"""Coordination as one life of a broker sees it, which notices that coordination went back.

Revisions never fall in one history: an answer shows all that was answered before its request was sent. So a revision
below one that was known by then is that of another history: coordination was restored from a backup, or begins anew.
Nothing that this life knows counts there.
"""

from collections.abc import AsyncIterator, Callable, Sequence

from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Entry, Page, Put
from seaweedq.errors import CoordinationUnavailable


class SeenRevisions:
    """A Coordination over that of the process. `seen` is the highest revision of the whole that any answer has shown to
    this life, or that another broker has told it. `went_back` is called with the reason, as often as an answer shows a
    lower one; the caller of that gets CoordinationUnavailable."""

    def __init__(self, coordination: Coordination, went_back: Callable[[str], None]) -> None:
        self.seen = 0
        self.leases = coordination.leases
        self._coordination = coordination
        self._went_back = went_back

    async def get(self, key: str) -> Entry | None:
        seen = self.seen
        found = await self._coordination.get(key)
        if found is None:  # which has no revision: what is forgotten must not look as if it had never been there
            self._see(seen, (await self._coordination.range(key, limit=1)).revision)
        elif found.revision > self.seen:
            self.seen = found.revision
        return found

    async def range(self, prefix: str, after: str = "", limit: int = 500) -> Page:
        seen = self.seen
        return self._known(seen, await self._coordination.range(prefix, after, limit))

    async def dump(self) -> Page:
        seen = self.seen
        return self._known(seen, await self._coordination.dump())

    async def count(self, prefix: str) -> int:
        return await self._coordination.count(prefix)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        seen = self.seen
        revision = await self._coordination.commit(compares, writes)
        if revision is not None:
            self._see(seen, revision)
        return revision

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[Change]]:
        async for changes in self._coordination.watch(prefix, revision):
            self.seen = max(self.seen, changes[-1].revision)
            yield changes

    async def close(self) -> None:
        await self._coordination.close()

    def _known(self, seen: int, page: Page) -> Page:
        self._see(seen, page.revision)
        return page

    def _see(self, seen: int, revision: int) -> None:
        """Takes the revision of an answer whose request was sent when `seen` was known."""
        if revision < seen:
            why = (
                f"coordination went back from revision {seen} to {revision}: it was restored, or replaced by a new one"
            )
            self._went_back(why)
            raise CoordinationUnavailable(why)
        self.seen = max(self.seen, revision)
