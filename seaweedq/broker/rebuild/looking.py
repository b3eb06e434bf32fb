"""The look for signs that coordination went back: what is read, in which order.

All numbers are in coordination before they are in the store, so the store is read first: then nothing that others do
meanwhile looks like a sign. A journal has a key before it has a folder, and says that it is done before its key goes.
So one is without a key only if it is needed in a listing before the keys were read, and in one behind.

A life looks before it writes anything (broker/broker). A new leader looks again before it gives anything away, behind
fences of all journals of the dead that have keys: else a late slot would land behind the look. It writes what it has
found into the cluster's key, so that nobody serves.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from seaweedq.broker.backups import Backups
from seaweedq.broker.rebuild.signs import CoordinationFacts, SeenJournal, Sign, StoreFacts, find_signs
from seaweedq.broker.topics.forgotten import was_removed
from seaweedq.checks import reach
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.cluster_level import read_cluster
from seaweedq.coordination.interface import Compare, Coordination, Put, read_all
from seaweedq.coordination.keys import KeyKind
from seaweedq.coordination.records import ClusterRecord, Counter, JournalRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.coordination.watermark import watermark
from seaweedq.errors import JournalDamaged, JournalUnavailable, NeedsNewerBroker
from seaweedq.journal.interface import Journals, JournalUnreachable
from seaweedq.segments.terms import Term
from seaweedq.storage.generations import newest_generation
from seaweedq.storage.identity import known_identity, newest_round
from seaweedq.storage.interface import ObjectStore

FENCES = 8
UNKNOWN = 2**63
logger = logging.getLogger(__name__)


class Look:
    """Looks at coordination, the store and the journals of one process. `seen` holds as long as the cluster's key is as
    the last look has read it."""

    def __init__(self, coordination: Coordination, store: ObjectStore, journals: Journals, backups: Backups) -> None:
        self._coordination = coordination
        self._store = store
        self._journals = journals
        self._backups = backups
        self.seen = Compare(keys.CLUSTER.key(), 0)

    async def signs(self) -> list[Sign]:
        """Returns the signs. There are none if the store is new, or of another cluster than coordination: joining
        judges that. Raises StoreUnavailable, CoordinationUnavailable, LevelMismatch, NeedsNewerBroker, Damaged."""
        identity = await known_identity(self._store)
        there = await self._coordination.get(keys.CLUSTER.key())
        self.seen = Compare(keys.CLUSTER.key(), there.revision if there else 0)
        cluster = read_cluster(there).record if there else None
        if identity is None or (cluster and (cluster.store, cluster.cluster) != (identity.store, identity.cluster)):
            return []
        if cluster is None or cluster.state != "serving":
            return list(find_signs(StoreFacts(), CoordinationFacts(cluster), {}))
        facts = await self._facts(cluster)
        journals = await self._needed()
        read, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        known = {keys.JOURNALS.parse(entry.key)[0] for entry in read}
        if journals.keys() - known:
            again = await self._needed()
            journals = {broker: seen for broker, seen in journals.items() if broker in known or broker in again}
        snapshot, rounds = await self._number(keys.SNAPSHOTS), await self._number(keys.RETENTION)
        mark = await watermark(self._coordination)
        page = await self._coordination.range(keys.CLUSTER.key(), limit=1)
        knows = CoordinationFacts(cluster, snapshot, rounds, page.revision, mark, known)
        return list(find_signs(facts, knows, journals))

    async def _facts(self, cluster: ClusterRecord) -> StoreFacts:
        newest = await newest_generation(self._store)
        snapshot = await self._backups.newest_number(cluster.generation) or 0
        change = await self._backups.newest_change(cluster.generation) or 0
        number, nonce = (newest.number, newest.nonce) if newest else (0, "")
        done = await self._journals.stated()
        stated = done.revision if done.generation == cluster.generation else 0
        return StoreFacts(number, nonce, snapshot, change, await newest_round(self._store), stated)

    async def _needed(self) -> dict[str, SeenJournal]:
        found = await self._journals.needed()
        return {one.broker: SeenJournal(*one.seen, bool(one.unread)) for one in found}

    async def _number(self, kind: KeyKind[Counter]) -> int:
        """Returns a number; one above all if it cannot be read by this broker, which is no sign."""
        there = await self._coordination.get(kind.key())
        found = kind.read(there) if there else None
        return found.record.next if isinstance(found, Versioned) else UNKNOWN if found else 0


class LeaderLook:
    """The look of each new leader. `leading` returns the comparison that holds while this broker leads."""

    def __init__(
        self,
        look: Look,
        coordination: Coordination,
        journals: Journals,
        roster: Roster,
        leading: Callable[[], Compare],
    ) -> None:
        self._look = look
        self._coordination = coordination
        self._journals = journals
        self._roster = roster
        self._leading = leading
        self._seen: Compare | None = None

    async def is_clear(self) -> bool:
        """Looks once in each term of leadership. Returns False if there is a sign, which ends all lives. Raises
        Fenced, Unavailable."""
        leading = self._leading()
        if leading == self._seen:
            return True
        stated: dict[str, Mapping[tuple[str, int], Term]] = {}

        async def fence(one: tuple[str, JournalRecord]) -> None:
            stated[one[0]] = await self._fence(*one)

        await gather_bounded(FENCES, fence, self._dead())
        reach("leader.look")
        signs = [*await self._look.signs(), *await self._forgotten(stated)]
        if signs:
            await record_signs(self._coordination, [leading], signs)
            return False
        self._seen = leading
        return True

    def _dead(self) -> list[tuple[str, JournalRecord]]:
        found = {broker: held.record for broker, held in self._roster.journals.items()}
        return [(b, r) for b, r in found.items() if not r.recovered and not self._roster.alive(b)]

    async def _fence(self, broker: str, record: JournalRecord) -> Mapping[tuple[str, int], Term]:
        """Fences a journal. Returns the highest term that it states of each segment."""
        if not await self._roster.gone(broker):
            return {}
        dead = self._journals.open_dead(broker, record)
        try:
            await dead.fence()
            return await dead.terms()
        except (JournalUnreachable, JournalUnavailable, JournalDamaged, NeedsNewerBroker) as error:
            logger.info(
                "the journal of broker %s cannot be read, so it was not checked for signs that "
                "coordination was lost: %s",
                broker,
                error,
            )
            return {}
        finally:
            await dead.close()

    async def _forgotten(self, stated: Mapping[str, Mapping[tuple[str, int], Term]]) -> list[Sign]:
        """Returns a sign for each term of a journal that coordination has not given to its broker. The revisions in
        journals do not show that for long: what happens behind a return raises coordination's own."""
        signs = []
        for broker, terms in stated.items():
            for (name, number), term in terms.items():
                if not await self._gave(broker, name, number, term):
                    text = f"a journal contains rows of segment {number} of {name} in the term {term[0]}-{term[1]}"
                    signs.append(Sign("term", f"{text}, but coordination has no record that {broker} owned it"))
        return signs

    async def _gave(self, broker: str, name: str, number: int, term: Term) -> bool:
        there = await self._coordination.get(keys.TOPICS.key(name))
        topic = keys.TOPICS.read(there) if there else None
        if isinstance(topic, Unreadable):
            return True  # a newer broker's, which knows
        incarnation = topic.record.incarnation if topic else None
        key = None if incarnation is None else keys.SEGMENTS.key(name, incarnation, number)
        found = await self._coordination.get(key) if key else None
        if found is None:
            return await was_removed(self._coordination, name, incarnation, number)
        held = keys.SEGMENTS.read(found)
        if not isinstance(held, Versioned):
            return True
        segment = held.record
        return term < segment.term or (term == segment.term and segment.owner in (broker, None))


async def record_signs(coordination: Coordination, holds: Sequence[Compare], signs: Sequence[Sign]) -> None:
    """Writes that coordination went back, which ends all lives, as long as `holds` do. Does nothing if something has
    been written meanwhile: who has found the signs finds them again. Raises Unavailable."""
    found = "; ".join(one.text for one in signs)
    there = await coordination.get(keys.CLUSTER.key())
    if there is None:
        return
    held = read_cluster(there)
    if held.record.state == "serving":
        put = Put(keys.CLUSTER.key(), keys.CLUSTER.encode(held.replace(state="restored", found=found)))
        if await coordination.commit([*holds, Compare(put.key, held.revision)], [put]):
            logger.error(
                "coordination was lost or restored to an earlier state, so no broker serves requests: %s", found
            )
