"""Every step that can happen next in the world of a mirrored journal (tests/support/model/mirror_world). Each may stay
away for ever: so no crash of X needs a step of its own."""

from collections.abc import Iterator

from seaweedq.journal.mirroring import may_change
from tests.support.model.mirror_world import (
    Bounds,
    Held,
    Key,
    Recoverer,
    World,
    acknowledged,
    ends,
    let_go,
    run_of,
    taken,
)

Step = tuple[str, World]


def steps(w: World, b: Bounds) -> Iterator[Step]:
    """What may happen next, and the world after it."""
    yield from mirrors(w, b)
    yield from store(w, b)
    if w.up:
        yield from owner(w, b)
        yield from changes(w, b)
    if not w.lease_ended:
        yield "X's lease ends", w._replace(lease_ended=True, recoverers=(Recoverer(),) * b.recoverers)
    for at, r in enumerate(w.recoverers):
        for what, after, then in recovery(w, r, b):
            yield f"R{at} {what}", _with_recoverer(after, at, then._replace(knows=r.knows))
        if w.accepted and at == 0 and not r.knows and r.step != "done":  # the leader, which reads the key again
            yield "R0 begins again, and knows", _with_recoverer(w, 0, Recoverer(knows=True))
        if w.crashes < b.crashes and r.step not in ("close", "done"):
            yield f"R{at} crashes", _with_recoverer(w, at, Recoverer())._replace(crashes=w.crashes + 1)
    if b.seeks:
        yield from seek(w, b)
    if b.accepts:
        yield from dispatcher(w)
        if not w.accepted and w.lease_ended and not w.recovered and _is_unknown(w):
            yield "the loss is accepted", w._replace(accepted=True)
    if w.recovered and w.y_at < 0:
        yield "Y opens the segment", w._replace(y_at=len(w.chain))
    elif w.y_at >= 0 and w.ending:
        if w.sealed < 0:
            yield "Y seals the segment", w._replace(sealed=len(w.chain))
    elif w.y_at == len(w.chain):
        yield "Y's file is written", w._replace(chain=(*w.chain, "y"))


def _with_recoverer(w: World, at: int, r: Recoverer) -> World:
    return w._replace(recoverers=(*w.recoverers[:at], r, *w.recoverers[at + 1 :]))


def _with_holding(w: World, at: int, held: Held) -> World:
    return w._replace(holdings=(*w.holdings[:at], held, *w.holdings[at + 1 :]))


def _is_unknown(w: World) -> bool:
    return bool(w.key.members) and all(w.holdings[at].gone for at in w.key.members)


def dispatcher(w: World) -> Iterator[Step]:
    """Delivers what X has answered, writes its cursor, and finds its epoch gone. What is sealed it reads from files."""
    if w.of_epoch == w.epoch:
        if w.up and not w.lease_ended and w.delivered < w.acked:
            yield f"messages below {w.acked} are delivered", w._replace(delivered=w.acked)
        if w.cursor != w.delivered:
            yield f"the cursor is written at {w.delivered}", w._replace(cursor=w.delivered)
    else:
        yield f"the dispatcher begins again at {w.cursor}", w._replace(delivered=w.cursor, of_epoch=w.epoch)


def seek(w: World, b: Bounds) -> Iterator[Step]:
    """Asks X for its end, and begins an epoch there, unless the topic's record was written since."""
    if w.sought == -1 and w.up and not w.lease_ended:
        yield f"a seek is told {w.acked}", w._replace(sought=w.acked)
    elif w.sought >= 0 and not w.renewed:
        begun = w._replace(cursor=w.sought, delivered=w.sought, epoch=w.epoch + 1, of_epoch=w.epoch + 1, sought=-2)
        yield f"the seek begins at {w.sought}", begun


def mirrors(w: World, b: Bounds) -> Iterator[Step]:
    """Calls arrive, also those of an X that is gone; mirrors crash."""
    stored = w.stored
    if b.without == "let go of acknowledged slots":
        stored = max(stored, len(w.putting))
    if b.without == "let go of written files" and w.flushing:
        stored = max(stored, w.flushing[0] + len(w.flushing[1]))
    for at, held in enumerate(w.holdings):
        if held.gone:
            continue
        if held.fenced and b.without == "a fence stays":
            yield f"the fence of h{at} ends", _with_holding(w, at, held._replace(fenced=False))
        if not held.fenced:
            for number in range(held.first, len(w.sent)):
                after = taken(held, w.stored, number, w.sent[number], b)
                if after != held:
                    yield f"h{at} is called with {number}", _with_holding(w, at, after)
            if held.first < stored:
                yield f"h{at} lets go below {stored}", _with_holding(w, at, let_go(held, stored))
        if b.without == "drop when told" and at not in w.key.members and at not in w.members:
            yield f"h{at} is dropped", _with_holding(w, at, held._replace(gone=True, dropped=True))
    if w.crashes < b.crashes:
        for mirror in sorted({held.mirror for held in w.holdings if not held.gone}):
            after = tuple(_crashed(held, b) if held.mirror == mirror else held for held in w.holdings)
            yield f"mirror {mirror} crashes", w._replace(holdings=after, crashes=w.crashes + 1)


def _crashed(held: Held, b: Bounds) -> Held:
    if b.without == "unknown, never nothing":
        return held._replace(first=0, rows=(), fenced=False)
    return held._replace(gone=True, rows=(), fenced=False)


def store(w: World, b: Bounds) -> Iterator[Step]:
    """Puts land, late ones too."""
    if len(w.putting) > len(w.slots) and not w.slots_fenced:
        yield f"a slot lands, below {len(w.putting)}", w._replace(slots=w.putting)
    if w.flushing and not w.landed:
        first, rows = w.flushing
        if len(w.chain) == first and w.sealed < 0:  # one who ends the segment opens it again, and seals behind it
            taken_from_y = w.y_at == first and not w.ending
            yield "X's file is written", w._replace(chain=w.chain + rows, landed=True, y_lost=taken_from_y)
    if w.asked is not None and not w.outcome:
        if w.key.state == "open":
            yield "the change lands", w._replace(key=w.key._replace(members=w.asked), outcome="landed")
        else:
            yield "the change is refused", w._replace(outcome="refused")


def owner(w: World, b: Bounds) -> Iterator[Step]:
    """X sends, answers, puts slots and files, and hears of them."""
    if len(w.sent) < b.commits:
        yield f"X sends {len(w.sent)}", w._replace(sent=(*w.sent, f"m{len(w.sent)}"))
    if b.without == "no number twice" and w.sent and w.acked < len(w.sent) and not w.given_again:
        yield "X gives the last number out again", w._replace(sent=(*w.sent[:-1], "again"), given_again=True)
    below = min(acknowledged(w, b), len(w.sent))
    if below > w.acked:
        yield f"X answers below {below}", w._replace(acked=below, answered=w.answered | set(w.sent[w.acked : below]))
    if b.slots and len(w.putting) < len(w.sent) and w.putting == w.slots[: len(w.putting)]:
        yield f"X puts a slot below {len(w.sent)}", w._replace(putting=w.sent)
    if w.slots_known < len(w.slots):
        yield f"X hears of slots below {len(w.slots)}", w._replace(slots_known=len(w.slots))
    if w.putting and w.slots_fenced and len(w.slots) < len(w.putting):
        yield "X hears that its slots are fenced", w._replace(up=False)
    if w.flushing and w.landed:
        end = w.flushing[0] + len(w.flushing[1])
        yield "X hears of its file", w._replace(flushing=None, landed=False, released=end)
    elif b.flushes and w.flushing is None and w.released < w.acked:
        yield "X flushes", w._replace(flushing=(w.released, w.sent[w.released : w.acked]))


def changes(w: World, b: Bounds) -> Iterator[Step]:
    """A mirror opens a holding; X asks for a set with it, or without another."""
    if w.asked is not None:
        if w.outcome == "landed":
            yield "X hears of the change", w._replace(members=w.asked, asked=None, outcome="")
        elif w.outcome == "refused":
            yield "X hears that its key is closed", w._replace(up=False)
        return
    if w.changes >= b.changes:
        return
    joined = [at for at, held in enumerate(w.holdings) if at not in w.members and not held.gone]
    known = {w.holdings[at].mirror for at in (*w.members, *joined) if not w.holdings[at].gone}
    if not joined:
        for mirror in set(range(b.mirrors)) - known:
            held = Held(mirror, first=w.stored, told=w.stored)
            yield f"mirror {mirror} opens h{len(w.holdings)}", w._replace(holdings=(*w.holdings, held))
    smaller = [tuple(at for at in w.members if at != out) for out in w.members]
    options = [*smaller, *((*one, new) for one in (*smaller, w.members) for new in joined)]
    for option in options:
        if may_change(ends(w, option), w.stored, w.acked) or b.without == "the new set has all":
            yield f"X asks for the set {option}", w._replace(asked=option, changes=w.changes + 1)


def recovery(w: World, r: Recoverer, b: Bounds) -> Iterator[tuple[str, World, Recoverer]]:
    """The next steps of one recovery."""
    key = w.key
    if r.step == "close":
        if key.state == "decided":
            if _may_replay(key, r, b):
                yield "finds it decided", w, Recoverer("replay", run=key.run)
        elif b.without == "close the key":
            yield "reads the set", w, r._replace(step="slots", members=key.members)
        else:
            closed = w._replace(key=key._replace(state="closed"))
            yield "closes the key", closed, r._replace(step="slots", members=key.members)
    elif r.step == "slots":
        fenced = w if b.without == "fence the slots" else w._replace(slots_fenced=True)
        yield "fences the slots", fenced, r._replace(step="fence", slots=w.slots)
    elif r.step == "fence":
        yield from _fences(w, r, b)
    elif r.step == "decide":
        if key.state == "decided":
            if _may_replay(key, r, b):
                run = r.run if b.without == "one copy counts" else key.run
                yield "finds another copy", w, Recoverer("replay", run=run)
        else:
            decided = w._replace(key=key._replace(state="decided", run=r.run, lossy=r.lossy))
            yield "decides", decided, Recoverer("replay", run=r.run)
    elif r.step == "late copy":
        run = run_of(r._replace(found=tuple(one for one in r.found if not w.holdings[one[0]].gone))) or ()
        yield "copies what is left", w._replace(key=key._replace(run=run)), Recoverer("replay", run=run)
    elif r.step == "replay":
        rows = [row for number, row in r.run if number >= len(w.chain)] if not w.recovered else []
        if not rows and r.knows and not w.recovered:
            yield "has the segment end", _ended(w, b), r._replace(step="renew")
        elif not rows:
            yield "is done", w._replace(recovered=True), Recoverer("done")
        else:
            first = next(number for number, _ in r.run if number >= len(w.chain))
            if w.sealed >= 0:
                yield "finds a seal", w._replace(recovered=True), Recoverer("done")
            elif first == len(w.chain):
                yield f"writes {rows}", w, r._replace(step="write", writing=(first, tuple(rows)))
    elif r.step == "renew":
        yield "renews the topic", w._replace(renewed=b.without != "renew the topic"), r._replace(step="lower")
    elif r.step == "lower":
        yield "lowers the cursor", _lowered(w, b), r._replace(step="tell")
    elif r.step == "tell":
        yield "is done", w._replace(recovered=True), Recoverer("done")
    elif r.step == "write":
        first, writing = r.writing
        if len(w.chain) == first and w.sealed < 0:
            written = w._replace(chain=w.chain + writing, y_lost=w.y_at == first and not w.ending)
            yield "has written", written, r._replace(step="replay", writing=(0, ()))
        else:
            yield "finds another file", w, r._replace(step="replay", writing=(0, ()))


def _may_replay(key: Key, r: Recoverer, b: Bounds) -> bool:
    return not key.lossy or r.knows or b.without == "a lossy copy says so"


def _ended(w: World, b: Bounds) -> World:
    """The segment is to end, unless Y has it by now: then another recovery has found everything."""
    return w if w.y_at >= 0 or b.without == "end before it is given" else w._replace(ending=True)


def _lowered(w: World, b: Bounds) -> World:
    if not w.ending:
        return w
    cursor = w.cursor if b.without == "lower the cursor" else min(w.cursor, len(w.chain))
    return w._replace(cursor=cursor, epoch=w.epoch if b.without == "a new epoch" else w.epoch + 1)


def _fences(w: World, r: Recoverer, b: Bounds) -> Iterator[tuple[str, World, Recoverer]]:
    if w.key.state == "decided":
        if _may_replay(w.key, r, b):
            yield "finds it decided", w, Recoverer("replay", run=w.key.run)
        return
    there = {at for at, *_ in r.found}
    for at, held in enumerate(w.holdings):
        if held.gone or at in there or (r.members and at not in r.members and not r.knows):
            continue
        as_of_now = (at, held.first, held.rows)
        if b.without == "as of the fence" and not r.asked:
            yield f"asks h{at}", w, r._replace(asked=(as_of_now,))
            continue
        known = next((one for one in r.asked if one[0] == at), as_of_now)
        after = _with_holding(w, at, held._replace(fenced=True))
        yield f"fences h{at}", after, r._replace(found=tuple(sorted((*r.found, known))))
    run = run_of(r)
    if run is None and b.without == "unknown, never empty" and all(w.holdings[at].gone for at in r.members):
        run = tuple(enumerate(r.slots))
    if run is None:
        return
    if b.without == "copied, then decided":
        decided = w._replace(key=w.key._replace(state="decided", run=run))
        yield "decides", decided, r._replace(step="late copy")
    elif all(not w.holdings[at].gone for at, *_ in r.found):
        lossy = bool(r.members) and not any(at in r.members for at, *_ in r.found)
        yield "copies", w, r._replace(step="decide", run=run, lossy=lossy)
    else:
        yield "sees that a mirror has gone", w, Recoverer()


def is_stuck(w: World, b: Bounds) -> bool:
    """A recovery cannot go on, although a holding of the set is there, or none is needed."""
    if w.recovered or not w.lease_ended or (w.flushing and not w.landed):
        return False
    if (w.accepted and not w.recoverers[0].knows) or any(True for r in w.recoverers for _ in recovery(w, r, b)):
        return False
    members = w.key.members
    return w.accepted or not members or any(not w.holdings[at].gone or w.holdings[at].dropped for at in members)
