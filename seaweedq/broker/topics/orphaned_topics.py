"""The journals that brokers which are gone have left, and the segments that wait for an owner; and why. Pure reading
of views, for observers: it decides nothing, and may be behind.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from seaweedq.broker.topics.catalog import Catalog
from seaweedq.coordination.records import JournalRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Unreadable

TOPICS = 20  # that are named


@dataclass(frozen=True, slots=True)
class OrphanedTopics:
    """The segments of a broker that is gone, or of none, and the state of its journal: `recovering`,
    `partly-recovered`, `needs-newer-broker`, or `unassigned` where nothing is left to recover. `topics` are some of
    those that wait."""

    broker: str | None
    state: str
    why: str
    segments: int
    topics: tuple[str, ...]


def find_orphaned_topics(catalog: Catalog, roster: Roster) -> list[OrphanedTopics]:
    """Returns what each broker that is gone has left, the ones with most segments first."""
    gone = [one for one in (*roster.journals, *roster.unreadable_journals) if not roster.alive(one)]
    owners: Iterable[str | None] = dict.fromkeys([*catalog.owners(), *gone])
    found = []
    for owner in owners:
        if owner is not None and roster.alive(owner):
            continue
        segments = catalog.owned_by(owner)
        state, why = _state(owner, roster)
        if segments or state != "unassigned":
            topics = tuple(sorted({topic for topic, _, _ in segments})[:TOPICS])
            found.append(OrphanedTopics(owner, state, why, len(segments), topics))
    return sorted(found, key=lambda one: (-one.segments, one.broker or ""))


def _state(owner: str | None, roster: Roster) -> tuple[str, str]:
    journal = None if owner is None else roster.journal(owner)
    if isinstance(journal, Unreadable):
        return "needs-newer-broker", f"the record of its journal cannot be read: {journal.why}"
    if journal is None or journal.record.recovered:
        takers = any(known.record.takes_more for known in roster.brokers.values())
        return "unassigned", "the leader is about to give them an owner" if takers else "no broker takes segments now"
    return _recovery(journal.record)


def _recovery(record: JournalRecord) -> tuple[str, str]:
    if record.needs_newer:
        levels = f"levels {record.lowest} to {record.highest}"
        return "needs-newer-broker", f"no living broker reads its journal, of {levels} and kind {record.kind}"
    if record.left:
        return "partly-recovered", f"records of these topics cannot be read: {', '.join(record.left[:TOPICS])}"
    place = f", in the folder {record.path}, which that broker must reach" if record.path else ""
    return "recovering", f"a broker replays its journal, of kind {record.kind}{place}"
