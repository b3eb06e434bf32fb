"""The loss of journals in a simulated world: an owner and all its mirrors die at once, and an operator accepts that.

Only what was acknowledged within `journal_exposure_s` of the death, and while the store took slots, may be gone,
and only from the ends of segments that were the owner's. No id comes back with another message, and no cursor stands
above the end of its segment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from seaweedq.coordination import keys
from tests.simulation.clients import TOPIC
from tests.simulation.cluster import Cluster, Process
from tests.support.history.checker import agreement
from tests.support.history.history import Event
from tests.support.history.judged import Id, Run

SLACK_S = 2.0  # for a slot to reach the store
HINDERS = ("slow store", "late puts", "lost puts", "store away", "double puts", "pause", "stall")
"""The faults in which slots reach the store late."""


class Losses:
    """What is lost of a cluster, and may be."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners: list[Mapping[int, str]] = []  # of segments, when a journal was lost

    def begin(self, owner: Process) -> list[Process]:
        """Kills a broker and all its mirrors. Returns them."""
        entries = self._cluster.coordination.entries
        places = [(keys.SEGMENTS.parse(one.key), one) for one in entries if keys.SEGMENTS.matches(one.key)]
        mine = [(parts[2], keys.SEGMENTS.require(one).record.owner) for parts, one in places if parts[0] == TOPIC]
        self._owners.append({number: whose for number, whose in mine if whose})
        sets = [keys.MIRRORS.require(one).record for one in entries if one.key in map(keys.MIRRORS.key, owner.ids)]
        members = {member.broker for found in sets for member in found.members}
        lost = [one for one in self._cluster.processes.values() if one is owner or members.intersection(one.ids)]
        for process in lost:
            process.life.die()
        return lost

    def unknown(self) -> list[str]:
        """The brokers whose journals are unknown for good: no living process has a holding of the set."""
        found = []
        for entry in self._cluster.coordination.entries:
            if keys.JOURNALS.matches(entry.key):
                (broker,), record = keys.JOURNALS.parse(entry.key), keys.JOURNALS.require(entry).record
                if record.unknown and not record.loss_accepted_us and not self._is_held(broker):
                    found.append(broker)
        return found

    def _is_held(self, broker: str) -> bool:
        """Whether a living process has a holding of the set, or any holding if coordination has lost the set."""
        there = self._cluster.coordination.engine.get(keys.MIRRORS.key(broker))
        named = {one.holding for one in keys.MIRRORS.require(there).record.members} if there else set()
        living = [one.holdings for one in self._cluster.processes.values() if one.holdings and not one.life.is_dead]
        held = {holding for one in living for holding in one.of(broker)}
        return bool(held & named if there else held)

    def may_be_gone(self, run: Run, accepted: Mapping[str, float], exposure_s: float) -> set[Id]:
        """The ids that were acknowledged or read, are not there at last, and may be lost."""
        since_s = {broker: _exposed_from(run, self._cluster.died_s[broker], exposure_s) for broker in accepted}
        found = set()
        for event in (each for op in ("publish", "read", "deliver") for each in run.lines(op, "ok")):
            id = event.segment or 0, event.offset or 0
            end = run.segments[id[0]].end if id[0] in run.segments else None
            owners = {each[id[0]] for each in self._owners if id[0] in each} & accepted.keys()
            if id not in run.content and end is not None and id[1] >= end:
                found |= {id} if any(since_s[one] <= event.t <= accepted[one] for one in owners) else set()
        return found

    def wrong(self, run: Run, accepted: Mapping[str, float]) -> Iterator[str]:
        """Ids that had two messages, and cursors above the ends of sealed segments, if any loss was accepted."""
        if not accepted:
            return
        yield from (f"behind a loss: {text}" for text in agreement(run))
        for entry in self._cluster.coordination.entries:
            if keys.CURSORS.matches(entry.key):
                parts, record = keys.CURSORS.parse(entry.key), keys.CURSORS.require(entry).record
                segment = run.segments.get(parts[3])
                if parts[0] == TOPIC and segment and segment.end is not None and record.acked_to > segment.end:
                    yield f"the cursor {entry.key} is {record.acked_to}, above the end {segment.end}"


def _exposed_from(run: Run, died_s: float, exposure_s: float) -> float:
    """From when on what was acknowledged may not be in the store."""
    since_s = died_s - exposure_s - SLACK_S
    ends = {e.call: e.t for e in run.lines("fault", "ok")}
    hindered = [(e.t, ends.get(e.call, died_s)) for e in run.lines("fault", "invoke") if e.note in HINDERS]
    for begun_s, ended_s in sorted(hindered, key=lambda span: -span[1]):
        if begun_s < died_s and ended_s + SLACK_S > since_s:
            since_s = min(since_s, begun_s - exposure_s - SLACK_S)
    return since_s


def without(run: Run, gone: set[Id]) -> Run:
    """The run without lost messages: nobody knows whether they were published, and nobody got or
    acked them."""

    ends = {segment: run.segments[segment].end or 0 for segment, _ in gone}

    def told(events: Sequence[Event]) -> Iterator[Event]:
        for event in events:
            if event.op == "cursor" and event.segment in ends:
                yield replace(event, acked_to=min(event.acked_to or 0, ends[event.segment]))
            elif (event.segment, event.offset) not in gone:
                yield event
            elif event.op == "publish":
                yield replace(event, type="info", segment=None, offset=None)
            elif event.op not in ("deliver", "read", "ack", "nack", "reject"):
                yield event

    return replace(run, events=[*told(run.events)])
