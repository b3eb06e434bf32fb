"""Which ids coordination gives out, and what becomes of a segment that it has forgotten: a world of its own beside that
of lost coordination.

X owns segments 1 and 2, which halve the key space. It plans a roll of 1, commits and seals it, ends it, and takes a
message in the successor, which it may bring into a file. Meanwhile coordination goes back to a copy of an earlier
moment, or to nothing; the old one and X live on, or die. Over the new one Z begins: without a sign it serves, or else a
rebuild comes first. It recovers X's journal, rolls segment 2, and opens 1 whenever somebody asks for it: late.

Of the code are what a rebuild makes of a state (plan.plan, with lineage.trace), how a late seal is carried out
(intents.resume), and whether a segment without a record may have had one (topics/forgotten). Restated is which folders
a sweep deletes (topic_admin). Each of Z's transactions is one step.
"""

from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

from msgspec.structs import replace

from seaweedq.broker.rebuild.lineage import ChainEnd, Chains
from seaweedq.broker.rebuild.plan import Found, FoundJournal, Journals, StateView, plan, wanted
from seaweedq.broker.reshape import intents
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.forgotten import may_have_been
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry as Stored
from seaweedq.coordination.records import (
    Counter,
    Intent,
    JournalRecord,
    SegmentRecord,
    Successor,
    TopicConfig,
    TopicRecord,
)
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.entry import EntryName, SealedIntent, SealedSuccessor
from seaweedq.segments.keyrange import tile

RULES = {
    "gap of ids": "a rebuild goes on counting behind the highest id that it finds",
    "rows of a new segment": "a leader takes a segment that an intent still promises for one that was removed",
    "rows without a record": "replay leaves out rows of a segment that has no record",
}

FIRST, HALVES = 3, tile(2)  # the id of the first successor; the ranges of segments 1 and 2
RECORD = TopicRecord(1, "active", TopicConfig(initial_segments=2), 0)
JOURNAL = JournalRecord("object", "place")
Steps = Iterator[tuple[str, "World"]]


class Coordination(NamedTuple):
    """The counter of ids; the intent to roll segment 1, as its successor's id, and whether it is committed; the
    segments that were made since."""

    generation: int = 1
    revision: int = 1
    counter: int = FIRST
    intent: int = 0
    is_committed: bool = False
    made: frozenset[int] = frozenset()


class World(NamedTuple):
    """Everything there is. `seals` has of segments 1 and 2 the successor that its seal names, 0 for none; that of X is
    `flying` before it lands. Once Z has `opened` segment 1 it lands no more. X's message is of a segment, and its slot
    states a revision: `taken` on its way, `slot` in the journal. `files` are of segments, `acked` is one."""

    generation: int = 1
    old: Coordination | None = Coordination()
    saved: Coordination | None = None
    new: Coordination | None = None
    z: Literal["off", "looked", "joined", "fenced", "serves", "waits"] = "off"
    seals: tuple[int, int] = (0, 0)
    flying: int = 0  # the successor that X's late seal names
    opened: bool = False
    taken: tuple[int, int] | None = None
    slot: tuple[int, int] | None = None
    fenced: bool = False
    done: bool = False
    acked: int = 0
    files: frozenset[int] = frozenset()
    damage: bool = False


class Bounds(NamedTuple):
    """`files`: X brings its message into a file. `rolls`: Z rolls segment 2, perhaps before it opens 1. `unnoticed`: it
    may serve without a rebuild, where no sign shows the return. `away`: X's journal is in files, whose machine is not
    there at Z's start (1), nor perhaps before its journal is recovered (2). `left_out` are some of RULES."""

    files: bool = False
    away: int = 0
    rolls: bool = False
    unnoticed: bool = False
    left_out: frozenset[str] = frozenset()


def fault(w: World, b: Bounds) -> str | None:
    """What must never be. Damage is told of if the machine was away: then no look can find the sign."""
    if w.damage and b.away < 2:
        return "damage: rows of a segment that has no record"
    if w.seals[0] and w.seals[0] == w.seals[1]:
        return f"an id has two contents: {w.seals[0]} follows both segments"
    if w.acked and w.done and w.acked not in w.files:
        return f"lost: X's journal is done, and its message of segment {w.acked} is in no file"
    return None


def steps(w: World, b: Bounds) -> Steps:
    """All that can happen next."""
    if w.old:
        yield from _old(w, w.old, b)
        if w.new:
            yield "the old coordination and its brokers die", w._replace(old=None)
    if w.flying:
        landed = w._replace(flying=0)
        yield "X's seal lands", landed if w.opened else landed._replace(seals=(w.flying, w.seals[1]))
    if w.taken:
        slot = None if w.fenced else w.taken
        yield "X's slot lands", w._replace(taken=None, slot=slot or w.slot)
    if w.new is None:
        if w.old and w.saved is None:
            yield "a copy of coordination is saved", w._replace(saved=w.old)
        if w.saved:
            yield "coordination goes back to the copy", w._replace(new=w.saved)
        yield "coordination is lost", w._replace(new=Coordination(revision=0))
    elif w.z == "serves":
        yield from _serves(w, w.new, b)
    elif w.z == "waits" or w.old or w.new.revision == 0 or w.new.generation < w.generation:
        yield from _rebuilds(w, w.new, b)
    else:
        yield from _begins(w, w.new, b)


def _old(w: World, c: Coordination, b: Bounds) -> Steps:
    """What X does, over the old coordination."""
    if not c.intent and not c.made:
        planned = c._replace(intent=c.counter, counter=c.counter + 1, revision=c.revision + 1)
        yield "X plans to roll segment 1", w._replace(old=planned)
    elif c.intent and not c.is_committed:
        committed = c._replace(is_committed=True, revision=c.revision + 1)
        yield "X commits that, and seals", w._replace(old=committed, flying=c.intent)
    elif c.is_committed and w.seals[0] == c.intent:
        ended = c._replace(intent=0, is_committed=False, made=c.made | {c.intent}, revision=c.revision + 1)
        yield f"X ends segment 1: {c.intent} begins", w._replace(old=ended)
    for number in c.made:
        if not (w.taken or w.slot or w.acked):
            yield f"X takes a message in {number}", w._replace(taken=(number, c.revision))
    if w.slot and not w.acked and c.generation == w.generation:
        yield "X looks at the generation, and answers", w._replace(acked=w.slot[0])
    if w.acked and b.files:
        yield "X's entry lands", w._replace(files=w.files | {w.acked})


def _begins(w: World, c: Coordination, b: Bounds) -> Steps:
    """Z looks for a sign at its start, joins, fences X's journal, and looks again."""
    is_sign = w.slot is not None and w.slot[1] > c.revision
    if w.z == "off" and b.unnoticed:
        yield "Z looks at its start", w._replace(z="waits" if is_sign and not b.away else "looked")
    elif w.z == "looked":
        yield "Z joins, as others do", w._replace(z="joined", new=c._replace(revision=c.revision + 9))
    elif w.z == "joined":
        yield "Z fences X's journal", w._replace(z="fenced", fenced=True)
    elif w.z == "fenced":
        is_sign = is_sign or (w.slot is not None and not _gave(c, w.slot[0], b))
        yield "Z looks again", w._replace(z="waits" if is_sign else "serves")
        if b.away == 2:
            yield "Z cannot look at X's journal", w._replace(z="serves")
    if w.z == "off":
        yield "an operator asks for a rebuild", w._replace(z="waits")


def _gave(c: Coordination, number: int, b: Bounds) -> bool:
    """Coordination has given a segment to X."""
    return number in c.made or _may_have_been(c, number, "rows of a new segment" in b.left_out)


@cache
def _may_have_been(c: Coordination, number: int, forgets_promises: bool) -> bool:
    half = HALVES[0]
    intent = _intent(1, c.intent) if c.intent and not forgets_promises else None
    record = SegmentRecord(half.low, half.high, "open", (), (), None, None, 0, intent=intent)
    return may_have_been(number, c.counter, [record])


def _rebuilds(w: World, c: Coordination, b: Bounds) -> Steps:
    """The listing of journals and chains is one step, and all that is written behind it another one."""
    if w.generation == 1:
        yield "a rebuild creates the generation", w._replace(generation=2)
    elif not w.fenced:
        yield "the rebuild fences X's journal", w._replace(fenced=True)
    else:
        counter, made, intent = planned(c, w.seals, w.slot[0] if w.slot else 0, w.files)
        if "gap of ids" in b.left_out:
            counter = max(c.counter, w.seals[0] + 1, w.slot[0] + 1 if w.slot else 0)
        new = Coordination(2, 1, counter, intent, intent > 0, made)
        yield "the rebuild reads the chains, and ends", w._replace(new=new, z="serves")


def _serves(w: World, c: Coordination, b: Bounds) -> Steps:
    if not w.fenced:
        yield "the leader fences X's journal", w._replace(fenced=True)
    if not w.done and w.fenced:
        yield from _recovers(w, c, b)
    if b.rolls and not w.seals[1]:
        rolled = c._replace(counter=c.counter + 1, made=c.made | {c.counter}, revision=c.revision + 1)
        if c.counter in w.files:
            yield "Z finds files of what it plans", w._replace(z="waits")
        else:
            yield f"Z rolls segment 2: {c.counter} begins", w._replace(new=rolled, seals=(w.seals[0], c.counter))
    if w.done and not w.opened:
        yield from _opens(w, c)
    live = c.made | {c.intent}
    for number in w.files:
        if number < c.counter and number not in live:
            yield f"a sweep deletes the files of {number}", w._replace(files=w.files - {number})


def _recovers(w: World, c: Coordination, b: Bounds) -> Steps:
    if w.slot is None:
        yield "X's journal is recovered", w._replace(done=True)
    elif w.slot[0] in c.made:
        yield "X's journal is recovered", w._replace(done=True, files=w.files | {w.slot[0]})
    elif _may_have_been(c, w.slot[0], False) or "rows without a record" in b.left_out:
        yield "X's journal is recovered, but for rows of no segment", w._replace(done=True)
    else:
        yield "X's journal is damaged, so its segments wait", w._replace(damage=True)


def _opens(w: World, c: Coordination) -> Steps:
    """Z opens segment 1, which was X's. It finds a seal, or puts the first entry: then no late one lands."""
    sealed = w.seals[0] or (c.intent if c.is_committed else 0)
    if not sealed:
        yield "Z opens segment 1", w._replace(opened=True, new=c._replace(intent=0))
    elif sealed not in c.made:
        if sealed != c.intent and sealed in w.files:
            yield "Z finds files of a successor that nobody knows", w._replace(z="waits")
            return
        assert sealed == c.intent or is_resumed(sealed)
        counter = max(c.counter, sealed + 1)
        ended = c._replace(intent=0, is_committed=False, made=c.made | {sealed}, counter=counter)
        yield f"Z ends segment 1: {sealed} begins", w._replace(opened=True, new=ended, seals=(sealed, w.seals[1]))


@cache
def planned(
    c: Coordination, seals: tuple[int, int], framed: int, files: frozenset[int]
) -> tuple[int, frozenset[int], int]:
    """What a rebuild makes of a state: the counter, the segments that were made since, and the intent of segment 1."""
    open_ones = {1 + at: SegmentRecord(r.low, r.high, "open", (), (), "X", None, 0) for at, r in enumerate(HALVES)}
    known = dict(open_ones)
    if c.intent:
        state = "committed" if c.is_committed else "planned"
        known[1] = replace(known[1], intent=replace(_intent(1, c.intent), state=state))
    for number in c.made:
        low, high = HALVES[0].low, HALVES[0].high
        ended = replace(known[1], state="sealed", owner=None, successors=(number,), end_offset=0, sealed_us=1)
        known |= {1: ended, number: SegmentRecord(low, high, "open", (1,), (), "X", None, 1)}
    view = StateView(
        {
            keys.TOPICS.key("t"): keys.TOPICS.encode(Versioned.new(RECORD)),
            keys.COUNTERS.key("t"): keys.COUNTERS.encode(Versioned.new(Counter(c.counter))),
            keys.JOURNALS.key("X"): keys.JOURNALS.encode(Versioned.new(JOURNAL)),
            **{keys.SEGMENTS.key("t", 1, n): keys.SEGMENTS.encode(Versioned.new(one)) for n, one in known.items()},
        }
    )
    journals = Journals({"X": FoundJournal(JOURNAL, {("t", framed): (1, 1)} if framed else {})})
    ends: dict[int, ChainEnd | None] = {n: _end(n, seals[n - 1]) for n in open_ones}
    facts = Found({"t": Chains(ends=ends)}, journals)
    while missing := wanted(view, facts, 1).get("t"):
        ends |= {n: _end(n, 0, 1) if n in files else None for n in missing}
        facts = Found({"t": Chains(ends=ends)}, journals)
    made = plan(view, facts, 1)
    assert not made.topics["t"].damage, made.topics["t"]
    records = {
        keys.SEGMENTS.parse(key)[2]: _record(key, v) for key, v in made.keys.items() if keys.SEGMENTS.matches(key)
    }
    counter = keys.COUNTERS.require(Stored("", made.keys[keys.COUNTERS.key("t")], 1)).record.next
    intent = records[1].intent
    return (
        counter,
        frozenset(records.keys() - open_ones.keys()),
        intent.id if intent and intent.state == "committed" else 0,
    )


def _end(number: int, seal: int, rows: int = 0) -> ChainEnd:
    half = HALVES[0] if number != 2 else HALVES[1]
    return ChainEnd(EntryName(0, 0), half.low, half.high, rows, 1, _intent(number, seal) if seal else None)


def _intent(number: int, successor: int) -> Intent:
    half = HALVES[number - 1]
    return Intent(successor, "committed", (number,), (Successor(successor, half.low, half.high),))


def _record(key: str, value: bytes) -> SegmentRecord:
    return keys.SEGMENTS.require(Stored(key, value, 1)).record


@cache
def is_resumed(successor: int) -> bool:
    """Whether X's seal is carried out over a record of segment 1 that has no intent."""
    half = HALVES[0]
    record = SegmentRecord(half.low, half.high, "open", (), (), "Z", None, 0)
    sealed = SealedIntent(successor, (1,), (SealedSuccessor(successor, half.low, half.high),))
    topic = Topic.from_record("t", Versioned(RECORD, 1))
    _, writes = intents.resume(topic, {1: Versioned(record, 1)}, sealed)
    return [_record(put.key, put.value).intent for put in writes] == [_intent(1, successor)]
