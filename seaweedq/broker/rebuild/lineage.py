"""The segments of one topic as their chains tell them, given the records of a state that may be older. Pure.

A chain that has ended says so in its last entry, with the whole intent of its seal. So from the segments that are open
in the state all later ones are found: a seal whose segments have all ended is carried out, and its successors are
looked at in turn. A seal whose segments have not all ended leaves its intent, committed, in all of them: their next
owner seals the rest.

Retention may have taken the seal since: it takes all files of a sealed segment once each successor has one. Then a
later segment of the same range has files that no record and no seal names. An open segment without a seal below such
files is *closed*: it has ended at a place that nobody knows, its readers go on behind it, and nothing of it is left.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from seaweedq.broker.topics.invariants import broken_in_topic
from seaweedq.coordination.records import Intent, SegmentRecord, StartRecord, Successor, TopicRecord
from seaweedq.segments.entry import LAST_SEQUENCE, EntryName
from seaweedq.segments.keyrange import KeyRange, tile
from seaweedq.segments.producers import ProducerTables, inherited_cuts
from seaweedq.segments.terms import FIRST_TERM, Term

NO_START = StartRecord(0, 0)
LAST_ID = 10**10  # behind all ids


@dataclass(frozen=True)
class ChainEnd:
    """The first file of a chain that is there, and its last entry: the range of its segment, the offset behind its
    rows, its time in microseconds since 1970, its owner's term, the intent of its seal, and its producer tables.
    `imports` has the lowest sequence of the newest request of each import in these, by upload: all rows of its file
    below are durable. That of a `creation` is the entry by which the creation of a topic begins."""

    first: EntryName
    low: int
    high: int
    end: int
    appended_us: int
    seal: Intent | None = None
    tables: ProducerTables | None = None
    imports: Mapping[str, int] = field(default_factory=dict)
    term: Term = FIRST_TERM
    creation: bool = False


@dataclass(frozen=True)
class Chains:
    """A topic as the store has it: the segments that have a folder, of a topic of which retention takes files, and
    the ends of those that were read; None for a segment without a file."""

    folders: Set[int] = frozenset()
    ends: Mapping[int, ChainEnd | None] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownSegments:
    """The segments of a topic in a state. `delivered` is the highest offset of a segment to which some cursor was
    delivered, `removed` are the segments that retention has removed."""

    records: Mapping[int, SegmentRecord]
    starts: Mapping[int, StartRecord] = field(default_factory=dict)
    delivered: Mapping[int, int] = field(default_factory=dict)
    removed: Set[int] = frozenset()


@dataclass(frozen=True)
class Lineage:
    """The segments and starts of a topic as far as the chains that were read tell them; the chains that must be read
    before it is known. `ended` were sealed since the state, `begun` began since, `closed` have lost their seals.
    `damage` says why the topic cannot go on."""

    records: Mapping[int, SegmentRecord]
    starts: Mapping[int, StartRecord]
    wanted: frozenset[int] = frozenset()
    ended: tuple[int, ...] = ()
    begun: tuple[int, ...] = ()
    closed: tuple[int, ...] = ()
    damage: tuple[str, ...] = ()


def trace(topic: TopicRecord, known: KnownSegments, chains: Chains, now_us: int) -> Lineage:
    """Returns the segments of a topic that is active. A topic without any record begins with its first segments, as its
    creation makes them."""
    return _Tracer(topic, known, chains, now_us).traced()


class _Tracer:
    def __init__(self, topic: TopicRecord, known: KnownSegments, chains: Chains, now_us: int) -> None:
        self._topic, self._known, self._chains, self._now_us = topic, known, chains, now_us
        self.records = dict(known.records) or _first_segments(topic)
        self._before = frozenset(self.records)
        self._starts = dict(known.starts)
        self._closed: set[int] = set()

    def traced(self) -> Lineage:
        wanted = self._wanted()
        while not wanted and (self._carry_out() or self._close()):
            wanted = self._wanted()
        if wanted:
            return Lineage(self.records, self._starts, wanted)
        self._raise_starts()
        was = self._known.records
        return Lineage(
            self.records,
            self._starts,
            ended=tuple(n for n, r in self.records.items() if r.state == "sealed" and n in was and was[n] != r),
            begun=tuple(n for n in self.records if n not in self._before),
            closed=tuple(sorted(self._closed)),
            damage=tuple(self._damage()),
        )

    def _wanted(self) -> frozenset[int]:
        """The chains of open segments, and those that may be of later segments than an open one."""
        ends = self._chains.ends
        unread = frozenset(self._open()) - ends.keys()
        first = min(self._open(), default=LAST_ID)
        return unread or frozenset(number for number in self._strays() if number > first and number not in ends)

    def _open(self) -> list[int]:
        return [number for number, record in self.records.items() if record.state == "open"]

    def _strays(self) -> list[int]:
        """The segments with a folder that neither a record nor a seal names."""
        gone = self._known.removed | self.records.keys()
        return sorted(n for n in self._chains.folders if n >= self._topic.incarnation and n not in gone)

    def _carry_out(self) -> bool:
        """Carries out the seals of open segments that all of an intent's segments have. Returns whether there was
        one."""
        done = False
        for number in self._open():
            end = self._chains.ends[number]
            if self.records[number].state != "open" or end is None or end.seal is None:
                continue
            intent = replace(end.seal, state="committed")
            if self._have_ended(intent):
                self._finish(intent)
                done = True
            elif self.records[number].intent != intent:
                for member in self._present(intent):
                    self.records[member] = replace(self.records[member], intent=intent)
        return done

    def _have_ended(self, intent: Intent) -> bool:
        """Tells whether all segments of an intent have ended: by their seals, or since a successor has files, which
        none has before."""
        if any(one.id in self._chains.folders for one in intent.successors):
            return True
        return all(self._has_ended(number) for number in self._present(intent))

    def _has_ended(self, number: int) -> bool:
        end = self._chains.ends.get(number)
        return self.records[number].state == "sealed" or (end is not None and end.seal is not None)

    def _present(self, intent: Intent) -> list[int]:
        return [number for number in intent.segments if number in self.records]

    def _finish(self, intent: Intent) -> None:
        members = [number for number in self._present(intent) if self.records[number].state == "open"]
        ends = {number: self._chains.ends[number] for number in members}
        sealed_us = max((end.appended_us for end in ends.values() if end), default=self._now_us)
        for number in members:
            end, record = ends[number], self.records[number]
            within = [one.id for one in intent.successors if _overlap(record, one)]
            if end is not None and end.seal is not None:
                self._seal(number, within, end.end, sealed_us)
            else:
                self._empty(number, within, sealed_us)
        tables = [end.tables for end in ends.values() if end and end.tables]
        for one in intent.successors:
            before = tuple(n for n in self._present(intent) if _overlap(self.records[n], one))
            if one.id not in self.records:
                self._begin(one.id, one.low, one.high, before, sealed_us, tables)

    def _seal(self, number: int, successors: Iterable[int], end: int, sealed_us: int) -> None:
        self.records[number] = replace(
            self.records[number],
            state="sealed",
            owner=None,
            successors=tuple(successors),
            end_offset=end,
            sealed_us=sealed_us,
            intent=None,
        )

    def _empty(self, number: int, successors: Iterable[int], sealed_us: int) -> None:
        """Closes a segment whose seal is gone, behind all that anybody has seen of it."""
        start, end = self._starts.get(number, NO_START), self._chains.ends.get(number)
        offset = max(start.offset, self._known.delivered.get(number, 0), end.end if end else 0)
        self._seal(number, successors, offset, sealed_us)
        self._starts[number] = _emptied(start, offset, self._now_us)
        self._closed.add(number)

    def _begin(
        self, number: int, low: int, high: int, before: tuple[int, ...], at_us: int, tables: Iterable[ProducerTables]
    ) -> None:
        end = self._chains.ends.get(number)
        if end is not None and end.tables is not None:
            cuts = tuple(part.key_range.low for part in end.tables.parts[1:])
        else:
            cuts = inherited_cuts(KeyRange(low, high), tables)
        self.records[number] = SegmentRecord(low, high, "open", before, (), None, None, at_us, cuts=cuts)

    def _close(self) -> bool:
        """Closes the open segments without a seal that are below files of a later segment. Returns whether there was
        one."""
        heirs = self._heirs()
        closed = {n: [at for at, end in heirs.items() if _overlap(self.records[n], end)] for n in self._open()}
        closed = {number: found for number, found in closed.items() if found}
        for number, found in closed.items():
            self._empty(number, found, max(self.records[number].created_us, min(heirs[n].appended_us for n in found)))
        for at, end in heirs.items():
            before = tuple(sorted(number for number, found in closed.items() if at in found))
            self._begin(at, end.low, end.high, before, end.appended_us, ())
        return bool(heirs)

    def _heirs(self) -> dict[int, ChainEnd]:
        """The segments that no record and no seal names, and that follow open ones without a seal, with none between:
        of these one that has no seal and is below others has ended as well, and those behind a seal are found by it. A
        creation of the topic that was cut off, beside another one, has left its first entry: that follows none."""
        found = {number: end for number in self._strays() if (end := self._chains.ends.get(number))}
        ends = {number: end for number, end in found.items() if not end.creation}
        sealed = {number: end for number, end in ends.items() if end.seal}
        tails = {
            n: e for n, e in ends.items() if e.seal or not any(at > n and _overlap(e, o) for at, o in ends.items())
        }
        roots = {n: e for n, e in tails.items() if not any(at < n and _overlap(e, o) for at, o in sealed.items())}
        return {n: e for n, e in roots.items() if any(at < n and _overlap(self.records[at], e) for at in self._open())}

    def _raise_starts(self) -> None:
        """Raises starts to the first file; that of a sealed segment that was read and has no file, to its end."""
        for number, end in self._chains.ends.items():
            record, start = self.records.get(number), self._starts.get(number, NO_START)
            if record is None or start.emptied:
                continue
            if end is not None and end.first.sequence > start.sequence:
                self._starts[number] = _begun(start, end.first)
            elif end is None and record.state == "sealed" and record.end_offset is not None:
                self._starts[number] = _emptied(start, record.end_offset, self._now_us)

    def _damage(self) -> Iterable[str]:
        for number in self._open():
            start = self._starts.get(number, NO_START)
            if self._chains.ends.get(number) is None and (start.sequence or number == self._topic.incarnation):
                yield f"segment {number} has lost its files, and no later segment covers its range"
        yield from broken_in_topic(self.records)


def _first_segments(topic: TopicRecord) -> dict[int, SegmentRecord]:
    ranges = tile(topic.config.initial_segments)
    return {
        topic.incarnation + at: SegmentRecord(r.low, r.high, "open", (), (), None, None, topic.created_us)
        for at, r in enumerate(ranges)
    }


def _overlap(one: SegmentRecord | ChainEnd, other: Successor | ChainEnd) -> bool:
    return one.low < other.high and other.low < one.high


def _begun(start: StartRecord, first: EntryName) -> StartRecord:
    deleted = max(start.deleted, first.sequence)
    return replace(start, sequence=first.sequence, offset=first.first_offset, deleted=deleted)


def _emptied(start: StartRecord, offset: int, now_us: int) -> StartRecord:
    raised = (*start.raised, (LAST_SEQUENCE, now_us))  # no file is there: the time deletes none
    return replace(start, sequence=LAST_SEQUENCE, offset=offset, raised=raised, deleted=LAST_SEQUENCE, emptied=True)
