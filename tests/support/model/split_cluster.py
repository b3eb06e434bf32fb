"""What can happen next beside the brokers' own steps: leases end, the balancer plans and undoes, entries land,
retention removes files, the leader hands over, recoveries work journals in."""

from collections.abc import Iterator

from tests.support.model.split_brokers import Steps, broker_steps, stopped
from tests.support.model.split_world import (
    NAMES,
    NOWHERE,
    Bounds,
    Entry,
    Intent,
    Opened,
    Record,
    Recovery,
    World,
    end_of,
    is_sealed,
    table_of,
    with_at,
    with_entry,
    with_intent,
    with_opened,
    with_record,
)


def steps(w: World, b: Bounds) -> Steps:
    """All that can happen next: what, whether it is bound to happen, the world after it."""
    for x in range(b.deaths):
        if x in w.alive:
            yield f"{NAMES[x]}'s lease ends", False, w._replace(alive=w.alive - {x})
    yield from _plans(w, b)
    yield from broker_steps(w, b)
    yield from _lands(w, b)
    if b.retention:
        yield from _expires(w, b)
    yield from _hands_over(w, b)
    for i, r in enumerate(w.recoveries):
        yield from _recovers(w, b, i, r)


def _plans(w: World, b: Bounds) -> Steps:
    """The balancer plans for one owner's segments, and undoes, at will; a plan that has come to two owners must go."""
    intents = {w.records[old].intent for old in b.olds}
    owners = {w.records[old].owner for old in b.olds}
    is_free = intents == {None} or "plan what is not locked" in b.left_out
    if w.plans < b.plans and is_free and len(owners) == 1 and None not in owners:
        planned = with_intent(w, b.olds, Intent(w.plans + 1, False))
        yield f"plan {w.plans + 1}", False, planned._replace(plans=w.plans + 1)
    for intent in intents - {None}:
        if intent.committed and "undo what is planned" not in b.left_out:
            continue
        mine = tuple(old for old in b.olds if w.records[old].intent == intent)
        if len(mine) == b.old or "commit all at once" in b.left_out:
            must = len(owners) > 1 and "undo what two owners have" not in b.left_out
            yield f"plan {intent.plan} is undone", must, with_intent(w, mine, None)


def _lands(w: World, b: Bounds) -> Steps:
    """An entry on its way to a chain gets its name, or finds it taken; its broker hears of it."""
    for put in w.flying:
        x, segment, entry = put
        after, is_free = with_entry(w._replace(flying=w.flying - {put}), segment, entry)
        known = w.opened[x][segment]
        if known and known.flush == entry:
            if is_free:
                after = with_opened(after, x, segment, _flushed(known, entry))
            else:
                after = _beaten(after, b, x, segment, known, entry)
        what = "lands" if is_free else "finds its name taken"
        yield f"{NAMES[x]}'s entry {entry.sequence} of {segment} {what}", x in w.alive, after


def _flushed(known: Opened, entry: Entry) -> Opened:
    count = len(entry.messages)
    return known._replace(
        doing="sealed" if entry.seal else known.doing,
        sequence=known.sequence + 1,
        first=known.first + count,
        tail=known.tail[count:],
        flush=None,
    )


def _beaten(w: World, b: Bounds, x: int, segment: int, known: Opened, entry: Entry) -> World:
    """Another has the name: its seal is as good as one's own; anything else means that this broker is fenced."""
    winner = next(there for there in w.chains[segment] if there.name == entry.name)
    if not (entry.seal and winner.seal):
        return with_opened(w, x, segment, None) if "who loses to rows stops" in b.left_out else stopped(w, x)
    doing = "gave up" if "the loser reads" in b.left_out else "sealed"
    return with_opened(w, x, segment, known._replace(doing=doing, plan=winner.seal, flush=None))


def _expires(w: World, b: Bounds) -> Steps:
    """Retention takes what is sealed; the last entry only when each successor has an entry, and a table, of its own."""
    if all(w.chains[new] for new in b.news) or "the seal stays for its heirs" in b.left_out:
        for old in b.olds:
            if w.records[old].ended and old not in w.expired:
                yield f"retention takes {old}", False, w._replace(expired=w.expired | {old})


def _hands_over(w: World, b: Bounds) -> Steps:
    """The leader gives what dead brokers own to living ones, once their journals are worked in."""
    for segment, record in enumerate(w.records):
        stale = "hand over what it still owns" in b.left_out and segment in b.olds and 0 in w.recovered
        if not stale and not _may_be_handed_over(w, b, record):
            continue
        for target in w.alive:
            given = Record(target, record.intent) if stale else record._replace(owner=target)
            yield f"the leader hands {segment} to {NAMES[target]}", True, with_record(w, segment, given)


def _may_be_handed_over(w: World, b: Bounds, record: Record | None) -> bool:
    if record is None or record.owner is None or record.owner in w.alive:
        return False
    if "look again" in b.left_out:
        return any(r and r.broker == record.owner and r.step == "hand over" for r in w.recoveries)
    return record.owner in w.recovered or "recover, then hand over" in b.left_out


def _recovers(w: World, b: Bounds, i: int, r: Recovery | None) -> Steps:
    """Fence, look, put an entry, look again, ... A put may come late; what a recovery that crashes leaves is that."""
    if r is None:
        for dead in range(b.deaths):
            if dead not in w.alive and dead not in w.recovered:
                records = w.records if "records behind the fence" in b.left_out else None
                yield f"R{i} begins with {NAMES[dead]}", True, _with(w, i, Recovery(dead, "fence", records=records))
        return
    name = NAMES[r.broker]
    if r.step == "fence":
        fenced = w.fenced if "fence" in b.left_out else w.fenced | {r.broker}
        yield f"R{i} fences {name}", True, _with(w, i, r._replace(step="look"))._replace(fenced=fenced)
    elif r.step == "look" and (found := list(_beyond(w, b, r))):
        for segment, entry in found:
            yield (
                f"R{i} reads {entry.messages}",
                True,
                _with(w, i, r._replace(step="put", segment=segment, entry=entry)),
            )
    elif r.step == "put":
        after, is_free = with_entry(w, r.segment, r.entry)
        what = f"appends {r.entry.messages} to {r.segment}" if is_free else "finds its name taken"
        yield f"R{i} {what}", True, _with(after, i, r._replace(step="look", segment=0, entry=None))
    elif "look again" in b.left_out and any(record and record.owner == r.broker for record in w.records):
        if r.step == "look":
            yield f"R{i} hands over", True, _with(w, i, r._replace(step="hand over"))
    else:
        yield f"R{i} is done with {name}", True, _with(w, i, None)._replace(recovered=w.recovered | {r.broker})


def _with(w: World, i: int, r: Recovery | None) -> World:
    return w._replace(recoveries=with_at(w.recoveries, i, r))


def _beyond(w: World, b: Bounds, r: Recovery) -> Iterator[tuple[int, Entry]]:
    """What the next entry can be that a dead broker's journal has for a segment that is still its own and not sealed:
    entries have a bound, so it need not be all rows."""
    frames = w.journals[r.broker].union([place] if (place := w.failed[r.broker]) else [])
    for segment, chain in enumerate(w.chains):
        record = (r.records or w.records)[segment]
        is_its_own = record is not None and record.owner == r.broker
        if not (is_its_own or "recover what it still owns" in b.left_out):
            continue
        if is_sealed(chain) and "nothing behind a seal" not in b.left_out:
            continue
        name = end_of(chain)
        rows = sorted((p.offset, p) for p in frames if p.segment == segment and p.offset >= name[1])
        for count in range(1, len(rows) + 1):
            places = [place for _, place in rows[:count]]
            known = NOWHERE if "recovered rows are known" in b.left_out else frozenset(places)
            inherits = chain or "recovery inherits the table" not in b.left_out
            before = table_of(w, b, segment) if inherits else NOWHERE
            yield segment, Entry(*name, tuple(place.message for place in places), before | known)
        if rows:
            return
