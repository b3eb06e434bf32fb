"""What a broker can do next: open, take, flush, commit, hold, seal, run the transaction, give, move."""

from collections.abc import Iterator
from itertools import product

from tests.support.model.split_world import (
    NAMES,
    NOWHERE,
    Bounds,
    Entry,
    Intent,
    Opened,
    Place,
    Record,
    World,
    end_of,
    is_sealed,
    table_of,
    with_at,
    with_intent,
    with_opened,
    with_record,
)

Steps = Iterator[tuple[str, bool, World]]  # what, whether it is bound to happen, the world after it
SEEN_BEFORE = {
    "commit what it owns",
    "commit the plan it saw",
}  # without these a broker acts on a plan that it saw once


def broker_steps(w: World, b: Bounds) -> Steps:
    """All that brokers can do next. What the dead do may happen, but nothing may depend on it."""
    for x in range(b.brokers):
        for what, bound, after in _steps_of(w, b, x):
            yield f"{NAMES[x]} {what}", bound and x in w.alive, after


def _steps_of(w: World, b: Bounds, x: int) -> Steps:
    yield from _hears(w, b, x)
    if x in w.stopped:
        return
    for segment, known in enumerate(w.opened[x]):
        if known is None:
            yield from _opens(w, b, x, segment)
        else:
            yield from _takes(w, b, x, segment, known)
            yield from _flushes(w, x, segment, known)
            yield from _holds(w, b, x, segment, known)
            yield from _seals(w, b, x, segment, known)
    yield from _commits(w, b, x)
    yield from _ends(w, b, x)
    yield from _gives(w, b, x)
    if b.moves:
        yield from _moves(w, b, x)


def _opens(w: World, b: Bounds, x: int, segment: int) -> Steps:
    """A sealed chain goes to the transaction, a committed intent to the seal; a successor waits for the seals."""
    record, chain = w.records[segment], w.chains[segment]
    if record is None or record.owner != x:
        return
    known = Opened("taking", *end_of(chain), table_of(w, b, segment))
    if is_sealed(chain) and "look for a seal" not in b.left_out:
        known = known._replace(doing="sealed", plan=chain[-1].seal)
    elif record.committed and "a committed one goes on" not in b.left_out:
        known = known._replace(doing="held", plan=record.intent.plan)
    elif segment in b.news and not chain:
        if not all(is_sealed(w.chains[old]) and old not in w.expired for old in b.olds):
            return
        if "inherit the table" in b.left_out:
            known = known._replace(table=NOWHERE)
    yield f"opens {segment}", True, with_opened(w, x, segment, known)


def _takes(w: World, b: Bounds, x: int, segment: int, known: Opened) -> Steps:
    """What the table knows is a duplicate, anything else a new message; it goes to the journal."""
    takes = known.doing == "taking" or ("hold" in b.left_out and known.doing in ("held", "sealed"))
    if not takes or w.commits[x] is not None:
        return
    for message in b.messages_of(segment):
        if all(place.message != message for place in known.table):
            place = Place(message, segment, known.first + len(known.tail))
            yield f"takes {message} in {segment}", True, w._replace(commits=with_at(w.commits, x, place))


def _hears(w: World, b: Bounds, x: int) -> Steps:
    """A commit becomes durable, which acknowledges it; or is refused; or seems to fail."""
    place = w.commits[x]
    if place is None:
        return
    after = w._replace(commits=with_at(w.commits, x, None))
    if x in w.fenced:
        yield "learns that it is fenced", True, stopped(after, x)
        return
    durable = after._replace(
        journals=with_at(w.journals, x, w.journals[x] | {place}), failed=with_at(w.failed, x, None)
    )
    if known := w.opened[x][place.segment]:
        known = known._replace(tail=(*known.tail, place.message), table=known.table | {place})
        durable = with_opened(durable, x, place.segment, known)
    yield f"has {place.message} at {place.segment}-{place.offset}", True, durable
    if b.failures:
        yield f"fails to commit {place.message}", False, after._replace(failed=with_at(w.failed, x, place))


def stopped(w: World, x: int) -> World:
    """With a broker that knows that it is fenced."""
    return w._replace(stopped=w.stopped | {x}, opened=with_at(w.opened, x, (None,) * len(w.records)))


def _flushes(w: World, x: int, segment: int, known: Opened) -> Steps:
    if known.doing == "taking" and known.tail and known.flush is None:
        entry = Entry(known.sequence, known.first, known.tail, known.table)
        yield f"flushes {segment}", True, _with_put(w, x, segment, known, entry)


def _holds(w: World, b: Bounds, x: int, segment: int, known: Opened) -> Steps:
    """The owner sees that the intent is committed, by itself or by an owner before it."""
    record = w.records[segment]
    if known.doing != "taking" or record.intent is None or record.owner != x:
        return
    plan, committed = record.intent
    if committed or "commit first" in b.left_out:
        held = known._replace(doing="held", plan=plan)
        yield f"holds {segment} for plan {plan}", True, with_opened(w, x, segment, held)
    elif b.left_out & SEEN_BEFORE and known.plan != plan:
        yield f"sees plan {plan}", True, with_opened(w, x, segment, known._replace(plan=plan))


def _seals(w: World, b: Bounds, x: int, segment: int, known: Opened) -> Steps:
    if known.doing == "held" and known.flush is None and (_is_quiet(w, x, segment) or "seal when quiet" in b.left_out):
        tail = () if "seal the whole tail" in b.left_out else known.tail
        table = NOWHERE if "seal with the table" in b.left_out else known.table
        entry = Entry(known.sequence, known.first, tail, table, known.plan)
        yield f"seals {segment} for plan {known.plan}", True, _with_put(w, x, segment, known, entry)


def _is_quiet(w: World, x: int, segment: int) -> bool:
    commit = w.commits[x]
    return commit is None or commit.segment != segment


def _with_put(w: World, x: int, segment: int, known: Opened, entry: Entry) -> World:
    after = with_opened(w, x, segment, known._replace(flush=entry))
    return after._replace(flying=w.flying | {(x, segment, entry)})


def _commits(w: World, b: Bounds, x: int) -> Steps:
    """One transaction over all records: each has the planned intent, and is this broker's, which is alive."""
    if x not in w.alive and "commit while alive" not in b.left_out:
        return
    for plan in {record.intent.plan for old in b.olds if (record := w.records[old]).intent and not record.committed}:
        mine = tuple(
            old
            for old in b.olds
            if w.records[old].intent == Intent(plan, False)
            and (w.records[old].owner == x or "commit what it owns" in b.left_out)
        )
        if "commit all at once" in b.left_out:
            for old in mine:
                yield f"commits {old} alone", True, with_intent(w, (old,), Intent(plan, True))
        elif len(mine) == b.old:
            yield from _commits_plan(w, b, x, plan)


def _commits_plan(w: World, b: Bounds, x: int, plan: int) -> Steps:
    after = with_intent(w, b.olds, Intent(plan, True))
    if b.left_out & SEEN_BEFORE:
        for old in b.olds:
            known = w.opened[x][old]
            seen = known.plan if known and known.doing == "taking" else 0
            if not seen or (seen != plan and "commit the plan it saw" not in b.left_out):
                return
            after = with_opened(after, x, old, known._replace(doing="held"))
    yield f"commits plan {plan}", True, after


def _ends(w: World, b: Bounds, x: int) -> Steps:
    """One transaction over all records, as they were seen, when all chains are sealed; this broker is alive, and the
    successors' owners are."""
    ready = ("held", "sealed") if "seal, then the transaction" in b.left_out else ("sealed",)
    known = [w.opened[x][old] for old in b.olds]
    sealed = [each is not None and each.doing in ready for each in known]
    if not (any(sealed) if "seal all, then the transaction" in b.left_out else all(sealed)):
        return
    plan = next(each.plan for each, is_ready in zip(known, sealed, strict=True) if is_ready)
    as_seen = all(w.records[old] == Record(x, Intent(plan, True)) for old in b.olds)
    if not (as_seen or "compare the records" in b.left_out):
        return
    if not (x in w.alive or "end while alive" in b.left_out):
        return
    hosts = range(b.brokers) if "successors to the living" in b.left_out else w.alive
    for owners in product(hosts, repeat=b.new):
        records = (*(Record(None, ended=plan) for _ in b.olds), *(Record(owner, begun=plan) for owner in owners))
        after = w._replace(records=records)
        if "compare the records" not in b.left_out:
            after = after._replace(opened=with_at(w.opened, x, (*(None for _ in b.olds), *w.opened[x][b.old :])))
        yield f"ends plan {plan}, successors to {', '.join(NAMES[owner] for owner in owners)}", True, after


def _gives(w: World, b: Bounds, x: int) -> Steps:
    """The halves of a committed merge come to one owner, the first one's."""
    if b.old == 1 or x not in w.alive or "give to the first" in b.left_out:
        return
    first, second = w.records[0], w.records[1]
    if second.owner != x or not second.committed or first.owner == x or first.owner not in w.alive:
        return
    if _is_at_rest(w, x, 1):
        after = with_opened(with_record(w, 1, second._replace(owner=first.owner)), x, 1, None)
        yield f"gives 1 to {NAMES[first.owner]}", True, after
        if "the first stays" in b.left_out and _is_at_rest(w, first.owner, 0):
            after = with_opened(with_record(after, 0, first._replace(owner=x)), first.owner, 0, None)
            yield f"gives 1 to {NAMES[first.owner]} and gets 0 for it", True, after


def _moves(w: World, b: Bounds, x: int) -> Steps:
    """A segment goes to another living broker; the same transaction undoes a planned intent in all records."""
    for segment in b.olds:
        record = w.records[segment]
        stays = record.committed and "committed stays" not in b.left_out
        if record.owner != x or x not in w.alive or stays or not _is_at_rest(w, x, segment):
            continue
        undoes = record.intent is not None and not record.committed and "a move undoes" not in b.left_out
        for target in w.alive - {x}:
            after = with_intent(w, b.olds, None) if undoes else w
            after = with_record(after, segment, after.records[segment]._replace(owner=target))
            yield f"moves {segment} to {NAMES[target]}", False, with_opened(after, x, segment, None)


def _is_at_rest(w: World, x: int, segment: int) -> bool:
    """Whether nothing of a broker's is under way, and all that it took is in the chain."""
    known = w.opened[x][segment]
    return known is None or (_is_quiet(w, x, segment) and not known.tail and known.flush is None)
