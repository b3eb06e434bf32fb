"""The journals of which a rebuild may need something: it finds, fences and reads them, so that nothing is acknowledged
that it does not know.

They are those of the store's folders, those of this process's home folder, those of the home folders of other waiting
brokers, which hold the locks of these and report what is there, and those that keys name: a broker that has joined and
not journaled yet has a key and no folder. A journal that cannot be read hinders the rebuild, until the operator says
that it may be lost.
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
            terms = await _terms(backend, one.broker, one.record)
            found.append(ReportedJournal(one.broker, one.record, tuple((*at, *term) for at, term in terms.items())))
    return tuple(found)


async def _terms(backend: Backend, broker: str, record: JournalRecord) -> dict[Place, Term]:
    dead = backend.open_dead(broker, record)
    try:
        await dead.fence()
        return await dead.terms()
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
            if not record.recovered and (broker in reported or record.place not in places)  # else it is done and gone
        }
        records = {**listed, **records, **{broker: one.record for broker, one in reported.items()}}
        records |= {broker: known[broker] for broker in listed.keys() & known.keys()}
        needed: dict[str, FoundJournal] = {}
        hindered: dict[str, str] = {}

        async def read(broker: str) -> None:
            if broker in reported:
                terms = {(topic, segment): (g, n) for topic, segment, g, n in reported[broker].terms}
                needed[broker] = FoundJournal(records[broker], terms)
                return
            record = records[broker]
            try:
                is_read = fence or bool(record.path)
                found = await _terms(self._backend, broker, record) if is_read else {}
                needed[broker] = FoundJournal(record, found, is_read)
            except (JournalUnreachable, JournalDamaged, JournalUnavailable, NeedsNewerBroker) as error:
                hindered[broker] = str(error)

        await gather_bounded(AT_ONCE, read, sorted(records.keys() - without))
        return FoundJournals(Journals(needed, left_out=without), hindered, records.keys() | known.keys())

    async def _reported(self) -> tuple[dict[str, ReportedJournal], Set[str]]:
        """Returns the journals that waiting brokers report, and the ids of the folders of which they report all."""
        entries, _ = await read_all(self._coordination, keys.WAITING.prefix())
        held = [keys.WAITING.read(entry) for entry in entries]
        places = {
            keys.WAITING.parse(e.key)[0] for e, one in zip(entries, held, strict=True) if isinstance(one, Versioned)
        }
        return {one.broker: one for of in held if isinstance(of, Versioned) for one in of.record.journals}, places
