"""What a world of the recovery model is made of: objects, who knows what, and which rules can be left out.

Broker X owns the one segment. It makes messages durable in its journal, flushes them to the segment's chain, may seal
it, or move it to the living broker Y. Its lease may end at any moment; then recoverers work its journal in and give
the segment to Z, while X, the zombie, goes on, and its puts land late, or twice. The store may lose a slot that others
state as acknowledged: then no recovery may end as if nothing were missing.

With `fails` X's journal may refuse a commit that is in it all the same, as a file may after a failed sync. X's next
commit takes its place; before X moves the segment the journal cuts it off.

With `marks` an idle X journals a mark, and then puts an entry without rows, so that retention can take the one before:
the protocol for segments that get no messages. No broker does it yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from seaweedq.journal.object_format import Run, SlotHeader, SlotKind, valid_run
from seaweedq.segments.terms import Tenure, Verdict, judge

RULES = {
    "look again": "a fence is trusted without looking once it is there",
    "newest stays": "X deletes its newest slot too",
    "fence stays": "a finished recovery deletes the fence as well",
    "acknowledge in order": "a durable slot is acknowledged though an earlier one is not durable yet",
    "flush what is acknowledged": "a flush takes what is not durable in the journal yet",
    "stop at a gap": "a recovery also reads what lies behind the first gap",
    "state what was acknowledged": "slots do not state what was acknowledged, as in version 1",
    "miss what was acknowledged": "a recovery takes every gap for the end, whatever the slots behind it state",
    "ask the key": "a recovery takes a slot that goes while it reads for the work of another one, without asking",
    "journal the seal": "the seal goes straight into the chain",
    "one put to a chain": "two puts to the chain are under way",
    "release what is flushed": "X releases rows when their flush begins, not when it is done",
    "journal the mark": "the zero-row entry of an idle segment goes straight into the chain",
    "name the entry": "a mark does not name the sequence of its entry: a recovery puts one for each mark",
    "give last": "a recovery gives the segment away before its rows are in the chain",
    "compare the owner": "a recovery gives the segment away though X had moved it",
    "move when quiet": "X moves the segment while commits are under way",
    "move when flushed": "X moves the segment with rows that are in no file",
    "move while alive": "X moves the segment though its lease has ended",
}

LINES = {
    "cut off what failed": "X moves the segment with a commit in its journal that failed",
    "leave what failed": "a recovery takes rows of a segment that has left X for lost ones",
    "leave what is another's": "a recovery appends rows behind the chain's end, whatever term the record has",
}
"""Rules of which one alone may be left out: the second line behind them holds."""

Row = tuple[int, str]  # offset, message
X = Tenure((1, 1), "X")
Name = tuple[int, int]  # sequence, first offset; of a slot: its number, 0
SEAL = "seal"
MARK = "mark "  # and the sequence of its entry: a frame without rows, which an idle segment journals


@dataclass(frozen=True)
class Object:
    """A slot of the journal, or an entry of the chain, with the tenure of its rows."""

    writer: str
    rows: tuple[Row, ...] = ()
    released: int = 0
    is_fence: bool = False
    acknowledged: int = 0
    tenure: Tenure = X


@dataclass(frozen=True)
class Put:
    """On its way: may land at any time, or never."""

    where: str  # "journal" or "chain"
    name: Name
    content: Object


Objects = tuple[tuple[Name, Object], ...]  # sorted by name


@dataclass(frozen=True)
class Sent:
    """A slot of X that X has not acknowledged."""

    number: int
    rows: tuple[Row, ...]
    released: int
    is_durable: bool = False


@dataclass(frozen=True)
class Broker:
    """X, as it knows itself. `tail`: (row, slot), acknowledged, not flushed; `flushing`: (name, part of the tail);
    `failed`: the slot that was refused, and whether it may come back."""

    accepted: int = 0
    is_sealing: bool = False
    waiting: tuple[Row, ...] = ()
    sent: tuple[Sent, ...] = ()
    next_slot: int = 0
    tail: tuple[tuple[Row, int], ...] = ()
    flushing: tuple[tuple[Name, tuple[tuple[Row, int], ...]], ...] = ()
    next_entry: Name = (0, 0)
    released: int = 0
    stated: int = 0
    is_at_rest: bool = True
    acked: frozenset[str] = frozenset()
    moving: bool = False
    stopped: bool = False
    marked: bool = False
    failed: tuple[int, bool] | None = None


@dataclass(frozen=True)
class Recoverer:
    """`known` is a fence that was there before the look; `run` what the look found; `record` whose the segment was when
    the journal was read. One that found damage is stuck."""

    step: str = "look"
    known: int | None = None
    run: Run | None = None
    rows: tuple[Row, ...] = ()
    record: Tenure = X
    entry: Name = (0, 0)
    has_put: bool = False


@dataclass(frozen=True)
class Successor:
    """Y or Z: opens the segment in a term, acknowledges a message, flushes it."""

    opened_at: Name | None = None
    number: int = 0
    acked: bool = False
    flushed: bool = False


@dataclass(frozen=True)
class World:
    """Everything there is."""

    journal: Objects = ()
    chain: Objects = ()
    flying: frozenset[Put] = frozenset()
    heard: frozenset[tuple[str, Name, bool]] = frozenset()  # answers that X may get: is the name X's own?
    x: Broker = Broker()
    lease_ended: bool = False
    owner: str = "X"
    number: int = 1
    recoverers: tuple[Recoverer, ...] = ()
    crashes: int = 0
    losses: int = 0
    recovered: bool = False
    y: Successor = Successor()
    z: Successor = Successor()


@dataclass(frozen=True)
class Bounds:
    """How large a world is. `left_out` is one of RULES."""

    messages: int = 2
    window: int = 2
    recoverers: int = 1
    crashes: int = 1
    twice: bool = False
    losses: int = 0
    marks: bool = False
    fails: bool = False
    left_out: str | None = None
    lines: frozenset[str] = frozenset()  # some of LINES, left out too


def with_object(objects: Objects, name: Name, content: Object) -> Objects:
    """The objects and one more, if its name is free."""
    there = dict(objects)
    there.setdefault(name, content)
    return tuple(sorted(there.items(), key=lambda item: item[0]))


def without(objects: Objects, name: Name) -> Objects:
    """The objects but one."""
    return tuple(item for item in objects if item[0] != name)


@cache
def run_of(journal: Objects, states: bool = True) -> Run:
    """What the broker's own code makes of the journal. `states`: slots state what was acknowledged."""
    headers = {number: _header(number, slot, states) for (number, _), slot in journal}
    return valid_run(headers.keys(), headers)


def _header(number: int, slot: Object, states: bool) -> SlotHeader:
    kind = SlotKind.FENCE if slot.is_fence else SlotKind.DATA
    return SlotHeader(kind, "X", number, "", slot.released, slot.acknowledged * states)


def end_of(chain: Objects) -> Name:
    """The next name."""
    if not chain:
        return 0, 0
    (sequence, first), last = chain[-1]
    return sequence + 1, first + len(last.rows)


def without_marks(rows: Iterable[Row]) -> tuple[Row, ...]:
    """What of a slot's rows goes into a chain: marks are no rows."""
    return tuple(row for row in rows if not row[1].startswith(MARK))


def marked_in(rows: Iterable[Row]) -> tuple[int, ...]:
    """The sequences that marks name."""
    return tuple(int(message.removeprefix(MARK)) for _, message in rows if message.startswith(MARK))


def rows_in(objects: Iterable[tuple[Name, Object]]) -> tuple[Row, ...]:
    """All rows, in the order of the names."""
    return tuple(row for _, content in objects for row in content.rows)


def record_of(w: World) -> Tenure:
    """The segment's record."""
    return Tenure((1, w.number), w.owner)


def verdict_on(w: World, row: Row, record: Tenure, b: Bounds) -> Verdict:
    """What the broker's own code makes of a row of X's journal."""
    holder = next((entry.tenure for _, entry in w.chain if row[0] in dict(entry.rows)), None)
    last = w.chain[-1][1].tenure if w.chain else None
    if "leave what is another's" in b.lines and holder is None:
        return "append"
    verdict = judge(X, holder, record, last, False)
    own = judge(X, holder, X, X, False)
    return "damage" if "leave what failed" in b.lines and verdict == "skip" != own else verdict
