"""The cluster's level while brokers join and two rises are requested: a world, and all steps from it.

There are three levels. Two joiners read level 1 alone: a `new` one, and a `blind` one, which compares no record when it
joins; all others read each level. Two requesters may crash at any time; the leader goes on with what they leave.
Between the join of a broker that does not read the level and its being ready, a guard acts first: that is an
assumption, not a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

RULES = {
    "refuse": "the level rises though a living broker is known not to read it",
    "mark first": "the store's object comes behind coordination's key",
    "announce first": "forms are written at the level as soon as joining brokers must read it",
    "announce what was read": "the announcement compares no record",
    "write what was read": "the last step compares no record",
    "join under the record": "a joining broker compares no record",
    "read behind the announcement": "nobody looks who has joined meanwhile",
    "wait a lease": "whoever lost its lease may not have noticed",
    "who announced waits": "who announced the level, and then finds nobody, waits for nothing",
    "a guard": "nobody ends the lease of one that comes when all is over",
    "ready under its own record": "a broker whose lease has ended gets ready",
}
_OVER = ("idle", "crashed", "refused", "done")


@dataclass(frozen=True)
class Record:
    """The cluster's record."""

    revision: int = 0
    level: int = 1
    written: int = 1


@dataclass(frozen=True)
class Joiner:
    """A broker that reads level 1 alone: out, looked, starting, ready; cut while it started, or a zombie; gone."""

    phase: str = "out"
    looked: int = 0

    @property
    def lives(self) -> bool:
        """Whether its record is there."""
        return self.phase in ("starting", "ready")


@dataclass(frozen=True)
class Riser:
    """One that raises the level `to`, or the leader, which goes on: 0."""

    to: int
    phase: str = "idle"
    known: Record = Record()
    waited: bool = False
    saw: bool = False  # somebody that does not read the level


@dataclass(frozen=True)
class World:
    """All of it. `peak` is the highest level that there was."""

    record: Record = Record()
    marked: int = 1
    peak: int = 1
    blind: Joiner = Joiner()
    new: Joiner = Joiner()
    risers: tuple[Riser, ...] = (Riser(2), Riser(3), Riser(0))
    fault: str | None = field(default=None)


Step = tuple[str, bool, World]  # what, whether it is bound to happen, the world after it


def steps(w: World, left_out: str = "") -> Iterator[Step]:
    """Every step from a world."""
    for kind in ("blind", "new"):
        yield from _joining(w, kind, left_out)
    for number, riser in enumerate(w.risers):
        for what, after in _rising(w, number, riser, left_out):
            yield f"{number}: {what}", riser.to == 0, after
        if riser.to and riser.phase not in _OVER:
            yield f"{number}: crashes", False, _with(w, number, phase="crashed")


def fault(w: World) -> str | None:
    """What must never be."""
    if w.fault:
        return w.fault
    if w.record.level < w.peak:
        return "the level fell"
    if w.marked < w.record.level:
        return "the store does not name the level"
    if w.record.written > 1 and w.blind.phase in ("ready", "zombie"):
        return "a blind broker acts among forms that it does not read"
    if w.record.written > 1 and w.new.phase in ("starting", "ready", "zombie"):
        return "a broker is a member among forms that it does not read"
    return None


def is_complete(w: World) -> bool:
    """Whether no rise is under way."""
    return w.record.level == w.record.written


def _joining(w: World, kind: str, left_out: str) -> Iterator[Step]:
    one: Joiner = getattr(w, kind)
    too_high = w.record.level > 1
    if one.phase == "out":
        now = Joiner("gone") if too_high else Joiner("looked", w.record.revision)
        yield f"{kind} looks", False, replace(w, **{kind: now})
    if one.phase == "looked":
        compares = kind == "new" and left_out != "join under the record"
        fits = not compares or one.looked == w.record.revision
        yield f"{kind} joins", False, replace(w, **{kind: Joiner("starting" if fits else "out")})
    if one.phase == "starting" and (not too_high or left_out == "a guard"):
        yield f"{kind} is ready", False, replace(w, **{kind: replace(one, phase="ready")})
    if one.phase == "starting" and too_high and left_out != "a guard":
        yield f"the guard ends {kind}", True, replace(w, **{kind: _ended(one)})
    if one.phase == "cut" and left_out == "ready under its own record":
        yield f"{kind} is ready all the same", False, replace(w, **{kind: replace(one, phase="zombie")})
    if one.lives or one.phase == "zombie":
        yield f"{kind} ends", False, replace(w, **{kind: Joiner("gone")})


def _rising(w: World, number: int, r: Riser, left_out: str) -> Iterator[tuple[str, World]]:
    record, late = w.record, w.blind.lives or w.new.lives
    if r.phase == "idle" and r.to:
        yield _check(w, number, r, late, left_out)
    if r.phase == "idle" and not r.to and record.written < record.level:
        yield "goes on", _with(w, number, phase="clearing", waited=False)
    if r.phase == "checked":
        marked = w.marked if left_out == "mark first" else max(w.marked, r.to)
        yield "marks", _with(replace(w, marked=marked), number, phase="marked")
    if r.phase == "marked":
        yield _announce(w, number, r, left_out)
    if r.phase == "clearing" and record.written == record.level:
        yield "is done", _with(w, number, phase="done" if r.to else "idle")
    elif r.phase == "clearing" and late and left_out != "read behind the announcement":
        ended = replace(w, blind=_ended(w.blind), new=_ended(w.new))
        yield "ends leases", _with(ended, number, phase="waiting", waited=False)
    elif r.phase == "clearing":
        yield (
            "finds nobody",
            _with(w, number, phase="cleared", known=record) if r.waited else _with(w, number, phase="waiting"),
        )
    if r.phase == "waiting":
        yield "waits", _with(w if left_out == "wait a lease" else _noticed(w), number, phase="clearing", waited=True)
    if r.phase == "cleared":
        fits = record.revision == r.known.revision or left_out == "write what was read"
        now = Record(record.revision + 1, r.known.level, r.known.level) if fits else record
        yield "writes", _with(replace(w, record=now), number, phase="clearing")


def _check(w: World, number: int, r: Riser, late: bool, left_out: str) -> tuple[str, World]:
    level = w.record.level
    if level > r.to or (late and level < r.to and left_out != "refuse"):
        return "refuses", _with(w, number, phase="refused")
    if level == r.to:
        return "goes on", _with(w, number, phase="clearing", waited=False)
    return "checks", _with(w, number, phase="checked", known=w.record, saw=late)


def _announce(w: World, number: int, r: Riser, left_out: str) -> tuple[str, World]:
    if w.record.revision != r.known.revision and left_out != "announce what was read":
        return "looks again", _with(w, number, phase="idle")
    written = r.to if left_out == "announce first" else r.known.written
    now = replace(w, record=Record(w.record.revision + 1, r.to, written), peak=max(w.peak, r.to))
    if r.saw:
        now = replace(now, fault="the level rose although a living broker was known not to read it")
    return "announces", _with(now, number, phase="clearing", waited=left_out == "who announced waits")


def _ended(one: Joiner) -> Joiner:
    """A joiner whose lease has ended: one that is ready goes on until it notices."""
    return replace(one, phase={"starting": "cut", "ready": "zombie"}.get(one.phase, one.phase))


def _noticed(w: World) -> World:
    def gone(one: Joiner) -> Joiner:
        return Joiner("gone") if one.phase == "zombie" else one

    return replace(w, blind=gone(w.blind), new=gone(w.new))


def _with(w: World, number: int, **changes: object) -> World:
    """The world with another riser; of one that is done nothing is remembered."""
    risers = list(w.risers)
    now = replace(risers[number], **changes)  # type: ignore[arg-type]
    risers[number] = Riser(now.to, now.phase) if now.phase in _OVER else now
    return replace(w, risers=tuple(risers))
