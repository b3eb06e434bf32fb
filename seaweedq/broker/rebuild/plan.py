"""The decisions of a rebuild, from what was found: which state is taken, and the keys of coordination that follow from
it and from the store. Pure.

One whole state is taken, never a mixture: what a later state says of one topic may rest on what it says of another. All
else follows from the store, which is never older: segments and starts from chains (lineage), owners from the frames of
journals. A number that may have been given out since is never given out again: counters rise by GAP, epochs as much
once acks were replayed (broker/subscriptions/assignment). Nothing counts as unused that a message may name.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from seaweedq.broker.rebuild.lineage import Chains, KnownSegments, Lineage, trace
from seaweedq.coordination import keys
from seaweedq.coordination.backup import State
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.records import (
    Counter,
    CursorRecord,
    JournalRecord,
    SchemaRecord,
    SegmentRecord,
    TopicRecord,
)
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.layout import renamed
from seaweedq.segments.schema import encode_fields, parse_schema
from seaweedq.segments.terms import Tenure, Term

T = TypeVar("T", bound=msgspec.Struct)
Place = tuple[str, int]  # a topic and a segment
Versions = Mapping[int, Versioned[SchemaRecord]]  # of a topic's schema, by id
Source = Literal["snapshot", "coordination", "nothing"]
GAP = 1_000_000
NOT_TAKEN = (
    *(keys.CLUSTER, keys.BROKERS, keys.LEADER, keys.SUSPICIONS, keys.REVOCATIONS, keys.WAITING, keys.CREATIONS),
)
UNTOUCHED = (keys.URL_SECRET,)  # no backup has it; it stays as it is


@dataclass(frozen=True)
class OwnState:
    """The state of coordination itself. It is not `whole` if a rebuild was broken off that has written to it."""

    state: State
    is_whole: bool


def choose(own: OwnState | None, stored: State | None) -> tuple[Source, State]:
    """Returns the state to take: coordination's own if it is of the generation of the store's newest state, lacks
    nothing of that, and is whole; else that one. `own` is None if coordination is empty."""
    if own and own.is_whole and (stored is None or _reaches(own.state, stored)):
        return "coordination", own.state
    if stored is not None:
        return "snapshot", stored
    return "nothing", State(1, 0, 0, {})


def _reaches(own: State, stored: State) -> bool:
    return own.generation == stored.generation and own.number >= stored.number and own.revision >= stored.revision


@dataclass(frozen=True)
class FoundJournal:
    """A journal of which something may be needed: its record, and the highest term of each segment in its frames, if
    they were read: a dry run reads none."""

    record: JournalRecord
    terms: Mapping[Place, Term] = field(default_factory=dict)
    is_read: bool = True


@dataclass(frozen=True)
class Journals:
    """The journals that were found, by broker, all of them fenced: those that are `needed`, those that say that they
    are `done`, and those that are left out because the operator says so. Of those that are needed and `unknown`, not
    all was read: their segments wait for an accepted loss (broker/cluster/accepted_loss)."""

    needed: Mapping[str, FoundJournal] = field(default_factory=dict)
    done: Set[str] = frozenset()
    left_out: Set[str] = frozenset()
    unknown: Set[str] = frozenset()

    def owners(self) -> dict[Place, Tenure]:
        """Returns the highest term of each segment, and the broker that has it: the last one that acknowledged a
        message of it."""
        found: dict[Place, Tenure] = {}
        for broker, journal in self.needed.items():
            for place, term in journal.terms.items():
                found[place] = max(found.get(place, Tenure(term, broker)), Tenure(term, broker))
        return found


class StateView:
    """The records of a state's keys by kind and parts, without those that are never taken. `unreadable` are the topics
    of which a record cannot be read: all of theirs stays as it is."""

    def __init__(self, taken: Mapping[str, bytes]) -> None:
        self.keys = {key: value for key, value in taken.items() if not any(k.matches(key) for k in NOT_TAKEN)}
        self.unreadable: set[str] = set()
        self._records: dict[str, dict[tuple[Any, ...], Versioned[Any]]] = {kind.name: {} for kind in keys.CATALOGUE}
        for key, value in self.keys.items():
            self._add(key, value)

    def _add(self, key: str, value: bytes) -> None:
        kind = next((kind for kind in keys.CATALOGUE if kind.matches(key)), None)
        if kind is None:
            return
        found = kind.read(Entry(key, value, 1))
        if isinstance(found, Versioned):
            self._records[kind.name][kind.parse(key)] = found
        elif "topic" in found.fields:
            self.unreadable.add(found.fields["topic"])

    def of(self, kind: keys.KeyKind[T]) -> Mapping[tuple[Any, ...], Versioned[T]]:
        """Returns the records of a kind by the parts of their keys."""
        return self._records[kind.name]

    def topics(self) -> dict[str, TopicRecord]:
        """Returns the active topics of which all can be read."""
        found = {name: held.record for (name,), held in self.of(keys.TOPICS).items()}
        return {n: r for n, r in found.items() if r.state == "active" and n not in self.unreadable}

    def segments(self) -> dict[str, KnownSegments]:
        """Returns the segments of the topics."""
        topics = self.topics()
        records: dict[str, dict[int, SegmentRecord]] = {name: {} for name in topics}
        starts: dict[str, dict[int, Any]] = {name: {} for name in topics}
        delivered: dict[str, dict[int, int]] = {name: {} for name in topics}
        removed: dict[str, set[int]] = {name: set() for name in topics}

        def mine(parts: tuple[Any, ...]) -> bool:
            return parts[0] in topics and topics[parts[0]].incarnation == parts[1]

        for parts, held in self.of(keys.SEGMENTS).items():
            if mine(parts):
                records[parts[0]][parts[2]] = held.record
        for parts, start in self.of(keys.STARTS).items():
            if mine(parts):
                starts[parts[0]][parts[2]] = start.record
        for parts, cursor in self.of(keys.CURSORS).items():
            if mine(parts):
                place, number = delivered[parts[0]], parts[3]
                place[number] = max(place.get(number, 0), cursor.record.delivered_to)
        for parts in self.of(keys.TOMBSTONES):
            if mine(parts):
                removed[parts[0]].add(parts[2])
        return {
            name: KnownSegments(records[name], starts[name], delivered[name], frozenset(removed[name]))
            for name in topics
        }

    def put(self, kind: keys.KeyKind[T], parts: tuple[Any, ...], record: T) -> None:
        """Replaces a record, and keeps the members of the stored one that nobody here knows."""
        there = self.of(kind).get(parts)
        held = there.with_record(record) if there else Versioned.new(record)
        if there is None or there.record != record:
            self.keys[kind.key(*parts)] = kind.encode(held)
        self._records[kind.name][parts] = held

    def put_topic(self, name: str, held: Versioned[TopicRecord]) -> None:
        """Adds a topic, also in the place of one that is being deleted."""
        self.keys[keys.TOPICS.key(name)] = keys.TOPICS.encode(held)
        self._records[keys.TOPICS.name][(name,)] = held

    def drop(self, kind: keys.KeyKind[Any], parts: tuple[Any, ...]) -> None:
        """Removes a record."""
        self._records[kind.name].pop(parts, None)
        self.keys.pop(kind.key(*parts), None)


@dataclass(frozen=True)
class Found:
    """The findings in the store beside the state: the topics by name that a first entry tells and no active record,
    the chains of each topic, the journals, the open uploads (by the parts of their keys) whose objects exist, the
    newest round of retention. `versions` are those of each topic's schema that its record does not know yet, by id, the
    newest first. `folders` are the names of all topics that have a folder, with their highest segment.
    The chains of those that are `damaged` cannot be read."""

    chains: Mapping[str, Chains]
    journals: Journals = Journals()
    topics: Mapping[str, Versioned[TopicRecord]] = field(default_factory=dict)
    uploads: Set[tuple[str, int, str]] = frozenset()
    round: int = 0
    folders: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, Versions] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicPlan:
    """The changes of one topic: segments that were sealed since the state, that began since, and that are closed
    because their ends are gone; uploads that count as published now; imports that go on further behind; subscriptions
    whose acks since the state may be lost; why it cannot go on; and segments whose cursors fall, with their ends."""

    ended: int = 0
    begun: int = 0
    closed: int = 0
    uploads: int = 0
    imports: int = 0
    subscriptions: int = 0
    damage: tuple[str, ...] = ()
    fallen: tuple[tuple[int, int], ...] = ()

    @property
    def differs(self) -> bool:
        """Whether anything of the topic is not as it was in the state."""
        return any((self.ended, self.begun, self.closed, self.uploads, self.imports, self.damage, self.fallen))


@dataclass(frozen=True)
class Plan:
    """The keys that coordination gets, but for that of the cluster; and what changes, by topic. `without_tokens` says
    why principals and tokens are left out; empty if they are not. `generation` is the highest of the terms."""

    keys: Mapping[str, bytes]
    topics: Mapping[str, TopicPlan]
    journals: tuple[str, ...]
    left_out: tuple[str, ...]
    without_tokens: str = ""
    generation: int = 0
    unknown: tuple[str, ...] = ()


def wanted(view: StateView, found: Found, now_us: int) -> dict[str, frozenset[int]]:
    """Returns the segments of which the chain's end must be read before the plan can be made, by topic."""
    traced = _trace_all(view, found, now_us)
    return {name: one.wanted for name, one in traced.items() if one.wanted}


def plan(view: StateView, found: Found, now_us: int, without_tokens: str = "") -> Plan:
    """Returns the plan. The view is that of the state, which this changes; all wanted chains were read."""
    for name, topic in found.topics.items():
        view.put_topic(name, topic)
    _put_versions(view, found)
    lineages = _trace_all(view, found, now_us)
    assert not any(one.wanted for one in lineages.values()), "the files of a segment could not be read"
    if without_tokens:
        _drop_all(view, keys.PRINCIPALS)
        _drop_all(view, keys.TOKENS)
    _put_segments(view, lineages, found)
    _raise_counters(view, found)
    uploads = _keep_uploads(view, found)
    imports = _go_on_with_imports(view, found)
    fallen = _lower_cursors(view, found)
    _end_epochs(view, set(view.topics()) if found.journals.left_out else fallen.keys())
    _put_journals(view, found.journals)
    view.put(keys.RETENTION, (), Counter(max(found.round, _next(view, keys.RETENTION))))
    subscriptions = _count(view.of(keys.SUBSCRIPTIONS), view)
    topics = {
        name: TopicPlan(
            len(one.ended),
            len(one.begun),
            len(one.closed),
            uploads.get(name, 0),
            imports.get(name, 0),
            subscriptions.get(name, 0),
            one.damage,
            tuple(sorted(fallen.get(name, ()))),
        )
        for name, one in lineages.items()
    }
    topics |= {name: TopicPlan(damage=(why,)) for name, why in found.damaged.items()}
    needed, left_out = found.journals.needed, found.journals.left_out
    generation = max((held.record.term[0] for held in view.of(keys.SEGMENTS).values()), default=0)
    unknown = tuple(sorted(found.journals.unknown))
    return Plan(view.keys, topics, tuple(sorted(needed)), tuple(sorted(left_out)), without_tokens, generation, unknown)


def _trace_all(view: StateView, found: Found, now_us: int) -> dict[str, Lineage]:
    """Traces all topics. One that only a first entry tells has all of its first segments, whichever records there are:
    the state may be of amid its creation."""
    topics = {**{name: held.record for name, held in found.topics.items()}, **view.topics()}
    known = {**view.segments(), **dict.fromkeys(found.topics, KnownSegments({}))}
    return {
        name: trace(topic, known[name], found.chains.get(name, Chains()), now_us)
        for name, topic in topics.items()
        if name not in found.damaged
    }


def _put_versions(view: StateView, found: Found) -> None:
    """Has the newest version of a topic's schema count, and puts the records of all versions."""
    for name, behind in found.versions.items():
        topic = view.of(keys.TOPICS)[(name,)].record
        place, config, newest = (name, topic.incarnation), topic.config, behind[max(behind)].record
        if (*place, config.schema_id) not in view.of(keys.SCHEMAS):
            view.put(keys.SCHEMAS, (*place, config.schema_id), SchemaRecord(config.schema or {}, topic.created_us))
        for number, held in behind.items():
            view.put(keys.SCHEMAS, (*place, number), held.record)
        columns = parse_schema(newest.schema)
        key_field = renamed(config.key_field, parse_schema(config.schema or {}), columns)
        config = replace(config, schema=newest.schema, columns=encode_fields(columns), key_field=key_field)
        now = replace(topic, config=config, pending=UNSET)
        view.put(keys.TOPICS, (name,), now)


def _put_segments(view: StateView, lineages: Mapping[str, Lineage], found: Found) -> None:
    """Puts segments and starts. An open segment is the dead broker's that has its highest term in a journal, so that
    nobody gets it before that journal was replayed. It is nobody's if there is none, or a later owner is known: rows of
    an owner before that one are in the chain. But an owner whose journal is unknown stays, so that its segment waits.
    No term falls, and a sealed segment gets its highest one, too: the leader takes a term of a journal that is above
    the segment's for a sign of lost coordination."""
    topics, owners = view.topics(), found.journals.owners()
    for name, lineage in lineages.items():
        incarnation, ends = topics[name].incarnation, found.chains[name].ends
        for number, record in lineage.records.items():
            end = ends.get(number)
            nobody = Tenure(max(record.term, end.term if end else record.term), "")
            last = max(owners.get((name, number), nobody), nobody)
            if record.state == "open":
                waits = record.owner in found.journals.unknown and record.term == last.term
                record = replace(record, owner=last.owner or (record.owner if waits else None), term=last.term)
            else:
                record = replace(record, term=last.term)
            view.put(keys.SEGMENTS, (name, incarnation, number), record)
        for number, start in lineage.starts.items():
            view.put(keys.STARTS, (name, incarnation, number), start)


def _raise_counters(view: StateView, found: Found) -> None:
    """Raises the counter of each name to the highest id that anything names, and GAP."""
    highest: dict[str, int] = {}

    def see(name: str, *ids: int) -> None:
        highest[name] = max(highest.get(name, 0), *ids)

    for (name,), counter in view.of(keys.COUNTERS).items():
        see(name, counter.record.next)
    for (name,), topic in view.of(keys.TOPICS).items():
        see(name, topic.record.incarnation + topic.record.config.initial_segments)
    for (name, _, number), held in view.of(keys.SEGMENTS).items():
        see(name, number, *(one.id for one in (held.record.intent.successors if held.record.intent else ())))
    for name, _, number in view.of(keys.TOMBSTONES):
        see(name, number)
    for name, number in found.folders.items():
        see(name, number)
    for journal in found.journals.needed.values():
        for name, number in journal.terms:
            see(name, number)
    for name, number in highest.items():
        view.put(keys.COUNTERS, (name,), Counter(number + GAP))


def _keep_uploads(view: StateView, found: Found) -> dict[str, int]:
    """Has open uploads with an object, and those that an import has read, count as published: a message may name them
    since. Those of a write, which no message names, stay as they are. Returns their number by topic."""
    kept: dict[str, int] = {}
    for parts, held in list(view.of(keys.UPLOADS).items()):
        state = held.record.state
        if not held.record.write and (state == "imported" or (state == "open" and parts in found.uploads)):
            view.put(keys.UPLOADS, parts, replace(held.record, state="published"))
            kept[parts[0]] = kept.get(parts[0], 0) + 1
    return kept


def _go_on_with_imports(view: StateView, found: Found) -> dict[str, int]:
    """Has running imports go on from the batch of the highest sequence that a producer table knows: none begins before
    all of the one before is durable. Returns their number by topic."""
    moved: dict[str, int] = {}
    for parts, held in list(view.of(keys.IMPORTS).items()):
        name, _, upload = parts
        if held.record.state != "running":
            continue
        ends = (end for end in found.chains.get(name, Chains()).ends.values() if end)
        reached = max((end.imports.get(upload, 0) for end in ends), default=0)
        if reached > held.record.rows_done:
            view.put(keys.IMPORTS, parts, replace(held.record, rows_done=reached))
            moved[name] = moved.get(name, 0) + 1
    return moved


def _lower_cursors(view: StateView, found: Found) -> dict[str, set[tuple[int, int]]]:
    """Lowers the cursors of open segments to the ends of their chains where no journal has rows that may be behind:
    those rows are gone, and others get their offsets. All cursors fall if a journal is left out: rows that another one
    has are delivered again. Nothing is known of them before journals are read. Returns the segments whose rows are
    gone with their ends, by topic."""
    fallen: dict[str, set[tuple[int, int]]] = {}
    journals = found.journals
    if not journals.left_out and not all(one.is_read for one in journals.needed.values()):
        return fallen
    framed = journals.owners()
    for parts, held in list(view.of(keys.CURSORS).items()):
        name, incarnation, _, number = parts
        segment = view.of(keys.SEGMENTS).get((name, incarnation, number))
        if segment is None or segment.record.state != "open" or name in found.damaged:
            continue
        is_framed = (name, number) in framed
        if is_framed and not journals.left_out:
            continue
        there = found.chains.get(name, Chains()).ends.get(number)
        end = there.end if there else 0
        fallen_cursor = lowered(held.record, end)
        if fallen_cursor != held.record:
            view.put(keys.CURSORS, parts, fallen_cursor)
            if not is_framed:
                fallen.setdefault(name, set()).add((number, end))
    return fallen


def lowered(cursor: CursorRecord, end: int) -> CursorRecord:
    """Returns a cursor of a segment that ends at `end`, by what is left of it: it stands at the end at most. Its
    subscription has to begin a new epoch."""
    if cursor.delivered_to <= end and cursor.acked_to <= end:
        return cursor
    return replace(
        cursor,
        acked_to=min(cursor.acked_to, end),
        delivered_to=min(cursor.delivered_to, end),
        sought_below=min(cursor.sought_below, end),
        acked=tuple((low, min(high, end)) for low, high in cursor.acked if low < end),
        attempts={offset: count for offset, count in cursor.attempts.items() if int(offset) < end},
        held=(),
    )


def _end_epochs(view: StateView, topics: Set[str]) -> None:
    """Begins new epochs of these topics' subscriptions: acks in journals may be of rows that are gone, and would hide
    those that get their offsets. So what the journals have acked is delivered again."""
    for parts, held in list(view.of(keys.SUBSCRIPTIONS).items()):
        if parts[0] in topics:
            view.put(keys.SUBSCRIPTIONS, parts, replace(held.record, epoch=held.record.epoch + GAP))


def _put_journals(view: StateView, journals: Journals) -> None:
    """Gives each needed journal a key. Those that are done, or are left out, keep the key that they have until the
    leader has removed what is left."""
    for broker in journals.needed:
        there = view.of(keys.JOURNALS).get((broker,))
        record = journals.needed[broker].record
        if there is None:
            view.put(keys.JOURNALS, (broker,), record)
        elif there.record.recovered:
            view.put(keys.JOURNALS, (broker,), replace(there.record, recovered=False))
    for broker in sorted(journals.unknown):
        view.drop(keys.MIRRORS, (broker,))  # it may be of an earlier day
    for (broker,), held in list(view.of(keys.JOURNALS).items()):
        if broker in journals.left_out:
            view.drop(keys.JOURNALS, (broker,))
        elif broker not in journals.needed:
            view.put(keys.JOURNALS, (broker,), replace(held.record, recovered=True))


def _next(view: StateView, kind: keys.KeyKind[Counter]) -> int:
    there = view.of(kind).get(())
    return there.record.next if there else 0


def _drop_all(view: StateView, kind: keys.KeyKind[Any]) -> None:
    for parts in list(view.of(kind)):
        view.drop(kind, parts)


def _count(records: Iterable[tuple[Any, ...]], view: StateView) -> dict[str, int]:
    topics, counted = view.topics(), dict[str, int]()
    for name, incarnation, *_ in records:
        if name in topics and topics[name].incarnation == incarnation:
            counted[name] = counted.get(name, 0) + 1
    return counted


def losses(made: Plan, source: Source = "snapshot") -> list[str]:
    """Returns what may be lost behind the state that was taken, topic by topic, for people. A message that was
    acknowledged is not, but for those of journals that are left out."""
    found = [f"journal of {broker}: the messages and acks that it holds" for broker in made.left_out]
    found += [
        f"journal of {broker}: the messages and acks that are neither in the store nor at a running mirror; once all "
        f"brokers run, use the rest with `seaweedq journal accept-loss {broker}`"
        for broker in made.unknown
    ]
    if source == "nothing":
        found.append(
            "all subscriptions with their acks, changes to topic settings, running imports and uploads: no backup "
            "of them exists"
        )
    if made.without_tokens:
        found.append(f"all principals and tokens: {made.without_tokens}")
    for name, topic in sorted(made.topics.items()):
        found += [f"topic {name}: the topic waits: {why}" for why in topic.damage]
        found += [
            f"topic {name}: the messages of segment {number} from offset {end} on, which a subscription had "
            "received: no file has them, and no readable journal has them"
            for number, end in topic.fallen
        ]
        if topic.subscriptions:
            found.append(
                f"topic {name}: acks, attempts and leases after the state that the rebuild starts from, for "
                f"{topic.subscriptions} subscription{'s'[: topic.subscriptions - 1]}: the messages are redelivered"
            )
    return [
        *found,
        "uploads that were started after the state that the rebuild starts from, and signed URLs issued since then",
    ]
