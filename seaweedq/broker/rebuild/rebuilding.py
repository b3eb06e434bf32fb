"""The rebuild of coordination, by a broker that waits for one: what it writes, and in which order.

1. The store gets the object of a new generation: from here a broker over the old coordination acknowledges nothing that
   the listings below do not show, since it looks for the generation behind its first slot and each change. 2. The
   cluster's key says `rebuilding`: nobody joins. Leases of brokers that are there end, and their time is waited for.
3. The state to go by is taken (plan), all journals that may be needed are fenced and read, then chains. 4. That state
   goes into the store as snapshot 0 of the new generation. 5. The key says `replacing`. 6. Coordination's keys become
   those of the plan. 7. They go into the store as snapshot 1. 8. The key says that the new generation serves.

A crash before 5 leaves coordination as it was, but for that key; one behind 4 leaves the same whole state in the store,
as the newest one there is. So a rebuild that is run again finds what the first one has found, and begins with a
generation of its own. Each transaction compares the cluster's key: of two at once the later one goes on, and the other
ends with its next write. Before 8 the store's newest generation is looked at again, since a third may have begun.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import msgspec

from seaweedq.broker.backups import Backups, FoundState
from seaweedq.broker.rebuild.journals import FoundJournals, JournalSearch
from seaweedq.broker.rebuild.plan import (
    UNTOUCHED,
    Found,
    OwnState,
    Plan,
    Source,
    StateView,
    choose,
    plan,
)
from seaweedq.broker.rebuild.reading import StoreReader
from seaweedq.checks import reach
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.backup import State
from seaweedq.coordination.cluster_level import read_cluster
from seaweedq.coordination.interface import Compare, Coordination, Delete, Entry, Put, entries, read_all
from seaweedq.coordination.records import ClusterRecord, Counter, JournalRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import RebuildConflict, UnfitStore
from seaweedq.storage.generations import Generation, create_generation, list_numbers, newest_number, read_generation
from seaweedq.storage.identity import Identity, known_identity, marked_level, newest_round
from seaweedq.storage.interface import ObjectStore, PayloadStore

WRITES, WRITES_BYTES = 120, 1024 * 1024  # of a transaction
LONGEST_LEASE_S = 60.0
NEAREST = 3  # names of journals that an error tells, for each one that is unknown
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wish:
    """The wish of an operator: journals that may be lost, by broker, and whether principals and tokens are left
    out."""

    without_journals: frozenset[str] = frozenset()
    without_tokens: bool = False


@dataclass(frozen=True)
class Report:
    """The result of a rebuild, or of a dry run (`generation` 0): the state that it goes by (its source, generation,
    number and revision), the plan, backups that could not be read or give no rights, and journals that keep it
    from being done, with the reason."""

    generation: int
    source: Source
    state: State
    plan: Plan
    damaged: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    hindered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Basis:
    """The state to go by with its source, its records, the backups that were read for it, and the journals."""

    source: Source
    state: State
    view: StateView
    stored: FoundState | None
    search: FoundJournals


class Rebuilding:
    """Rebuilds coordination from the store. `lease_s` is how long a broker may take to notice the end of its lease;
    `named` are store and coordination, for people."""

    def __init__(
        self,
        coordination: Coordination,
        store: ObjectStore,
        payloads: PayloadStore,
        backups: Backups,
        journals: JournalSearch,
        clock: Clock,
        ids: Ids,
        lease_s: float,
        named: str,
    ) -> None:
        self._coordination = coordination
        self._store = store
        self._reader = StoreReader(store, payloads)
        self._backups = backups
        self._journals = journals
        self._clock = clock
        self._ids = ids
        self._lease_s = lease_s
        self._named = named

    async def propose(self, wish: Wish) -> Report:
        """Returns what a rebuild would do now. Writes nothing, and reads no journal of the store: owners are not known.
        Raises StoreUnavailable, CoordinationUnavailable, NeedsNewerBroker, UnfitStore; RebuildConflict if a journal
        that is to be left out is unknown."""
        return await self._made(await self._record(), wish, 0, fence=False)

    async def rebuild(self, wish: Wish) -> Report:
        """Rebuilds. Raises RebuildConflict if another rebuild is under way, or a journal cannot be read that may be
        needed; and as `propose`."""
        identity = await known_identity(self._store)
        if identity is None:
            raise UnfitStore(
                f"{self._named}: the store does not belong to a cluster, so coordination cannot be rebuilt from it"
            )
        await self._check(wish)
        above = await self._highest()
        while True:
            generation = await self._begin_generation(above, wish.without_tokens)
            reach("rebuild.generation")
            held = await self._announce(identity, generation)
            reach("rebuild.announced")
            await self._keep_out(held)
            report = await self._made(held.record, wish, generation.number, fence=True)
            if report.hindered:
                raise _hindered(report.hindered)
            above = report.plan.generation
            if above < generation.number:
                break
            logger.warning(
                "stored messages belong to generation %d of coordination; the rebuild needs a higher generation, and "
                "starts again",
                above,
            )
        await self._save(generation.number, 0, report.state.keys)
        reach("rebuild.saved")
        held = await self._write_cluster(held, generation=generation.number, state="replacing", nonce=generation.nonce)
        reach("rebuild.replacing")
        target = {**report.plan.keys, keys.SNAPSHOTS.key(): keys.SNAPSHOTS.encode(Versioned.new(Counter(1)))}
        await self._replace(held, target)
        reach("rebuild.replaced")
        await self._save(generation.number, 1, target)
        reach("rebuild.backed")
        if await newest_number(self._store) != generation.number:
            raise _another()
        await self._write_cluster(held, state="serving", rebuild=0, found="")
        reach("rebuild.done")
        logger.warning("coordination was rebuilt as generation %d; brokers can join the cluster", generation.number)
        return replace(report, generation=generation.number)

    async def _record(self) -> ClusterRecord | None:
        there = await self._coordination.get(keys.CLUSTER.key())
        return read_cluster(there).record if there else None

    async def _check(self, wish: Wish) -> None:
        """Refuses, before anything is written, what can be known to be refused. While brokers have leases, their
        journals are theirs: they report them once they wait."""
        taken = await self._take(await self._record(), wish, 0, fence=False)
        alive, _ = await read_all(self._coordination, keys.BROKERS.prefix())
        if taken.search.hindered and not alive:
            raise _hindered(taken.search.hindered)

    async def _highest(self) -> int:
        """Returns the highest generation that the store, journals or coordination name: who has lost `_generations/`
        must not begin one anew. That of rows is known only once they were read."""
        cluster = await self._record()
        known = max(cluster.generation, cluster.rebuild) if cluster else 0
        return max([known, await self._journals.newest_generation(), *await self._backups.generations()])

    async def _begin_generation(self, above: int, without_tokens: bool) -> Generation:
        """Does step 1: of two at once each gets a generation of its own."""
        while True:
            number = max(above, await newest_number(self._store)) + 1
            generation = Generation(number, self._ids.nonce(), without_tokens)
            if await create_generation(self._store, generation):
                logger.warning("%s: starting to rebuild coordination, as generation %d", self._named, generation.number)
                return generation

    async def _announce(self, identity: Identity, generation: Generation) -> Versioned[ClusterRecord]:
        """Does step 2, in the place of a rebuild that began before. Raises RebuildConflict if a later one has begun."""
        while True:
            held = await self._cluster(identity)
            record = held.record
            if record.rebuild > generation.number or record.generation >= generation.number:
                raise _another()
            state = "replacing" if record.state == "replacing" else "rebuilding"
            written = await self._commit_cluster(held.replace(state=state, rebuild=generation.number))
            if written is not None:
                return written

    async def _cluster(self, identity: Identity) -> Versioned[ClusterRecord]:
        """Returns the cluster's record; one of no generation if coordination is empty."""
        there = await self._coordination.get(keys.CLUSTER.key())
        if there:
            return read_cluster(there)
        empty = ClusterRecord.new(identity.cluster, await marked_level(self._store))
        return Versioned.new(msgspec.structs.replace(empty, store=identity.store, generation=0))

    async def _commit_cluster(self, wanted: Versioned[ClusterRecord]) -> Versioned[ClusterRecord] | None:
        put = Put(keys.CLUSTER.key(), keys.CLUSTER.encode(wanted))
        revision = await self._coordination.commit([Compare(put.key, wanted.revision)], [put])
        return wanted.stored(revision) if revision else None

    async def _write_cluster(self, held: Versioned[ClusterRecord], **changes: object) -> Versioned[ClusterRecord]:
        written = await self._commit_cluster(held.replace(**changes))
        if written is None:
            raise _another()
        return written

    async def _keep_out(self, held: Versioned[ClusterRecord]) -> None:
        """Ends the leases of the brokers that are there, and waits for as long as they may not notice it. None joins
        any more: each compares the cluster's key."""
        waited = True
        while True:
            found, _ = await read_all(self._coordination, keys.BROKERS.prefix())
            if not found and waited:
                return
            for entry in found:
                logger.warning("revoking the lease of broker %s, because coordination is being rebuilt", entry.key)
                await self._coordination.leases.revoke(entry.lease)
            await asyncio.sleep(self._lease_s)
            waited = not found

    async def _made(self, record: ClusterRecord | None, wish: Wish, generation: int, fence: bool) -> Report:
        """Makes the plan of a rebuild that has begun a generation, 0 for none."""
        basis = await self._take(record, wish, generation, fence)
        taken, view, stored = basis.state, basis.view, basis.stored
        found = Found({}, journals=basis.search.journals, round=await newest_round(self._store))
        now_us = self._clock.now_us()
        found = await self._reader.read(view, found, now_us)
        left_out = "the rebuild was told to drop them" if wish.without_tokens else self._no_rights(basis)
        left_out = left_out or await self._left_out(taken, generation)
        made = plan(view, found, now_us, left_out)
        damaged, unverified = (stored.damaged, stored.unverified) if stored else ((), ())
        return Report(0, basis.source, taken, made, damaged, unverified, basis.search.hindered)

    async def _take(self, record: ClusterRecord | None, wish: Wish, generation: int, fence: bool) -> _Basis:
        """Takes the state to go by, and searches the journals. Raises RebuildConflict if one that is to be left out is
        unknown: its name may be misspelled. Behind a rebuild that was broken off its key may be gone already."""
        stored = await self._stored(generation)
        own = await self._own(record)
        source, taken = choose(own, stored.state if stored else None)
        kept = await self._kept() if source == "snapshot" else {}
        view = StateView({**kept, **taken.keys})
        known = {broker: held.record for (broker,), held in view.of(keys.JOURNALS).items()}
        known |= await self._present_journals() if source == "snapshot" else {}
        search = await self._journals.search(known, wish.without_journals, fence)
        unknown = sorted(wish.without_journals - search.names)
        if unknown and (record is None or record.state != "replacing"):
            raise _unknown(unknown, search.names)
        return _Basis(source, taken, view, stored, search)

    def _no_rights(self, basis: _Basis) -> str:
        """Returns why the state has no principals and tokens; empty if it has those that there were."""
        if basis.source == "nothing":
            return "no backup of them exists"
        if basis.source == "snapshot" and not self._backups.keeps(keys.PRINCIPALS.prefix()):
            return "without a cluster_secret, backups contain none"
        return "" if basis.state.verified else "no backup of them was made with a cluster_secret that this broker has"

    async def _left_out(self, taken: State, below: int) -> str:
        """Returns why principals and tokens are left out though nobody asks for that now; empty if they are not. One of
        the rebuilds that were broken off behind the state that is taken may have begun so: whoever had asked for it
        must not find them back. A rebuild that ends puts snapshot 1 of its generation."""
        later = [n for n in await list_numbers(self._store) if n >= taken.generation + (taken.number > 0)]
        for number in [n for n in later if not below or n < below]:
            if (await read_generation(self._store, number)).without_tokens:
                return f"the interrupted rebuild of generation {number} began without them"
        return ""

    async def _stored(self, below: int) -> FoundState | None:
        """Returns the newest state in the store, of the newest generation that has one; below that of this rebuild."""
        generations = await self._backups.generations()
        for generation in reversed([one for one in generations if not below or one < below]):
            found = await self._backups.newest(generation)
            if found is not None:
                return found
        return None

    async def _own(self, record: ClusterRecord | None) -> OwnState | None:
        """Returns coordination's own state, as of the revision in which something of it was written last: leases and
        the waiting for a rebuild raise that of the whole. None if it has none."""
        if record is None or record.generation == 0:
            return None
        page = await self._coordination.dump()
        entries = [entry for entry in page.entries if not entry.lease]
        content = {entry.key: entry.value for entry in entries}
        revision = max((entry.revision for entry in entries if entry.key != keys.CLUSTER.key()), default=0)
        counter = next((entry for entry in page.entries if entry.key == keys.SNAPSHOTS.key()), None)
        number = keys.SNAPSHOTS.require(counter).record.next if counter else 0
        state = State(record.generation, number, revision, content)
        return OwnState(state, is_whole=record.state != "replacing")

    async def _kept(self) -> dict[str, bytes]:
        """Returns the keys that no backup has, and that stay as they are."""
        found = [await self._coordination.get(kind.key()) for kind in UNTOUCHED]
        return {entry.key: entry.value for entry in found if entry}

    async def _present_journals(self) -> dict[str, JournalRecord]:
        """Returns the journals that coordination itself has keys of, though it is not gone by."""
        read, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        found = {keys.JOURNALS.parse(entry.key)[0]: keys.JOURNALS.read(entry) for entry in read}
        return {broker: held.record for broker, held in found.items() if isinstance(held, Versioned)}

    async def _save(self, generation: int, number: int, content: Mapping[str, bytes]) -> None:
        """Puts a state into the store: changes of this generation are behind it."""
        page = await self._coordination.range(keys.CLUSTER.key(), limit=1)
        kept = {key: value for key, value in content.items() if keys.is_in_snapshots(key)}
        await self._backups.put_snapshot(State(generation, number, page.revision, kept))

    async def _replace(self, held: Versioned[ClusterRecord], target: Mapping[str, bytes]) -> None:
        """Makes coordination's keys those of the plan; leased ones go with their leases."""
        compare = Compare(keys.CLUSTER.key(), held.revision)
        async for page in _pages(self._differing(target)):
            reach("rebuild.page")
            if await self._coordination.commit([compare], page) is None:
                raise _another()

    async def _differing(self, target: Mapping[str, bytes]) -> AsyncIterator[Put | Delete]:
        """Yields the writes that make coordination's keys those of the target."""
        there: dict[str, Entry] = {entry.key: entry async for entry in entries(self._coordination, "")}
        for key, entry in there.items():
            if key not in target and not entry.lease and key != keys.CLUSTER.key():
                yield Delete(key)
        for key, value in target.items():
            if key not in there or there[key].value != value:
                yield Put(key, value)


async def _pages(writes: AsyncIterator[Put | Delete]) -> AsyncIterator[Sequence[Put | Delete]]:
    page: list[Put | Delete] = []
    size = 0
    async for write in writes:
        weight = len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
        if page and (len(page) == WRITES or size + weight > WRITES_BYTES):
            yield page
            page, size = [], 0
        page.append(write)
        size += weight
    if page:
        yield page


def _another() -> RebuildConflict:
    return RebuildConflict("another rebuild has started: it continues, and this one has ended")


def _unknown(unknown: Sequence[str], names: Set[str]) -> RebuildConflict:
    near = dict.fromkeys(one for name in unknown for one in get_close_matches(name, sorted(names), NEAREST, 0))
    there = f"the nearest names of journals are {', '.join(near)}" if near else "no journal is known"
    return RebuildConflict(
        f"no journal of {', '.join(unknown)} is known, so none can be left out: {there}", unknown=unknown
    )


def _hindered(hindered: Mapping[str, str]) -> RebuildConflict:
    said = "; ".join(f"{broker}: {why}" for broker, why in sorted(hindered.items()))
    options = " ".join(f"--without-journal {broker}" for broker in sorted(hindered))
    return RebuildConflict(
        f"journals that may hold acknowledged messages cannot be read: {said}. Bring their machines back, or lose "
        f"those messages: {options}",
        journals=sorted(hindered),
    )
