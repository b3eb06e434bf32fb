"""Helpers around transactions, shared by the backends and their users."""

from collections.abc import AsyncIterator, Sequence

from seaweedq.coordination.interface import Compare, Coordination, Delete, Entry, Page, Put

MAX_OPERATIONS = 128


def check_transaction(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
    """Raises ValueError for transactions that every backend must refuse: over 128 operations, or a key written
    twice."""
    if len(compares) + len(writes) > MAX_OPERATIONS:
        raise ValueError(
            f"the transaction has {len(compares)} comparisons and {len(writes)} writes; over {MAX_OPERATIONS} in all"
        )
    if len({write.key for write in writes}) < len(writes):
        raise ValueError("the transaction writes a key twice")


async def pages(coordination: Coordination, prefix: str, after: str = "", limit: int = 500) -> AsyncIterator[Page]:
    """Yields the keys with the prefix behind `after`, in key order, `limit` a page; at least one page."""
    more = True
    while more:
        page = await coordination.range(prefix, after, limit)
        more, after = page.more, page.entries[-1].key if page.entries else after
        yield page


async def entries(coordination: Coordination, prefix: str, after: str = "", limit: int = 500) -> AsyncIterator[Entry]:
    """Yields every key with the prefix behind `after`, in key order; reads `limit` at a time, each page as it is when
    the one before is done with."""
    async for page in pages(coordination, prefix, after, limit):
        for entry in page.entries:
            yield entry


async def read_all(coordination: Coordination, prefix: str, limit: int = 500) -> tuple[list[Entry], int]:
    """Returns all keys with the prefix, and the revision from which to watch.

    That is the first page's revision: later pages may already show changes that the watch reports again, but none is
    missed.
    """
    found = [page async for page in pages(coordination, prefix, limit=limit)]
    return [entry for page in found for entry in page.entries], found[0].revision
