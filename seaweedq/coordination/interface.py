"""The small key-value interface on which all coordination stands.

Keys are strings, values bytes. Every key carries the revision of its last change; a transaction compares
revisions and applies all its writes or none. Keys tied to a lease go when the lease ends.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as read: `revision` is that of its last change (1 or more), `lease` 0 for none."""

    key: str
    value: bytes
    revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a range in key order, as of one `revision` of the whole store; `more` says that keys follow."""

    entries: tuple[Entry, ...]
    revision: int
    more: bool


@dataclass(frozen=True, slots=True)
class Compare:
    """Holds when the key's revision is this one; 0 means that the key does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key, tied to a lease unless it is 0."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key; one that is not there is no error."""

    key: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch reports: the key as written, or `value` None where it went."""

    key: str
    value: bytes | None
    revision: int


class WatchLost(Exception):
    """A watch can not go on without a hole (compaction, reconnect): read everything again."""


class Leases(Protocol):
    """Leases: keys that live as long as their holder renews."""

    async def grant(self, ttl_s: float) -> int:
        """A new lease, above 0."""

    async def renew(self, lease: int) -> bool:
        """Start the lease's time anew. False: it has ended, and never comes back."""

    async def revoke(self, lease: int) -> None:
        """End the lease now, and delete its keys; an unknown one is no error."""


class Coordination(Protocol):
    """Get, range by pages, compare-and-set transaction, watch; and leases. Raises CoordinationUnavailable."""

    leases: Leases

    async def get(self, key: str) -> Entry | None:
        """The key, or None."""

    async def range(self, prefix: str, after: str = "", limit: int = 500) -> Page:
        """Keys that begin with `prefix` and sort behind `after`."""

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        """Apply all writes if all comparisons hold: the new revision. None: one did not hold, nothing happened.

        At most 128 comparisons and writes together (etcd's default), and no key written twice. A Put with a lease that
        has ended counts as a comparison that did not hold.
        """

    def watch(self, prefix: str, revision: int) -> AsyncIterator[Sequence[Change]]:
        """Changes after `revision`, in order, in groups that never cut a transaction; raises WatchLost."""

    async def close(self) -> None:
        """Let go of connections and threads; watches end."""
