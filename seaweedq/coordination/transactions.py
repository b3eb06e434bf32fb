"""Help around transactions that every backend and every user of the interface shares."""

from collections.abc import Sequence

from seaweedq.coordination.interface import Compare, Coordination, Delete, Entry, Put

MAX_OPERATIONS = 128


def check_transaction(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
    """Raises ValueError for transactions that no backend may take: over 128 operations, or a key written twice."""
    if len(compares) + len(writes) > MAX_OPERATIONS:
        raise ValueError(f"{len(compares)} comparisons and {len(writes)} writes: over {MAX_OPERATIONS}")
    if len({write.key for write in writes}) < len(writes):
        raise ValueError("a key is written twice")


async def read_all(coordination: Coordination, prefix: str, limit: int = 500) -> tuple[list[Entry], int]:
    """All keys with the prefix, `limit` a page, and the revision from which to watch.

    That is the first page's: later pages may already show changes that the watch reports once more, never one less.
    """
    page = await coordination.range(prefix, limit=limit)
    entries, revision = list(page.entries), page.revision
    while page.more:
        page = await coordination.range(prefix, after=entries[-1].key, limit=limit)
        entries += page.entries
    return entries, revision
