"""A small world around one mirrored journal: its owner X, the mirrors, the store, recoveries, and the next owner Y.

A commit is one message of one segment, so a commit's number is its offset. A dispatcher delivers what X has answered,
and writes its cursor now and then. If the journal is unknown, somebody may accept the loss: then the leader recovers
what is left, has the segment end where its chain does, lowers the cursor in a new epoch, and only then gives the
segment to Y. Whatever is decided is decided by the code
(seaweedq/journal/mirroring): the span of a holding, what may be acknowledged, whether a change may be sent, and the
holding that a recovery takes.
"""

from typing import NamedTuple

from seaweedq.journal.mirroring import FencedHolding, Span, acknowledged_below, chosen_holding, held_below

RULES = {
    "unknown, never nothing": "a mirror that began again answers for what it had: with nothing",
    "behind the one before": "a holding takes a commit though it lacks the one before",
    "all mirrors": "X answers a commit that one mirror of the set has",
    "both sets in doubt": "X counts on the new set alone from the moment it asks for it",
    "the new set has all": "X asks for a set that lacks what it has answered",
    "close the key": "a recovery reads the set, and does not close it",
    "as of the fence": "a recovery asks for the run before it fences the holding",
    "a fence stays": "a fenced holding takes commits again",
    "fence the slots": "a recovery reads the slots, and does not fence them",
    "one copy counts": "a recovery replays its own copy, whatever the key names",
    "copied, then decided": "the key names the copy before it is in the store",
    "let go of acknowledged slots": "mirrors let go of what is on its way to a slot",
    "let go of written files": "mirrors let go of what is on its way to the chain",
    "drop when told": "a mirror drops a holding that no set names",
    "no number twice": "X gives a number out again whose commit was not answered",
    "unknown, never empty": "a recovery that finds no mirror of the set takes the slots for all",
    "a lossy copy says so": "a recovery that knows of no loss takes a lossy copy for all",
    "end before it is given": "the segment of a lost journal goes on under Y",
    "lower the cursor": "the cursor stays where it was above what is left",
    "a new epoch": "the cursor is lowered, and its dispatcher goes on",
    "renew the topic": "a seek that has asked X for its end begins its epoch behind the lowering",
}


class Held(NamedTuple):
    """A holding: its mirror, its commits from `first` on, and the end that its mirror has told X."""

    mirror: int
    first: int = 0
    rows: tuple[str, ...] = ()
    told: int = 0
    fenced: bool = False
    gone: bool = False
    dropped: bool = False  # gone, though its mirror has not crashed

    @property
    def end(self) -> int:
        return self.first + len(self.rows)


class Key(NamedTuple):
    """The key of the set. `run` has the commits that count, once it is decided."""

    state: str
    members: tuple[int, ...]
    run: tuple[tuple[int, str], ...] = ()
    lossy: bool = False


class Recoverer(NamedTuple):
    """A recovery: its next step, the holdings that it has fenced or asked, and its copy. It `knows` that the loss was
    accepted if it was when it began."""

    step: str = "close"
    knows: bool = False
    lossy: bool = False
    members: tuple[int, ...] = ()  # as it has read them
    found: tuple[tuple[int, int, tuple[str, ...]], ...] = ()
    asked: tuple[tuple[int, int, tuple[str, ...]], ...] = ()
    slots: tuple[str, ...] = ()
    run: tuple[tuple[int, str], ...] = ()
    writing: tuple[int, tuple[str, ...]] = (0, ())


class World(NamedTuple):
    """All of it. `answered` are the messages that X has acknowledged."""

    holdings: tuple[Held, ...]
    key: Key
    members: tuple[int, ...]  # as X knows them
    asked: tuple[int, ...] | None = None
    outcome: str = ""  # of the change, on its way to X: landed, refused
    sent: tuple[str, ...] = ()
    acked: int = 0
    answered: frozenset[str] = frozenset()
    putting: tuple[str, ...] = ()  # commits of a slot under way, from the first on
    slots: tuple[str, ...] = ()
    slots_known: int = 0
    slots_fenced: bool = False
    flushing: tuple[int, tuple[str, ...]] | None = None
    landed: bool = False  # the flush
    released: int = 0
    up: bool = True
    lease_ended: bool = False
    chain: tuple[str, ...] = ()
    recovered: bool = False
    recoverers: tuple[Recoverer, ...] = ()
    crashes: int = 0
    changes: int = 0
    given_again: bool = False
    y_at: int = -1
    y_lost: bool = False
    accepted: bool = False  # the loss
    ending: bool = False  # the segment is to be sealed, and takes nothing
    sealed: int = -1  # its end
    delivered: int = 0  # as the dispatcher knows
    cursor: int = 0  # as it was written
    epoch: int = 0
    of_epoch: int = 0  # the dispatcher's
    renewed: bool = False  # the topic's record
    sought: int = -1  # the end that a seek was told; -2: it has begun there

    @property
    def stored(self) -> int:
        return max(self.slots_known, self.released)


class Bounds(NamedTuple):
    """`mirrors` are there, of which the first `start` are in the set."""

    mirrors: int = 2
    start: int = 2
    commits: int = 1
    crashes: int = 1
    changes: int = 1
    recoverers: int = 1
    flushes: bool = False
    slots: bool = True
    accepts: bool = False
    seeks: bool = False
    without: str = ""


def start_of(b: Bounds) -> World:
    """X has its first set, and has sent nothing."""
    members = tuple(range(b.start))
    return World(tuple(Held(mirror) for mirror in members), Key("open", members), members)


def ends(w: World, members: tuple[int, ...]) -> list[int]:
    """What X knows of the ends of a set."""
    return [w.holdings[member].told for member in members]


def acknowledged(w: World, b: Bounds) -> int:
    """The number below which X answers."""
    now, asked = ends(w, w.members), None if w.asked is None else ends(w, w.asked)
    if b.without == "all mirrors":
        now = [max(now)] if now else now
    if b.without == "both sets in doubt" and asked is not None:
        return held_below(asked, w.stored)
    return acknowledged_below(now, asked, w.stored)


def taken(held: Held, stored: int, first: int, message: str, b: Bounds) -> Held:
    """A holding behind a call that brings one commit, and tells what is stored."""
    span = Span(held.first, held.end).after(stored, first, first + 1)
    rows = held.rows[span.first - held.first :]
    if b.without == "behind the one before" and first > span.first + len(rows):
        rows += ("",) * (first - span.first - len(rows)) + (message,)
    elif span.end > span.first + len(rows):
        rows += (message,)
    return held._replace(first=span.first, rows=rows, told=max(held.told, span.first + len(rows)))


def let_go(held: Held, stored: int) -> Held:
    """A holding behind a call that brings nothing."""
    span = Span(held.first, held.end).after(stored, held.end, held.end)
    return held._replace(first=span.first, rows=held.rows[span.first - held.first :], told=max(held.told, span.end))


def run_of(r: Recoverer) -> tuple[tuple[int, str], ...] | None:
    """The commits that a recovery finds; None if no holding of the set is among what it has fenced, unless it knows
    that the loss was accepted."""
    by_id = {str(at): (first, rows) for at, first, rows in r.found}
    fenced = [FencedHolding(str(at), first, first + len(rows)) for at, first, rows in r.found]
    chosen = chosen_holding({str(member) for member in r.members}, fenced, r.knows)
    if chosen is None and r.members and not r.knows:
        return None
    run = list(enumerate(r.slots))
    if chosen is not None:
        first, rows = by_id[chosen.holding]
        run += [(first + at, row) for at, row in enumerate(rows) if first + at >= len(r.slots) and row]
    return tuple(run)


def fault(w: World) -> str | None:
    """What must never be."""
    if len(set(w.chain)) < len(w.chain):
        return f"a message twice: {w.chain}"
    if w.y_lost:
        return "the name of Y's file was taken by one that had lost the segment"
    if w.y_at >= 0 and not w.ending and w.accepted and w.y_at < w.acked:
        return f"Y gives offset {w.y_at} out again, which X has answered"
    if w.sealed >= 0 and (above := max(w.cursor, w.delivered if w.of_epoch == w.epoch else 0)) > w.sealed:
        return f"a cursor at {above} stands above the end {w.sealed}"
    if w.recovered and not w.accepted and (lost := w.answered - set(w.chain)):
        return f"answered and lost: {sorted(lost)}"
    return None
