"""Snapshots of coordination, which the leader puts into the store, and the look at their numbers.

broker/backups has the order of writes. A snapshot is of one revision, and none is put while nothing has changed that it
would have. A new leader compares the newest snapshot with coordination, so a change of leaders puts none either, unless
that snapshot is not verified (the secret has changed).

The numbers of snapshots rise. A broker that sees one that does not was told so by another history of coordination: its
life ends, as does that of a leader whose number the store has already.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from seaweedq.broker.backups import KEPT
from seaweedq.broker.context import Context
from seaweedq.checks import reach
from seaweedq.coordination import keys
from seaweedq.coordination.backup import State
from seaweedq.coordination.interface import Change, Compare, Entry, Put
from seaweedq.coordination.records import Counter
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.coordination.view import View
from seaweedq.errors import Fenced

LISTED_EVERY = 20  # snapshots: what is left of others, and the changes, is found by listings, which cost as puts do
BYTES_PER_S = 1_000_000  # of keys and values: a large state comes less often


class _Content(NamedTuple):
    """The keys that a snapshot has, their bytes, and a digest of both."""

    keys: Mapping[str, bytes]
    size_bytes: int
    digest: bytes


class Snapshots:
    """The snapshots of one broker, while it leads. It has `made` so many; the last one had `size_bytes` in the
    store."""

    def __init__(self, context: Context) -> None:
        self.made = 0
        self.size_bytes = 0
        self._coordination = context.coordination
        self._election = context.election
        self._backups = context.backups
        self._generations = context.generations
        self._clock = context.clock
        self._every_s = context.settings.snapshot_s
        self._led: Compare | None = None  # the leadership to which the next three belong
        self._digest: bytes | None = None  # of the newest snapshot; None: not known
        self._revision = 0  # up to here the newest snapshot has all; 0: not known
        self._whole_s = 0.0  # monotonic: when the store had all that coordination had
        self._due_s = 0.0  # monotonic

    @property
    def age_s(self) -> float:
        """Returns how long ago the store had all that coordination had, or this broker began to lead; 0 if it does not
        lead."""
        if self._led is None or not self._election.is_leader:
            return 0.0
        return self._clock.monotonic_s() - self._whole_s

    async def put_if_changed(self) -> None:
        """Puts a snapshot if coordination has changed since the last one. Raises Unavailable, Fenced."""
        leads, began_s = self._election.leader_compare(), self._clock.monotonic_s()
        if leads != self._led:
            self._led, self._digest, self._revision, self._whole_s, self._due_s = leads, None, 0, began_s, 0.0
        if began_s < self._due_s:
            return
        if self._revision and (await self._coordination.range(keys.CLUSTER.key(), limit=1)).revision == self._revision:
            self._whole_s = began_s
            return
        page = await self._coordination.dump()
        content = await asyncio.to_thread(self._content, page.entries)
        if self._digest is None:
            self._digest = await self._newest_digest()
        self._revision = page.revision
        is_new = content.digest != self._digest
        if is_new:
            self._revision = await self._put(leads, page.revision, content.keys, page.entries)
        self._digest, self._whole_s = content.digest, began_s
        pause_s = content.size_bytes / BYTES_PER_S
        self._due_s = began_s + pause_s if pause_s > self._every_s else 0.0
        if is_new and self.made % LISTED_EVERY == 1:
            await self._backups.prune()

    async def _put(self, leads: Compare, of: int, there: Mapping[str, bytes], entries: Sequence[Entry]) -> int:
        """Puts a snapshot of a revision. Returns the revision up to which it has all; 0: not known."""
        known = next((entry for entry in entries if entry.key == keys.SNAPSHOTS.key()), None)
        counter = keys.SNAPSHOTS.require(known) if known else Versioned.new(Counter(0))
        number = counter.record.next + 1
        put = Put(keys.SNAPSHOTS.key(), keys.SNAPSHOTS.encode(counter.replace(next=number)))
        reach("snapshot.number")
        revision = await self._coordination.commit([leads, Compare(put.key, counter.revision)], [put])
        if revision is None:
            raise Fenced("another broker is the leader, so this broker stores no snapshots of coordination")
        reach("snapshot.numbered")
        size_bytes = await self._backups.put_snapshot(State(self._generations.mine.number, number, of, there))
        if size_bytes is None:  # nobody else of this history has put it
            why = f"coordination was restored to an earlier state: the store already has its snapshot {number}"
            self._generations.end(why)
            raise Fenced(why)
        reach("snapshot.made")
        self.made, self.size_bytes = self.made + 1, size_bytes
        await self._backups.remove_snapshot(number - KEPT)
        return revision if revision == of + 1 else 0  # or something has changed between the two

    async def _newest_digest(self) -> bytes | None:
        newest = await self._backups.newest_snapshot()
        return await asyncio.to_thread(_digest, newest.keys) if newest else None

    def _content(self, entries: Sequence[Entry]) -> _Content:
        kept = [one for one in entries if not one.lease and keys.is_in_snapshots(one.key)]
        there = {one.key: one.value for one in kept if self._backups.keeps(one.key)}
        return _Content(there, sum(len(key) + len(value) for key, value in there.items()), _digest(there))


class SnapshotNumbers:
    """The numbers of snapshots that coordination shows to one life, whose end is one that does not rise."""

    def __init__(self, context: Context) -> None:
        self._generations = context.generations
        self._newest = 0
        view = View(context.coordination, [keys.SNAPSHOTS.key()], self._apply)
        self.load = view.load
        self.follow = view.follow

    def _apply(self, change: Change) -> None:
        if change.value is None:
            return
        found = keys.SNAPSHOTS.read(Entry(change.key, change.value, change.revision))
        if isinstance(found, Unreadable):
            self._newest = -1  # a newer broker writes it back, perhaps as it was
            return
        number = found.record.next
        if number <= self._newest:
            self._generations.end(
                f"coordination was restored to an earlier state: snapshot {number} would follow snapshot {self._newest}"
            )
        self._newest = number


def _digest(there: Mapping[str, bytes]) -> bytes:
    """Returns a digest of keys and values."""
    made = hashlib.sha256()
    for key in sorted(there):
        name, value = key.encode(), there[key]
        made.update(b"%d %d " % (len(name), len(value)))
        made.update(name)
        made.update(value)
    return made.digest()
