"""What a world of the rebuild model is made of: the store, two coordinations, three broker lives, and one rebuild.

X owns the one segment, and may move it to Y, seal it, or stop in order; both live over the old coordination. Once a
copy of that was saved, coordination may go back to the copy, or to nothing: that is the new one. The old one may die
with its brokers, or live on beside it. Z begins over the new one. If it finds no sign of a return, it leads and serves;
else, and whenever somebody asks for it, the cluster is rebuilt from the store. A rebuild may die anywhere, and is run
again. Puts to the store land at any time, or never. Then Z gets the segment, once its owner's journal was replayed.
"""

from typing import Literal, NamedTuple

from seaweedq.broker.backups import BARE
from seaweedq.segments.terms import FIRST_TERM, Term

RULES = {
    "owner by term": "a rebuild believes the owner that its state names, whatever the journals' frames say",
    "done": "a clean stop removes its journal without saying first that nothing of it is needed",
    "first entry": "an owner that owes an entry acknowledges before it has put it",
    "look at the start": "a life does not compare generations at its start",
    "second look": "a life does not compare generations between its first slot and its first answer",
    "fence before headers": "a rebuild reads a journal's frames, and fences it afterwards",
    "all needed journals": "a rebuild knows the journals that its state names, not those of the store",
    "revisions in slots": "slots do not state the revision of coordination",
    "objects are published": "a rebuild leaves an upload open whose object exists",
    "fence before the look": "a leader looks for signs in journals that are not fenced yet",
    "terms in records": "a leader does not compare the terms in journals with records",
    "notice": "nobody looks for a sign of a return",
    "generation": "a rebuild keeps the generation",
    "look before a deletion": "a sweep does not look for another generation first",
}
SECOND = {"term": "replay skips rows by their offset alone, whoever wrote the entry that holds it"}
"""The line behind the rules above: it never fires while they hold; with one left out it makes of a loss damage."""

Row = tuple[int, str]  # offset, message
REFERENCE = "reference of "  # a message that names the upload begins so
State = Literal["empty", "serving", "restored", "rebuilding", "replacing"]


class Entry(NamedTuple):
    """One entry of the segment's chain; its sequence is its place. `term` and `owner` are the tenure of its rows; one
    that `is_recovered` was put by a recovery."""

    term: Term
    owner: str
    rows: tuple[Row, ...] = ()
    is_seal: bool = False
    is_recovered: bool = False


class Slot(NamedTuple):
    """One commit. `revision` is the highest of coordination that its broker had seen."""

    term: Term
    row: Row
    revision: int


class Journal(NamedTuple):
    """A folder of slots. `fence` is the number that a fence took. `done` says that nothing in it is needed, as of a
    generation and a watermark."""

    slots: tuple[tuple[int, Slot], ...] = ()
    fence: int | None = None
    done: tuple[int, int] | None = None


class Put(NamedTuple):
    """On its way to the store: it lands at any time, or never. `at`: number of the slot, or sequence in the chain."""

    broker: str
    at: int
    content: Slot | Entry


class Coordination(NamedTuple):
    """The cluster's key, the segment's record, the keys of journals and which of these say `recovered`, the number of
    the newest snapshot. `intent`: the record has the committed intent to roll the segment. `published`: the upload is
    not open any more."""

    generation: int = 1
    state: State = "serving"
    rebuild: int = 0
    revision: int = 1
    snapshot: int = 0
    owner: str | None = "X"
    term: Term = FIRST_TERM
    entry_from: int = 0
    intent: bool = False
    is_sealed: bool = False
    journals: frozenset[str] = frozenset({"X"})
    recovered: frozenset[str] = frozenset()
    watermark: int = 0
    published: bool = False


START = Coordination()
NOTHING = Coordination(0, "empty", 0, 0, 0, None, (0, 0), journals=frozenset())


class Life(NamedTuple):
    """One life of a broker, as it knows itself. `seen` is the revision that it has seen of coordination; `messages` is
    how many it still takes, `slots` how many it has put; `tail` is acknowledged and in no file."""

    step: Literal["off", "looked", "joined", "stopping", "closing", "over"] = "off"
    term: Term | None = None
    seen: int = 0
    next_entry: int = 0
    next_offset: int = 0
    messages: int = 0
    slots: int = 0
    pending: Slot | None = None
    is_durable: bool = False
    looked_again: bool = False
    tail: tuple[Row, ...] = ()
    flushing: tuple[Row, ...] = ()
    is_sealing: bool = False


class Rebuild(NamedTuple):
    """`needed` are the journals that it has listed, `fenced` those that it has fenced, `terms` has of each that it has
    read the highest term. `taken` is the state that it goes by, `planned` what coordination becomes."""

    step: Literal["none", "created", "announced", "listed", "planned", "saved", "replaced", "backed", "over"] = "none"
    needed: frozenset[str] = frozenset()
    fenced: frozenset[str] = frozenset()
    terms: tuple[tuple[str, Term | None], ...] = ()
    taken: Coordination | None = None
    planned: Coordination | None = None
    crashes: int = 0


class World(NamedTuple):
    """Everything there is. `generation` is the store's newest; `stored` its newest state, which begins with the change
    that created the topic."""

    generation: int = 1
    stored: Coordination = Coordination(snapshot=BARE)
    chain: tuple[Entry, ...] = (Entry(FIRST_TERM, "X"),)
    journals: tuple[tuple[str, Journal], ...] = (("X", Journal()),)
    flying: frozenset[Put] = frozenset()
    old: Coordination = START
    saved: Coordination | None = None
    new: Coordination | None = None
    old_is_dead: bool = False
    serves: bool = False  # the new coordination, after a leader's look or a rebuild
    x: Life = Life()
    y: Life = Life()
    z: Life = Life()
    rebuild: Rebuild = Rebuild()
    acked: frozenset[tuple[str, Row]] = frozenset()
    payload: bool = True  # whether the upload's object is there
    damage: str | None = None


class Bounds(NamedTuple):
    """How large a world is. `messages` are those of X, Y and Z, `snapshots` those of the old coordination, `crashes`
    those of rebuilds. X `moves` the segment, `seals` it, or `stops`; with `uploads` a message names an upload. With
    `unnoticed` the cluster may serve without a rebuild, where no sign shows the return. With `away` Y's journal is in
    files, whose machine is not there when Z looks. `left_out` are some of RULES and SECOND."""

    messages: tuple[int, int, int] = (1, 1, 1)
    crashes: int = 0
    snapshots: int = 0
    moves: bool = False
    seals: bool = False
    stops: bool = False
    unnoticed: bool = False
    uploads: bool = False
    away: bool = False
    left_out: frozenset[str] = frozenset()


def start_of(b: Bounds) -> World:
    """The world in which nothing has happened."""
    x, y, z = b.messages
    return World(x=Life("joined", FIRST_TERM, 1, 1, 0, x), y=Life(messages=y), z=Life(messages=z))


def journal_of(w: World, name: str) -> Journal:
    """The journal of a life; an empty one where there is none."""
    return dict(w.journals).get(name, Journal())


def end_of(chain: tuple[Entry, ...]) -> int:
    """The offset behind the last row."""
    return sum(len(entry.rows) for entry in chain)


def needed(w: World) -> frozenset[str]:
    """The journals in the store that have slots and do not say of themselves that they are done."""
    return frozenset(name for name, journal in w.journals if journal.slots and not journal.done)


def highest(journal: Journal) -> Term | None:
    """The highest term of a journal's frames."""
    return max((slot.term for _, slot in journal.slots), default=None)


def lost(w: World) -> str | None:
    """An acknowledged message that nobody finds any more."""
    rows = {offset: message for entry in w.chain for offset, message in entry.rows}
    for name, (offset, message) in w.acked:
        if journal_of(w, name).done and rows.get(offset) != message:
            return f"lost: {name}'s journal is done, and its message {offset} is in no file"
    return None


def fault(w: World) -> str | None:
    """What must never be."""
    rows = [row for entry in w.chain for row in entry.rows]
    contents = dict(rows)
    if [offset for offset, _ in rows] != list(range(len(rows))):
        return f"the chain is not dense: {rows}"
    if any(entry.is_seal for entry in w.chain[:-1]):
        return "an entry behind a seal"
    if w.damage:
        return f"damage: {w.damage}"
    if found := lost(w):
        return found
    if not w.payload and any(message.startswith(REFERENCE) for _, (_, message) in w.acked):
        return "the upload that an acknowledged message names is deleted"
    places = [offset for _, (offset, _) in w.acked]
    if len(set(places)) < len(places):
        return f"an id has two contents: {sorted(w.acked)}"
    for name, (offset, message) in sorted(w.acked):
        if contents.get(offset, message) != message:
            return f"an id has two contents: {name}'s message {offset} is {contents[offset]} by now"
        if w.chain[-1].is_seal and offset >= end_of(w.chain):
            return f"lost: {name}'s message {offset} is behind the seal"
    return None
