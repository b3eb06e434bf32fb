"""The small key-value interface on which all coordination is built, and helpers over it.

Keys are strings, values are bytes. Every key has the revision of its last change. A transaction compares revisions and
applies all its writes or none. A key tied to a lease is deleted when the lease ends.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_OPERATIONS = 128


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as read: `revision` is that of its last change (1 or more), `lease` is 0 for none."""

    key: str
    value: bytes
    revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a range in key order, as of one `revision` of the whole store; `more` tells whether keys follow."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition: the key's revision is this one; 0 means that the key does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Writes a key, tied to a lease unless `lease` is 0."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a key; a missing one is no error."""

    key: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a watch reports: the key as written, or `value` None if it was deleted."""

    key: str
    value: bytes | None
    revision: int


class WatchLost(Exception):
    """A watch cannot continue without a gap (compaction, reconnect): read everything again."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as it was granted: `lease` is above 0, and `ttl_s` may be longer than asked for."""

    lease: int
    ttl_s: float


class Leases(Protocol):
    """Leases: keys that exist as long as their holder renews."""

    async def grant(self, ttl_s: float) -> Grant:
        """Grants a new lease of `ttl_s` seconds, or more."""

    async def renew(self, lease: int) -> bool:
        """Restarts the lease's time. False: it has ended, and never comes back."""

    async def revoke(self, lease: int) -> None:
        """Ends the lease now, and deletes its keys; an unknown lease is no error."""


class Coordination(Protocol):
    """Get, range by pages, dump, count, compare-and-set transaction, watch; and leases. Every method raises
    CoordinationUnavailable."""

    leases: Leases

    async def get(self, key: str) -> Entry | None:
        """Returns the key, or None."""

    async def range(self, prefix: str, after: str = "", limit: int = 500) -> Page:
        """Returns the keys that begin with `prefix` and sort after `after`."""

    async def dump(self) -> Page:
        """Returns all keys as of one revision, in one page. It is as large as all of coordination."""

    async def count(self, prefix: str) -> int:
        """Returns how many keys begin with `prefix`."""

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        """Applies all writes if all comparisons hold, and returns the new revision. None: one did not hold, nothing
        happened.

        At most 128 comparisons and writes together (etcd's default), and no key written twice. A Put with a lease that
        has ended counts as a comparison that did not hold.
        """

    def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[Change]]:
        """Yields the changes after `revision`, in order, in groups that never split a transaction; raises WatchLost."""

    async def close(self) -> None:
        """Closes connections and threads; watches end."""


def check_transaction(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
    """Raises ValueError for transactions that every backend must refuse: over 128 operations, or a key written
    twice."""
    if len(compares) + len(writes) > MAX_OPERATIONS:
        raise ValueError(
            f"the transaction has {len(compares)} comparisons and {len(writes)} writes; the limit is "
            f"{MAX_OPERATIONS} in total"
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
