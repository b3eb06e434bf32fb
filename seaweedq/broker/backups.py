"""The backups of coordination in the store: snapshots, and the administrative changes behind them
(coordination/backup has their bytes).

Order of writes for a change: 1. its transaction; 2. its object; 3. the store's newest generation is compared with this
life's; 4. the answer. A rebuild creates its generation before it lists changes: so it finds the object of 2, or 3 ends
this life. A crash behind 1 leaves a change without its object, which nobody was told of; a repeat puts it.

Order of writes for a snapshot: 1. coordination is read as of one revision; 2. it has the snapshot's number, in a
transaction that compares the leader's key; 3. its object; 4. the one KEPT before it goes, and now and then all that is
older, with the changes that the oldest of those that stay has. A crash behind 2 leaves a number without a snapshot, one
behind 3 more objects than are needed. A coordination that does not know the number of a snapshot in the store is older
than that one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec import json

from seaweedq.checks import reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import backup
from seaweedq.coordination.backup import AdminChange, Sealer, State
from seaweedq.errors import Damaged, Fenced, StoreUnavailable
from seaweedq.formats import Level
from seaweedq.storage.generations import Generations
from seaweedq.storage.interface import ObjectStore, folders

T = TypeVar("T")
Write = tuple[str, bytes | None]
KEPT = 3  # snapshots of a generation
PAGE = 1_000
READS = 16  # changes at a time
DELETIONS = 16
TRIES = 3  # to put a change in the place of a damaged one
BARE = -1  # the number of a state that is of changes alone
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundState:
    """The state that a generation's backups have. The objects `damaged` could not be read; those `unverified` are of
    another secret or of a forger: they give no rights, and are in the state only if no snapshot is verified."""

    state: State
    damaged: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()


class Backups:
    """One broker's access to the backups. `sealer` protects them at the cluster's level."""

    def __init__(self, store: ObjectStore, sealer: Sealer, generations: Generations, level: Level) -> None:
        self._store = store
        self._sealer = sealer
        self._generations = generations
        self._level = level
        self._revisions: dict[int, int] = {}  # of this generation's snapshots that were put or read, by number

    async def put_change(self, revision: int, writes: Sequence[Write], beside: Sequence[Write] = ()) -> None:
        """Puts the change that a transaction made, which may be there already; not where a snapshot that this broker
        knows has it. `beside` has values of other keys that its subject needs, as they are by now. Raises
        StoreUnavailable; Fenced if another generation has begun, or another history of coordination has used this
        revision: then nobody may be told of the change."""
        kept = tuple(write for write in (*writes, *beside) if self._sealer.keeps(write[0]))
        reach("change.put")
        if kept and revision > max(self._revisions.values(), default=0):
            change = AdminChange(self._generations.mine.number, revision, kept)
            name = backup.change_name(change.generation, revision)
            data = await asyncio.to_thread(backup.encode_change, change, self._sealer, self._level())
            await self._create_change(name, data, writes)
        reach("change.made")
        await self._generations.check()

    def keeps(self, key: str) -> bool:
        """Tells whether backups may have this key's value: rights stay out of a store that others may read."""
        return self._sealer.keeps(key)

    async def put_snapshot(self, state: State) -> int | None:
        """Puts a snapshot. Returns its size in bytes; None if there is one of its number. Raises StoreUnavailable."""
        data = await asyncio.to_thread(backup.encode_state, state, self._sealer, self._level())
        if not await self._store.create(backup.snapshot_name(state.generation, state.number), data):
            return None
        self._revisions[state.number] = state.revision
        return len(data)

    async def generations(self) -> list[int]:
        """Returns the generations that have backups, rising. Raises StoreUnavailable."""
        found = [backup.generation_of(folder) async for folder in folders(self._store, backup.BACKUPS_FOLDER)]
        return sorted(number for number in found if number is not None)

    async def newest_number(self, generation: int) -> int | None:
        """Returns the highest number of a snapshot; None if there is none. Raises StoreUnavailable."""
        return max(await self._numbers(generation), default=None)

    async def newest_change(self, generation: int) -> int | None:
        """Returns the highest revision of an administrative change; None if there is none. Raises StoreUnavailable."""
        return max(await self._changes(generation), default=None)

    async def newest_snapshot(self) -> State | None:
        """Returns the newest snapshot of this life's generation; None if there is none, or that one is damaged or not
        verified. Raises StoreUnavailable, NeedsNewerBroker, LevelMismatch."""
        generation = self._generations.mine.number
        number = await self.newest_number(generation)
        if number is None:
            return None
        found = await self._read(backup.decode_state, [], backup.snapshot_name(generation, number))
        return found if found and found.verified else None

    async def newest(self, generation: int) -> FoundState | None:
        """Returns the newest snapshot of a generation that is verified, with the changes behind it; if none is, the
        newest one that can be read. Without any, the state is of changes alone. None: there is no backup. Raises
        StoreUnavailable, NeedsNewerBroker, LevelMismatch."""
        damaged: list[str] = []
        base, unverified = await self._newest_snapshot(generation, damaged)
        revisions = await self._changes(generation, base.revision if base else 0)
        if not (base or revisions or damaged):
            return None
        names = [backup.change_name(generation, revision) for revision in revisions]
        read = await gather_bounded(READS, partial(self._read, backup.decode_change, damaged), names)
        changes = [change for change in read if change]
        verified = base.verified if base else all(change.verified for change in changes)
        unverified += [backup.change_name(generation, one.revision) for one in changes if not one.verified]
        if verified:
            changes = [one for one in changes if one.verified]
        state = base or State(generation, BARE, 0, {}, verified)
        return FoundState(state.after(changes), tuple(damaged), tuple(unverified))

    async def remove_snapshot(self, number: int) -> None:
        """Removes a snapshot of this generation, if it is there. Raises StoreUnavailable."""
        if number >= 0:
            await self._store.delete(backup.snapshot_name(self._generations.mine.number, number))

    async def prune(self) -> None:
        """Removes the snapshots of this generation but the newest KEPT, and the changes that the oldest of those has,
        if it can be read. Raises StoreUnavailable."""
        generation = self._generations.mine.number
        numbers = await self._numbers(generation)
        kept, old = numbers[-KEPT:], numbers[:-KEPT]
        doomed = [backup.snapshot_name(generation, number) for number in old]
        if len(kept) == KEPT and (below := await self._revision_of(generation, kept[0])):
            revisions = await self._changes(generation)
            doomed += [backup.change_name(generation, revision) for revision in revisions if revision <= below]
        await gather_bounded(DELETIONS, self._store.delete, doomed)
        self._revisions = {number: revision for number, revision in self._revisions.items() if number in kept}

    async def _create_change(self, name: str, data: bytes, writes: Sequence[Write]) -> None:
        """Creates a change's object, unless it is there with these writes. A damaged one gives way: no repeat could
        mend it. Raises Fenced, StoreUnavailable."""
        for _ in range(TRIES):
            if await self._store.create(name, data):
                return
            damaged: list[str] = []
            if there := await self._read(backup.decode_change, damaged, name):
                self._check_same(there, writes, name)
                return
            if damaged:
                await self._store.delete(name)
        raise StoreUnavailable(f"the store lists {name}, but the object cannot be read")

    def _check_same(self, there: AdminChange, writes: Sequence[Write], name: str) -> None:
        """Checks that an object has these writes. Raises Fenced if it has another one: coordination has given its
        revision twice."""
        found = dict(there.writes)
        for key, value in writes:
            is_shown = there.verified or not key.startswith(backup.RIGHTS)
            if self.keeps(key) and is_shown and (key not in found or not _is_same(found[key], value)):
                why = (
                    f"coordination was restored to an earlier state: the store already has {name}, with a different "
                    "change"
                )
                self._generations.end(why)
                raise Fenced(why)

    async def _newest_snapshot(self, generation: int, damaged: list[str]) -> tuple[State | None, list[str]]:
        """Returns the newest verified snapshot, or else the newest one; and the names of those that were read for it
        and are not verified."""
        unverified: list[State] = []
        for number in reversed(await self._numbers(generation)):
            found = await self._read(backup.decode_state, damaged, backup.snapshot_name(generation, number))
            if found and found.verified:
                break
            unverified += [found] if found else []
        else:
            found = unverified[0] if unverified else None
        return found, [backup.snapshot_name(generation, one.number) for one in unverified]

    async def _revision_of(self, generation: int, number: int) -> int | None:
        """Returns the revision of a snapshot; None if it cannot be read, or may be a forger's."""
        if number not in self._revisions:
            found = await self._read(backup.decode_state, [], backup.snapshot_name(generation, number))
            if found is None or not found.verified:
                return None
            self._revisions[number] = found.revision
        return self._revisions[number]

    async def _read(self, decode: Callable[[bytes, str, Sealer], T], damaged: list[str], name: str) -> T | None:
        """Returns an object's content; None if it has gone meanwhile, or is damaged, which is noted."""
        try:
            data = await self._store.read(name)
            return await asyncio.to_thread(decode, data, name, self._sealer)
        except FileNotFoundError:
            return None
        except Damaged as error:
            logger.error("ignoring an unusable backup of coordination: %s", error)
            damaged.append(name)
            return None

    async def _numbers(self, generation: int) -> list[int]:
        """Returns the numbers of the snapshots, rising. They sort before the changes, which are not listed all."""
        folder = backup.generation_folder(generation)
        found: list[int] = []
        async for names in self._listed(folder):
            numbers = [backup.snapshot_number(name, generation) for name in names]
            found += [number for number in numbers if number is not None]
            if None in numbers:
                break
        return found

    async def _changes(self, generation: int, after: int = 0) -> list[int]:
        """Returns the revisions of the changes above one, rising."""
        found: list[int] = []
        async for names in self._listed(backup.changes_folder(generation)):
            revisions = [backup.change_revision(name, generation) for name in names]
            found += [revision for revision in revisions if revision is not None and revision > after]
        return found

    async def _listed(self, folder: str) -> AsyncIterator[list[str]]:
        after, more = "", True
        while more:
            names = await self._store.list(folder, after=after, limit=PAGE)
            yield names
            more, after = len(names) == PAGE, names[-1] if names else ""


def _is_same(one: bytes | None, other: bytes | None) -> bool:
    """Tells whether two values of a key are the same record: 30 and 30.0 are, and so are members in another order."""
    return one == other or (one is not None and other is not None and json.decode(one) == json.decode(other))
