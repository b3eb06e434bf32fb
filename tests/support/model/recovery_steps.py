"""What can happen next in a world: one function for each of those who act, each yields (what, the world after it)."""

from collections.abc import Iterator
from dataclasses import replace

from seaweedq.segments.terms import Tenure
from tests.support.model.recovery_world import (
    MARK,
    SEAL,
    Bounds,
    Broker,
    Object,
    Put,
    Recoverer,
    Sent,
    Successor,
    World,
    X,
    end_of,
    marked_in,
    record_of,
    rows_in,
    run_of,
    verdict_on,
    with_object,
    without,
    without_marks,
)

Steps = Iterator[tuple[str, World]]


def steps(w: World, b: Bounds) -> Steps:
    """All that can happen next."""
    if not w.x.stopped:
        yield from x_takes(w, b)
        yield from x_acknowledges(w, b)
        yield from x_flushes(w, b)
        yield from x_deletes(w, b)
        yield from x_moves(w, b)
    yield from puts_land(w, b)
    yield from slots_are_lost(w, b)
    yield from recovery(w, b)
    yield from successor(w, "Y", w.y)
    yield from successor(w, "Z", w.z)


def x_takes(w: World, b: Bounds) -> Steps:
    x = w.x
    if x.accepted < b.messages and not x.is_sealing and not x.moving:
        row = (x.accepted, f"m{x.accepted}{'' if x.failed is None else ' again'}")
        yield "X accepts", _x(w, accepted=x.accepted + 1, waiting=(*x.waiting, row), is_at_rest=False)
        if b.left_out != "journal the seal":
            sealed = (*x.waiting, (x.accepted, SEAL))
            yield "X seals", _x(w, is_sealing=True, waiting=sealed, is_at_rest=False)
        elif not (x.waiting or x.sent or x.tail or x.flushing):
            put = Put("chain", x.next_entry, Object("X", ((x.accepted, SEAL),)))
            yield "X seals", replace(_x(w, is_sealing=True), flying=w.flying | {put})
    if b.marks and not (x.marked or x.is_sealing or x.moving or x.waiting or x.sent or x.tail or x.flushing):
        yield _x_marks(w, b)
    if x.failed and x.failed[1]:
        if not any(slot.is_fence for _, slot in w.journal):  # whose folder is locked cuts nothing off
            cut = replace(dict(w.journal)[x.failed[0], 0], rows=())
            journal = with_object(without(w.journal, (x.failed[0], 0)), (x.failed[0], 0), cut)
            yield "X's journal cuts off what failed", replace(_x(w, failed=(x.failed[0], False)), journal=journal)
        return
    is_idle = x.released == x.next_slot and not x.is_at_rest and not x.waiting
    if (x.waiting or is_idle) and len(x.sent) < b.window:
        acknowledged = min((slot.number for slot in x.sent), default=x.next_slot)
        put = Put("journal", (x.next_slot, 0), Object("X", x.waiting, x.released, acknowledged=acknowledged))
        sent = (*x.sent, Sent(x.next_slot, x.waiting, x.released))
        after = _x(w, waiting=(), sent=sent, next_slot=x.next_slot + 1, is_at_rest=is_idle)
        yield f"X puts slot {x.next_slot}", replace(after, flying=w.flying | {put})


def _x_marks(w: World, b: Bounds) -> tuple[str, World]:
    """An idle segment gets an entry without rows, so that retention can take the one before."""
    name = w.x.next_entry
    if b.left_out == "journal the mark":
        put = Put("chain", name, Object("X"))
        return "X puts an entry without rows", replace(
            _x(w, marked=True, flushing=((name, ()),)), flying=w.flying | {put}
        )
    mark = (w.x.accepted, f"{MARK}{name[0]}")
    return "X marks", _x(w, marked=True, waiting=(mark,), is_at_rest=False)


def x_acknowledges(w: World, b: Bounds) -> Steps:
    x = w.x
    for at, slot in enumerate(x.sent):
        name = (slot.number, 0)
        if ("journal", name, False) in w.heard:
            yield "the journal fences X", _x(w, stopped=True)
        if ("journal", name, True) in w.heard and not slot.is_durable:
            sent = (*x.sent[:at], replace(slot, is_durable=True), *x.sent[at + 1 :])
            yield f"X hears of slot {slot.number}", replace(w, x=_settled(replace(x, sent=sent), b))
            if b.fails and x.failed is None and slot.rows and not x.waiting:
                after = _x(w, sent=(), accepted=slot.rows[0][0], failed=(slot.number, True))
                yield f"X hears that slot {slot.number} failed", after


def _settled(x: Broker, b: Bounds) -> Broker:
    """With all slots acknowledged that may be."""
    for slot in x.sent:
        if slot.is_durable:
            x = replace(
                x,
                sent=tuple(each for each in x.sent if each != slot),
                acked=x.acked | {message for _, message in without_marks(slot.rows)},
                tail=tuple(sorted((*x.tail, *((row, slot.number) for row in slot.rows)))),
                stated=slot.released,
                released=x.released if slot.rows else slot.number + 1,
            )
        elif b.left_out != "acknowledge in order":
            break
    return x


def x_flushes(w: World, b: Bounds) -> Steps:
    x = w.x
    taken = {row for _, part in x.flushing for row in part}
    part = tuple(row for row in x.tail if row not in taken)
    if b.left_out == "flush what is acknowledged":
        part += tuple((row, s.number) for s in x.sent for row in s.rows if (row, s.number) not in taken)
    if part and len(x.flushing) < (2 if b.left_out == "one put to a chain" else 1):
        name = x.next_entry
        if x.flushing:
            (sequence, first), before = x.flushing[-1]
            name = (sequence + 1, first + len(without_marks(row for row, _ in before)))
        put = Put("chain", name, Object("X", without_marks(row for row, _ in part)))
        after = _x(w, flushing=(*x.flushing, (name, part)))
        if b.left_out == "release what is flushed":
            after = _x(after, released=_needed(x, tuple(row for row in x.tail if row not in part)))
        yield "X flushes", replace(after, flying=w.flying | {put})
    if x.flushing:
        name, part = x.flushing[0]
        if ("chain", name, True) in w.heard:
            tail = tuple(row for row in x.tail if row not in part)
            entry = (name[0] + 1, name[1] + len(without_marks(row for row, _ in part)))
            released = _needed(x, tail)
            yield "X has flushed", _x(w, flushing=x.flushing[1:], tail=tail, next_entry=entry, released=released)
        elif ("chain", name, False) in w.heard:
            yield "the chain fences X", _x(w, stopped=True)


def _needed(x: Broker, tail: tuple[tuple[tuple[int, str], int], ...]) -> int:
    return max(x.released, min([slot for _, slot in tail] + [slot.number for slot in x.sent], default=x.next_slot))


def x_deletes(w: World, b: Bounds) -> Steps:
    below = w.x.released if b.left_out == "newest stays" else w.x.stated
    for name, _ in w.journal:
        if name[0] < below:
            yield f"X deletes slot {name[0]}", replace(w, journal=without(w.journal, name))


def x_moves(w: World, b: Bounds) -> Steps:
    """Hold, be quiet, flush, and one transaction."""
    x = w.x
    if not x.moving and not x.is_sealing:
        yield "X holds the segment", _x(w, moving=True)
    if not x.moving or (w.owner != "X" and b.left_out != "move while alive") or w.owner == "Y":
        return
    is_quiet = not (x.waiting or x.sent) or b.left_out == "move when quiet"
    if x.failed and x.failed[1] and "cut off what failed" not in b.lines:
        return
    is_flushed = not (x.tail or x.flushing) or b.left_out == "move when flushed"
    is_alive = not w.lease_ended or b.left_out == "move while alive"
    if is_quiet and is_flushed and is_alive:
        yield "X gives the segment to Y", replace(w, owner="Y", number=w.number + 1)


def puts_land(w: World, b: Bounds) -> Steps:
    for put in w.flying:
        before = w.journal if put.where == "journal" else w.chain
        objects = with_object(before, put.name, put.content)
        heard = w.heard
        if put.content.writer == "X":
            heard |= {(put.where, put.name, dict(objects)[put.name] == put.content)}
            if put.where == "chain" and any(name[0] == put.name[0] and name != put.name for name, _ in before):
                objects, heard = before, w.heard | {(put.where, put.name, False)}
        after = replace(w, heard=heard, **{put.where: objects})
        what = f"{put.content.writer}'s put of {put.where} {put.name[0]} lands"
        yield what, replace(after, flying=w.flying - {put})
        if b.twice and objects != before:
            yield f"{what}, and will again", after


def slots_are_lost(w: World, b: Bounds) -> Steps:
    """The store loses a slot that counts, and that others state; not the only one, whose loss looks like a removal."""
    if w.losses < b.losses and not w.recovered:
        run = run_of(w.journal)
        needed = [name for name, slot in w.journal if name[0] >= run.first and not slot.is_fence]
        for name in needed if len(needed) > 1 else ():
            if name[0] < run.reached:
                lost = replace(w, journal=without(w.journal, name), losses=w.losses + 1)
                yield f"slot {name[0]} is lost", lost


def recovery(w: World, b: Bounds) -> Steps:
    if not w.lease_ended:
        yield "X's lease ends", replace(w, lease_ended=True, recoverers=(Recoverer(),) * b.recoverers)
    for i, r in enumerate(w.recoverers):
        for what, world, after in _recoverer(w, r, f"R{i}", b):
            yield f"R{i} {what}", replace(world, recoverers=(*w.recoverers[:i], after, *w.recoverers[i + 1 :]))
        if w.crashes < b.crashes and r != Recoverer():
            fresh = (*w.recoverers[:i], Recoverer(), *w.recoverers[i + 1 :])
            yield f"R{i} crashes", replace(w, recoverers=fresh, crashes=w.crashes + 1)


def _recoverer(w: World, r: Recoverer, me: str, b: Bounds) -> Iterator[tuple[str, World, Recoverer]]:
    slots, run = dict(w.journal), r.run or run_of(w.journal, b.left_out != "state what was acknowledged")
    if r.step == "look":
        if run.is_torn and b.left_out != "miss what was acknowledged":
            yield "looks: a slot is missing", w, replace(r, step="doubt")
        elif run.fence is None:
            yield "looks", w, replace(r, step="fence", run=run)
        elif run.fence == r.known:
            yield "looks: the fence holds", w, replace(r, step="read", run=run)
        else:
            yield "looks: a fence is there", w, replace(r, known=run.fence)
    elif r.step == "fence":
        journal = with_object(w.journal, (run.end, 0), Object(me, is_fence=True))
        step = "read" if b.left_out == "look again" and journal != w.journal else "look"
        yield (
            f"fences {run.end}",
            replace(w, journal=journal),
            replace(r, step=step, known=run.end, run=r.run if step == "read" else None),
        )
    elif r.step == "read":
        end = max((name[0] + 1 for name in slots), default=0) if b.left_out == "stop at a gap" else run.end
        found = [(name, slots[name]) for n in range(run.first, end) if (name := (n, 0)) in slots]
        step = "give" if b.left_out == "give last" else "work in"
        gone = len(found) < end - run.first or any(slot.is_fence for _, slot in found)
        if b.left_out != "stop at a gap" and gone:  # another recovery deletes, or a slot was lost
            found = found[: next((i for i, n in enumerate(range(run.first, end)) if (n, 0) not in slots), None)]
            step = step if b.left_out == "ask the key" else "doubt"
        rows = rows_in(found) if step != "doubt" else ()
        yield "reads", w, replace(r, step=step, rows=rows, run=None, record=record_of(w))
    elif r.step == "doubt":
        if w.recovered:
            yield "asks the key: another has finished", w, replace(r, step="done")
        else:
            yield "asks the key: that is damage", w, replace(r, step="damaged")
    elif r.step in ("work in", "wait"):
        yield from _works_in(w, r, me, b)
    elif r.step == "give":
        owner = "Z" if w.owner == "X" or b.left_out == "compare the owner" else w.owner
        if b.left_out == "give last":
            yield "gives too early", _given(w, owner), replace(r, step="work in")
        else:
            yield "gives", replace(_given(w, owner), recovered=True), replace(r, step="done", rows=())
    elif r.step == "done":
        newest = max((name for name, slot in w.journal if slot.is_fence), default=None)
        for name in slots:
            if name != newest or b.left_out == "fence stays":
                yield f"deletes slot {name[0]}", replace(w, journal=without(w.journal, name)), r


def _works_in(w: World, r: Recoverer, me: str, b: Bounds) -> Iterator[tuple[str, World, Recoverer]]:
    if r.step == "wait":
        if r.entry in dict(w.chain):  # its own put, or another's
            yield "hears", w, replace(r, step="work in")
        return
    end = end_of(w.chain)
    found = [(row, verdict_on(w, row, r.record, b)) for row in without_marks(r.rows)]
    if any(verdict == "damage" for _, verdict in found) and r.record != record_of(w):
        yield "reads the record again", w, replace(r, record=record_of(w))
        return
    if any(verdict == "damage" for _, verdict in found):
        yield "finds rows that would be lost", w, replace(r, step="damaged")
        return
    rows = tuple(row for row, verdict in found if verdict == "append")
    marks = marked_in(r.rows) if r.record == X else ()
    is_due = any(sequence >= end[0] for sequence in marks)  # done is a mark when any entry has its sequence
    if b.left_out == "name the entry":
        is_due = bool(marks) and not r.has_put
    if rows or is_due:
        put = Put("chain", end, Object(me, rows))
        after = replace(r, step="wait", entry=end, has_put=True)
        yield f"puts entry {end[0]}", replace(w, flying=w.flying | {put}), after
    elif b.left_out == "give last":
        yield "is done", replace(w, recovered=True), replace(r, step="done", rows=())
    else:
        yield "has worked all in", w, replace(r, step="give")


def successor(w: World, name: str, s: Successor) -> Steps:
    """The new owner opens the segment unless it is sealed, acknowledges a message, flushes it."""
    sealed = SEAL in {message for _, message in rows_in(w.chain)}
    if w.owner == name and s.opened_at is None and not sealed:
        yield f"{name} opens", _successor(w, name, Successor(end_of(w.chain), w.number))
    if s.opened_at is not None and not s.acked:
        yield f"{name} acknowledges", _successor(w, name, replace(s, acked=True))
    if s.opened_at is not None and s.acked and not s.flushed and s.opened_at[0] not in {n[0] for n, _ in w.chain}:
        row = (s.opened_at[1], f"of {name}")
        entry = Object(name, (row,), tenure=Tenure((1, s.number), name))
        chain = with_object(w.chain, s.opened_at, entry)
        yield f"{name} flushes", replace(_successor(w, name, replace(s, flushed=True)), chain=chain)


def _given(w: World, owner: str) -> World:
    return w if owner == w.owner else replace(w, owner=owner, number=w.number + 1)


def _x(w: World, **changes: object) -> World:
    return replace(w, x=replace(w.x, **changes))  # type: ignore[arg-type]


def _successor(w: World, name: str, s: Successor) -> World:
    return replace(w, y=s) if name == "Y" else replace(w, z=s)
