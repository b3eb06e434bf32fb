"""The loss of journals in a simulated world: an owner and all its mirrors die at once, and an operator accepts that.

Only what was acknowledged within `journal_exposure_s` of the death, and while the store took slots, may be gone,
and only from the ends of segments that were the owner's. No id comes back with another message, and no cursor stands
above the end of its segment.

An ack may be forgotten where its subscription is taken over, and no cursor has it: behind a dispatcher whose journal is
lost, if it was acknowledged as late as that; and behind any dispatcher whose epoch an accepted loss has ended
(broker/cluster/accepted_loss).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from seaweedq.broker.log.intervals import Runs
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Entry, Put
from seaweedq.coordination.records import SubscriptionRecord
from tests.simulation.clients import TOPIC
from tests.simulation.cluster import Cluster, Process
from tests.support.history.checker import agreement
from tests.support.history.history import Event
from tests.support.history.judged import Id, Lapse, Run

SLACK_S = 2.0  # for a slot to reach the store
HINDERS = ("slow store", "late puts", "lost puts", "store away", "double puts", "pause", "stall")
"""The faults in which slots reach the store late."""


class Losses:
    """What is lost of a cluster, and may be."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.accepted: dict[str, float] = {}  # since when the loss of a broker's journal is accepted
        self._owners: list[Mapping[int, str]] = []  # of segments, when a journal was lost
        self._known: dict[str, SubscriptionRecord] = {}
        self._ended: set[str] = set()  # subscriptions whose epoch an accepted loss has ended: nobody has one yet
        self._lapses: list[tuple[Lapse, str]] = []  # each with the broker whose journal is lost, if that is the cause
        cluster.coordination.engine.committed = self._note

    def begin(self, owner: Process) -> list[Process]:
        """Kills a broker and all its mirrors. Returns them."""
        entries = self._cluster.coordination.entries
        self._owners.append(self._owned())
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

    def may_be_gone(self, run: Run, exposure_s: float) -> set[Id]:
        """The ids that were acknowledged or read, are not there at last, and may be lost."""
        since_s = {broker: self._exposed_from(run, broker, exposure_s) for broker in self.accepted}
        found = set()
        for event in (each for op in ("publish", "read", "deliver") for each in run.lines(op, "ok")):
            id = event.segment or 0, event.offset or 0
            end = run.segments[id[0]].end if id[0] in run.segments else None
            owners = {each[id[0]] for each in self._owners if id[0] in each} & self.accepted.keys()
            if id not in run.content and end is not None and id[1] >= end:
                found |= {id} if any(since_s[one] <= event.t <= self.accepted[one] for one in owners) else set()
        return found

    def lapses(self, run: Run, exposure_s: float) -> list[Lapse]:
        """The take-overs at which acks may be forgotten."""
        return [
            replace(one, since_s=self._exposed_from(run, broker, exposure_s)) if broker else one
            for one, broker in self._lapses
        ]

    def wrong(self, run: Run) -> Iterator[str]:
        """Ids that had two messages, and cursors above the ends of sealed segments, if any loss was accepted."""
        if not self.accepted:
            return
        yield from (f"behind a loss: {text}" for text in agreement(run))
        for entry in self._cluster.coordination.entries:
            if keys.CURSORS.matches(entry.key):
                parts, record = keys.CURSORS.parse(entry.key), keys.CURSORS.require(entry).record
                segment = run.segments.get(parts[3])
                if parts[0] == TOPIC and segment and segment.end is not None and record.acked_to > segment.end:
                    yield f"the cursor {entry.key} is {record.acked_to}, above the end {segment.end}"

    def _exposed_from(self, run: Run, broker: str, exposure_s: float) -> float:
        """From when on what a broker acknowledged may not be in the store."""
        died_s = self._cluster.died_s[broker]
        since_s = died_s - exposure_s - SLACK_S
        ends = {e.call: e.t for e in run.lines("fault", "ok")}
        hindered = [(e.t, ends.get(e.call, died_s)) for e in run.lines("fault", "invoke") if e.note in HINDERS]
        for begun_s, ended_s in sorted(hindered, key=lambda span: -span[1]):
            if begun_s < died_s and ended_s + SLACK_S > since_s:
                since_s = min(since_s, begun_s - exposure_s - SLACK_S)
        return since_s

    def _owned(self) -> dict[int, str]:
        """The owners of the topic's segments."""
        entries = self._cluster.coordination.entries
        places = [(keys.SEGMENTS.parse(one.key), one) for one in entries if keys.SEGMENTS.matches(one.key)]
        mine = [(parts[2], keys.SEGMENTS.require(one).record.owner) for parts, one in places if parts[0] == TOPIC]
        return {number: whose for number, whose in mine if whose}

    def _note(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
        """Notes what a transaction says of losses, and of epochs."""
        for put in [one for one in writes if isinstance(one, Put)]:
            entry = Entry(put.key, put.value, 0, 0)
            if keys.JOURNALS.matches(put.key) and keys.JOURNALS.require(entry).record.loss_accepted_us:
                self.accepted.setdefault(keys.JOURNALS.parse(put.key)[0], self._cluster.loop.time())
            elif keys.SUBSCRIPTIONS.matches(put.key) and keys.SUBSCRIPTIONS.parse(put.key)[0] == TOPIC:
                is_dispatcher = any(one.key.startswith(keys.BROKERS.prefix()) for one in compares)  # compares its own
                name = keys.SUBSCRIPTIONS.parse(put.key)[2]
                self._note_epoch(name, keys.SUBSCRIPTIONS.require(entry).record, is_dispatcher)

    def _note_epoch(self, name: str, record: SubscriptionRecord, is_dispatcher: bool) -> None:
        """Notes whose epoch has ended: a dispatcher has begun the next one, or an accepted loss has."""
        before, self._known[name] = self._known.get(name, record), record
        if record.epoch == before.epoch:
            return
        if not is_dispatcher:
            self._ended |= {name} if self.accepted.keys() & set(self._owned().values()) else set()
        elif name in self._ended or before.dispatcher in self.accepted:
            lost = "" if name in self._ended else before.dispatcher or ""
            self._ended.discard(name)
            self._lapses.append((Lapse(name, self._cluster.loop.time(), self._acked(name)), lost))

    def _acked(self, name: str) -> dict[int, Runs]:
        """What the cursors of a subscription have, by segment."""
        found = {}
        for entry in self._cluster.coordination.entries:
            if keys.CURSORS.matches(entry.key) and keys.CURSORS.parse(entry.key)[::2] == (TOPIC, name):
                record = keys.CURSORS.require(entry).record
                found[keys.CURSORS.parse(entry.key)[3]] = Runs([(0, record.acked_to), *record.acked])
        return found


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
