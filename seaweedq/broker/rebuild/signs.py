"""Signs that coordination went back: it was restored from a backup, or is empty beside a store that has a cluster.

The store and the journals are never older than coordination, since each number is in coordination first. So whatever
they know and coordination does not was forgotten by it: another generation, a later snapshot, change or round of
retention, a journal that is needed and has no key, a slot whose broker has seen a later revision, one that is done and
states a later watermark.

An empty coordination beside a store is a sign as well. It looks the same if the setting names a wrong prefix, or the
etcd of another cluster. Nobody here can tell which it is, so the broker waits, and says both. It writes nothing
meanwhile. A record of another cluster, or of another store, is no sign but a wrong setting: the start is refused
(broker/cluster/joining).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from seaweedq.coordination.records import ClusterRecord

COMMAND = "seaweedq cluster rebuild"
NAMED = 5  # journals in a text
Reason = Literal[
    "empty",
    "rebuilding",
    "generation",
    "snapshot",
    "change",
    "round",
    "journal",
    "revision",
    "done",
    "segment",
    "term",
    "file",
    "cursor",
    "restored",
]


@dataclass(frozen=True)
class Sign:
    """One sign: its `reason`, which metrics have, and the `text` for people."""

    reason: Reason
    text: str


@dataclass(frozen=True)
class SeenJournal:
    """A journal that is needed, as its newest header has it: the generation of its broker, and the highest revision of
    coordination that this one had seen. Nothing is known of one that `is_unread`."""

    generation: int
    revision: int
    is_unread: bool = False


@dataclass(frozen=True)
class StoreFacts:
    """The facts of the store: its newest generation with the nonce, the number of its newest snapshot and the revision
    of its newest change in it, the number of the newest round of retention. `done` is the highest watermark that a
    journal of this generation states which is done, also one of the home folder."""

    generation: int = 0
    nonce: str = ""
    snapshot: int = 0
    change: int = 0
    round: int = 0
    done: int = 0


@dataclass(frozen=True)
class CoordinationFacts:
    """The facts of coordination: the cluster's record, None if there is none; the numbers of the newest snapshot and of
    the newest round; its revision and its watermark; the brokers whose journals have keys."""

    cluster: ClusterRecord | None
    snapshot: int = 0
    round: int = 0
    revision: int = 0
    watermark: int = 0
    journals: Iterable[str] = field(default_factory=frozenset)


def find_signs(
    store: StoreFacts, coordination: CoordinationFacts, journals: Mapping[str, SeenJournal]
) -> Iterator[Sign]:
    """Yields all signs, given what was read in the order that `looking` says."""
    cluster = coordination.cluster
    if cluster is None:
        yield Sign("empty", "coordination is empty, but the store belongs to a cluster")
        return
    if cluster.state in ("rebuilding", "replacing"):
        yield Sign("rebuilding", "a rebuild has started and is not complete")
        return
    if cluster.state == "restored":
        yield Sign("restored", cluster.found or "a leader has found that coordination was restored to an earlier state")
        return
    if (store.generation, store.nonce) != (cluster.generation, cluster.nonce):
        known = f"coordination has generation {cluster.generation}"
        yield Sign("generation", f"the store has generation {store.generation}, {known}")
        return
    if store.snapshot > coordination.snapshot:
        yield Sign(
            "snapshot", f"the store has snapshot {store.snapshot}, but coordination's newest is {coordination.snapshot}"
        )
    if store.change > coordination.watermark:
        yield Sign(
            "change",
            f"the store has a change with revision {store.change}, but coordination is at {coordination.watermark}",
        )
    if store.round > coordination.round:
        yield Sign(
            "round", f"the store has retention round {store.round}, but coordination's newest is {coordination.round}"
        )
    if store.done > coordination.watermark:
        yield Sign(
            "done", f"a journal was removed at revision {store.done}, but coordination is at {coordination.watermark}"
        )
    yield from _of_journals(cluster.generation, coordination, journals)


def _of_journals(
    generation: int, coordination: CoordinationFacts, journals: Mapping[str, SeenJournal]
) -> Iterator[Sign]:
    """A journal of an older generation that has no key was unknown to the rebuild, so nothing in it was acknowledged:
    its first slot came behind the rebuild's listing, and its broker looked for the generation before its answer."""
    known = frozenset(coordination.journals)
    later = [broker for broker, seen in journals.items() if seen.generation > generation]
    mine = {broker for broker, seen in journals.items() if seen.generation == generation or seen.is_unread}
    strange = sorted(mine - known)
    ahead = [
        broker
        for broker, seen in journals.items()
        if broker in known and seen.generation == generation and seen.revision > coordination.revision
    ]
    if later:
        yield Sign("generation", f"these journals have a later generation: {_named(later)}")
    if strange:
        yield Sign(
            "journal", f"these journals are still needed, but coordination has no record of them: {_named(strange)}"
        )
    if ahead:
        yield Sign(
            "revision", f"these journals have seen a later revision than {coordination.revision}: {_named(ahead)}"
        )


def _named(brokers: list[str]) -> str:
    names = sorted(brokers)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def told(signs: Iterable[Sign], named: str) -> str:
    """Returns what a waiting broker logs and answers, in one line. `named`: its store and its coordination."""
    found = list(signs)
    why = "; ".join(one.text for one in found)
    if any(one.reason == "empty" for one in found):
        return (
            f"{named}: {why}. If this is the wrong coordination, correct the setting and restart. If coordination "
            f"was lost, run `{COMMAND}` to rebuild it from the store (`--dry-run` shows the plan). Until then this "
            "broker serves no requests, and changes nothing"
        )
    return (
        f"{named}: coordination was restored to an earlier state: {why}. Run `{COMMAND}` to rebuild coordination "
        "from the store (`--dry-run` shows the plan). Until then this broker serves no requests, and deletes nothing"
    )
