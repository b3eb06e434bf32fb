"""What a history and the last reads say together: what the rules of `checker` look at. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from seaweedq.broker.log.intervals import Runs
from tests.support.history.history import Event, Letter, Op, Row, Type
from tests.support.history.terms import USUAL, Terms

Id = tuple[int, int]  # segment, offset
RETURNS = ("restore etcd", "empty etcd", "kill amid a rebuild", "stop amid a rebuild")
"""The faults behind which coordination is of an earlier time."""
LOST_JOURNAL = "lost journal"
"""The fault in which an owner and all its mirrors die, so that messages and acks may be lost."""
RETURNED_S = 30.0  # how long before and behind one an ack may be forgotten: snapshots come late under faults, too


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as the map of segments showed it at last; `end` only of a sealed one."""

    low: int
    high: int
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Lapse:
    """A take-over of a subscription behind which acks of before may be forgotten that no cursor had then, of those that
    were answered since `since_s`. `acked` is what cursors had, by segment."""

    subscription: str
    t: float
    acked: Mapping[int, Runs]
    since_s: float = float("-inf")


@dataclass
class Run:
    """All that is known of a topic: the history, the last read over HTTP, `files` at last, `listings` before."""

    events: Sequence[Event]
    http: Sequence[Row]
    files: Sequence[Row]
    listings: Sequence[Sequence[Row]] = field(default_factory=list)
    others: Mapping[str, Sequence[Row]] = field(default_factory=dict)  # the last read over HTTP at other brokers
    segments: Mapping[int, Segment] = field(default_factory=dict)  # none where nobody asked
    harmless: Collection[str] = ()  # the faults that must cost other clients nothing
    terms: Mapping[str, Terms] = field(default_factory=dict)  # by subscription; the others have the usual ones
    letters: Sequence[Letter] = ()
    lease_s: float = 0.0  # for which a broker reads on whose lease others end, and that does not learn of it
    lapses: Sequence[Lapse] = ()

    def terms_of(self, subscription: str) -> Terms:
        """The terms of a subscription."""
        return self.terms.get(subscription, USUAL)

    def lines(self, op: Op, *types: Type) -> Iterator[Event]:
        """The lines of an operation, of some types."""
        return (e for e in self.events if e.op == op and e.type in types)

    @cached_property
    def begun(self) -> dict[int, float]:
        """When a call was begun."""
        return {e.call: e.t for e in self.events if e.type == "invoke"}

    @cached_property
    def answered(self) -> dict[int, float]:
        """When a call was answered; none that got an error, or no answer at all."""
        return {e.call: e.t for e in self.events if e.type == "ok"}

    @cached_property
    def content(self) -> dict[Id, Row]:
        """The last read by id."""
        return {(r.segment, r.offset): r for r in self.http}

    @cached_property
    def pages(self) -> dict[int, list[Event]]:
        """What each read brought, by call; one line without a hash for an empty page."""
        found: dict[int, list[Event]] = defaultdict(list)
        for event in self.lines("read", "ok"):
            found[event.call].append(event)
        return found

    @cached_property
    def dead(self) -> dict[str, set[Id]]:
        """What became a dead letter, by subscription."""
        found: dict[str, set[Id]] = defaultdict(set)
        for letter in self.letters:
            found[letter.subscription].add((letter.segment, letter.offset))
        return found

    @cached_property
    def seeks(self) -> dict[tuple[str, int], list[tuple[float, float]]]:
        """From when to when a segment of a subscription may have been moved, by subscription and segment."""
        found: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for event in self.lines("seek", "invoke"):
            ended = self.answered.get(event.call, float("inf"))
            found[event.subscription, event.segment or 0].append((event.t, ended))
        return found

    @cached_property
    def returns(self) -> list[tuple[float, float]]:
        """From when to when coordination may have gone back."""
        ended = {e.call: e.t for e in self.lines("fault", "ok", "fail")}
        begun = [e for e in self.lines("fault", "invoke") if e.note in RETURNS]
        return [(e.t, ended.get(e.call, float("inf"))) for e in begun]

    def forgotten(self, answered: float, until: float) -> bool:
        """Whether an ack, or a cursor, that was answered then may be forgotten at `until`."""
        return any(t - RETURNED_S < answered < ended + RETURNED_S and t < until for t, ended in self.returns)

    def lapsed(self, subscription: str, segment: int, begun: float, answered: float, until: float) -> list[Runs]:
        """What cursors had of a segment at each lapse behind which an ack, or a cursor, that was asked and answered
        then may be forgotten at `until`."""
        return [
            one.acked.get(segment, Runs())
            for one in self.lapses
            if one.subscription == subscription and one.since_s <= answered and begun < one.t < until
        ]

    def moved(self, subscription: str, segment: int, since: float, until: float) -> bool:
        """Whether a segment may have been moved in that time."""
        return any(begun < until and ended > since for begun, ended in self.seeks.get((subscription, segment), ()))

    @cached_property
    def outcomes(self) -> dict[str, set[str]]:
        """What the calls of each value came to; one without an answer is info."""
        told = {(e.call, e.hash): e.type for e in self.lines("publish", "ok", "fail", "info")}
        found: dict[str, set[str]] = defaultdict(set)
        for event in self.lines("publish", "invoke"):
            assert event.hash
            found[event.hash].add(told.get((event.call, event.hash), "info"))
        return found
