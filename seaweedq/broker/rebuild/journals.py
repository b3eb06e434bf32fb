"""The journals of which a rebuild may need something: it finds, fences and reads them, so that nothing is acknowledged
that it does not know.

They are those of the store's folders, those of this process's home folder, those of the home folders of other waiting
brokers, which hold the locks of these and report what is there, and those that keys name: a broker that has joined and
not journaled yet has a key and no folder. A journal that cannot be read hinders the rebuild, until the operator says
that it may be lost.

Coordination has lost the set of a mirrored journal, so nobody knows whether a holding that is left is of that set: a
broker that was no mirror any more may lack acknowledged commits. Such a journal is `unknown`, and hinders nothing: its
slots are fenced and read, its segments stay with its broker, which is dead, and wait. Once the brokers that have
holdings have joined, somebody accepts the loss (broker/cluster/accepted_loss): then the slots and the longest holding
are replayed, and the segments end.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from seaweedq.broker.rebuild.plan import FoundJournal, Journals, Place
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, read_all
from seaweedq.coordination.records import JournalRecord, ReportedJournal
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import JournalDamaged, JournalUnavailable, NeedsNewerBroker
from seaweedq.journal.interface import Journals as Backend
from seaweedq.journal.interface import JournalUnreachable
from seaweedq.segments.terms import Term

AT_ONCE = 8
MIRRORED = "mirrored"


@dataclass(frozen=True)
class FoundJournals:
    """The journals that may be needed, those that hinder a rebuild, with the reason, and the names of all that are
    known."""

    journals: Journals
    hindered: Mapping[str, str] = field(default_factory=dict)
    names: Set[str] = frozenset()


async def read_own(backend: Backend, place: str) -> tuple[ReportedJournal, ...]:
    """Returns the needed journals of this process's home folder, whose id is `place`: its lock is held, so they are
    fenced. Raises JournalUnavailable, JournalDamaged."""
    found = []
    for one in await backend.needed():
        if one.record.place == place and backend.is_exclusive(one.record):
            terms, _ = await _terms(backend, one.broker, one.record, fence=True)
            found.append(ReportedJournal(one.broker, one.record, tuple((*at, *term) for at, term in terms.items())))
    return tuple(found)


async def _terms(backend: Backend, broker: str, record: JournalRecord, fence: bool) -> tuple[dict[Place, Term], bool]:
    """Returns the terms of a journal, and whether all of it was reached. Of a mirrored one, slots can be reached.
    Unless `fence`, nothing is written, and only files are read."""
    dead = backend.open_dead(broker, record)
    is_whole = True
    try:
        try:
            await (dead.fence() if fence else dead.look())
        except JournalUnreachable:
            if record.kind != MIRRORED:
                raise
            is_whole = False
        return await dead.terms() if fence or record.path else {}, is_whole
    finally:
        await dead.close()


class JournalSearch:
    """Searches for one rebuild."""

    def __init__(self, backend: Backend, coordination: Coordination) -> None:
        self._backend = backend
        self._coordination = coordination

    async def newest_generation(self) -> int:
        """Returns the highest generation that a journal of the store or of this home folder states; 0 if none does.
        Raises Unavailable."""
        states = [one.seen.generation for one in await self._backend.needed()]
        return max([(await self._backend.stated()).generation, *states])

    async def search(self, known: Mapping[str, JournalRecord], without: Set[str], fence: bool) -> FoundJournals:
        """Finds the journals, given those that keys name. They are fenced and read; unless `fence`, those alone of
        which that is but a lock, since nothing may be written.
        Raises StoreUnavailable, CoordinationUnavailable."""
        listed = {one.broker: one.record for one in await self._backend.needed()}
        reported, places = await self._reported()
        records = {
            broker: record
            for broker, record in known.items()
            if not record.recovered and (broker in reported or _may_be_elsewhere(record, places))
        }
        records = {**listed, **records, **{broker: one.record for broker, one in reported.items()}}
        records |= {broker: known[broker] for broker in listed if broker in known}
        needed: dict[str, FoundJournal] = {}
        hindered: dict[str, str] = {}
        unknown: set[str] = set()

        async def read(broker: str) -> None:
            if broker in reported:
                terms = {(topic, segment): (g, n) for topic, segment, g, n in reported[broker].terms}
                needed[broker] = FoundJournal(records[broker], terms)
                return
            record = records[broker]
            try:
                found, is_whole = await _terms(self._backend, broker, record, fence)
                needed[broker] = FoundJournal(record, found, fence or bool(record.path))
            except (JournalUnreachable, JournalDamaged, JournalUnavailable, NeedsNewerBroker) as error:
                hindered[broker] = str(error)
            else:
                # Behind an accepted loss the rows are never whole: the leader ends the segments, which stay with it.
                unknown.update(() if is_whole and not record.loss_accepted_us else (broker,))

        given_up = {broker for broker, record in known.items() if record.recovered and record.loss_accepted_us}
        await gather_bounded(AT_ONCE, read, sorted(records.keys() - without - given_up))
        journals = Journals(needed, left_out=without, unknown=unknown)
        return FoundJournals(journals, hindered, records.keys() | known.keys())

    async def _reported(self) -> tuple[dict[str, ReportedJournal], Set[str]]:
        """Returns the journals that waiting brokers report, and the ids of the folders of which they report all."""
        entries, _ = await read_all(self._coordination, keys.WAITING.prefix())
        held = [keys.WAITING.read(entry) for entry in entries]
        places = {
            keys.WAITING.parse(e.key)[0] for e, one in zip(entries, held, strict=True) if isinstance(one, Versioned)
        }
        return {one.broker: one for of in held if isinstance(of, Versioned) for one in of.record.journals}, places


def _may_be_elsewhere(record: JournalRecord, places: Set[str]) -> bool:
    """Tells whether a journal of which nothing was listed may be needed: a mirrored one may be in memory alone. Another
    one of a folder that was looked at is done and gone."""
    return record.kind == MIRRORED or record.place not in places
