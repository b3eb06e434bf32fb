"""What can happen next in a world of the rebuild model: each of those who act yields (what, the world after it).

Not the code's own, since there it waits for a store or for coordination: what is read and written, in which order; the
comparison of generations (storage/generations); that of terms in journals with records (rebuild/looking); how an owner
opens a segment (topics/ownership), and a new owner is chosen. A transaction over several keys of coordination is one
step, though a rebuild replaces keys page by page: nobody reads what lies between.

An answer is heard when its put lands. To hear it later is no different from doing nothing until then.
"""

from collections.abc import Iterator

from seaweedq.segments.terms import Tenure, next_term, owes_entry
from tests.support.model.rebuild_decisions import is_resumed, is_swept, planned, signs, state_taken, verdict
from tests.support.model.rebuild_world import (
    NOTHING,
    REFERENCE,
    Bounds,
    Coordination,
    Entry,
    Journal,
    Life,
    Put,
    Rebuild,
    Slot,
    World,
    end_of,
    highest,
    journal_of,
    needed,
)

Steps = Iterator[tuple[str, World]]
OVER = Life("over")


def steps(w: World, b: Bounds) -> Steps:
    """All that can happen next."""
    if not w.old_is_dead:
        yield from _life(w, b, "X", w.x, w.old)
        yield from _life(w, b, "Y", w.y, w.old)
        yield from _old(w, b)
    yield from _lands(w)
    if w.new is None:
        if w.saved is None:
            yield "a copy of coordination is saved", w._replace(saved=w.old)
        else:
            yield "coordination goes back to the copy", w._replace(new=w.saved)
        yield "coordination is lost", w._replace(new=NOTHING)
        return
    if not w.serves:
        yield from _rebuilds(w, b, w.new)
        yield from _begins(w, b, w.new)
    else:
        yield from _recovers(w, b, w.new)
        yield from _sweeps(w, b, w.new)
        yield from _life(w, b, "Z", w.z, w.new)


def _old(w: World, b: Bounds) -> Steps:
    """What the old coordination and its brokers do together."""
    c, x = w.old, w.x
    is_quiet = not (x.pending or x.tail or x.flushing or x.is_sealing)
    if b.moves and x.term and w.y.step == "joined" and is_quiet:
        given = c._replace(owner="Y", term=next_term(c.term, c.generation), revision=c.revision + 1)
        y = w.y._replace(term=given.term, seen=given.revision, next_entry=len(w.chain), next_offset=end_of(w.chain))
        yield "X moves the segment to Y", w._replace(old=given, x=x._replace(term=None), y=y)
    if c.snapshot < b.snapshots and w.stored.generation == c.generation:
        old = c._replace(snapshot=c.snapshot + 1)
        yield "the leader puts a snapshot", w._replace(old=old, stored=old)
    if w.new is not None:
        yield "the old coordination and its brokers die", w._replace(old_is_dead=True)
        if b.uploads and (c.generation == w.generation or "look before a deletion" in b.left_out):
            yield from _sweeps_uploads(w, c)


def _life(w: World, b: Bounds, name: str, life: Life, c: Coordination) -> Steps:
    if c.state == "serving":
        for what, world, after in _lives(w, b, name, life, c):
            yield f"{name} {what}", _with_life(world, name, after)


def _lives(w: World, b: Bounds, name: str, life: Life, c: Coordination) -> Iterator[tuple[str, World, Life]]:
    journal = journal_of(w, name)
    if life.step == "off" and (name != "Y" or b.moves):
        if c.generation == w.generation or "look at the start" in b.left_out:
            yield "begins", w, life._replace(step="looked")
    elif life.step == "looked":
        joined = c._replace(journals=c.journals | {name}, revision=c.revision + 1)
        yield "joins", _with_coordination(w, name, joined), life._replace(step="joined", seen=joined.revision)
    elif life.step == "joined":
        yield from _holds(w, b, name, life, c)
        if b.stops and name == "X" and not (life.pending or life.tail or life.flushing or life.is_sealing):
            said = c._replace(recovered=c.recovered | {name}, revision=c.revision + 2, watermark=c.revision + 2)
            yield "has flushed all, and stops", _with_coordination(w, name, said), life._replace(step="stopping")
    elif life.step == "stopping":
        closed = w if "done" in b.left_out else _with_journal(w, name, _done(journal, c))
        yield "says that its journal is done", closed, life._replace(step="closing")
    elif life.step == "closing":
        if journal.slots:
            fewer = journal._replace(slots=journal.slots[1:])
            yield "deletes a slot", _with_journal(w, name, fewer), life
        else:
            yield "ends", _with_coordination(w, name, _without_key(c, name)), OVER


def _holds(w: World, b: Bounds, name: str, life: Life, c: Coordination) -> Iterator[tuple[str, World, Life]]:
    """What a member does: open a segment, journal, answer, flush, seal."""
    if life.term is None:
        if name == "Z":
            yield from _gets(w, b, life, c)
        return
    if life.messages and not (life.pending or life.is_sealing):
        message, known, seen = f"{name}{life.slots}", w, life.seen
        if b.uploads and w.payload:
            published = c._replace(published=True, revision=c.revision + 1)
            message, known, seen = f"{REFERENCE}{message}", _with_coordination(w, name, published), published.revision
        slot = Slot(life.term, (life.next_offset, message), seen)
        taken = life._replace(
            seen=seen, messages=life.messages - 1, pending=slot, slots=life.slots + 1, is_durable=False
        )
        yield "takes a message", known._replace(flying=w.flying | {Put(name, life.slots, slot)}), taken
    if life.pending and life.is_durable:
        if life.looked_again or b.left_out & {"second look", "look at the start"}:
            row = life.pending.row
            after = life._replace(pending=None, tail=(*life.tail, row), next_offset=row[0] + 1)
            yield "answers", w._replace(acked=w.acked | {(name, row)}), after
        elif c.generation == w.generation:
            yield "looks at the generation again", w, life._replace(looked_again=True)
        else:
            yield "sees another generation", w, OVER
    if life.tail and not life.flushing:
        put = Put(name, life.next_entry, Entry(life.term, name, life.tail))
        yield "flushes", w._replace(flying=w.flying | {put}), life._replace(flushing=life.tail)
    if b.seals and name == "X" and not (life.is_sealing or life.pending or life.tail or life.flushing):
        sealing = c._replace(intent=True, revision=c.revision + 1)
        put = Put(name, life.next_entry, Entry(life.term, name, (), True))
        after = _with_coordination(w._replace(flying=w.flying | {put}), name, sealing)
        yield "commits a roll, and seals", after, life._replace(is_sealing=True)


def _gets(w: World, b: Bounds, life: Life, c: Coordination) -> Iterator[tuple[str, World, Life]]:
    """Z gets the segment once its owner's journal was recovered, and opens it: it reads again if a name is taken."""
    if c.is_sealed or (c.owner not in (None, "Z") and c.owner in c.journals):
        return
    if c.owner != "Z":
        owned = c._replace(owner="Z", term=next_term(c.term, c.generation), revision=c.revision + 1)
        yield "gets the segment", _with_coordination(w, "Z", owned), life
        return
    last = w.chain[-1]
    if last.is_seal or c.intent:
        chain = w.chain if last.is_seal else (*w.chain, Entry(c.term, "Z", (), True))
        assert c.intent or is_resumed(c.term, c.owner)
        ended = c._replace(owner=None, intent=False, is_sealed=True)
        what = "finds the seal, and ends the segment" if last.is_seal else "seals the segment"
        yield what, _with_coordination(w._replace(chain=chain), "Z", ended), OVER
        return
    chain = w.chain
    if owes_entry(c.term, last.term, c.entry_from, last.is_recovered) and "first entry" not in b.left_out:
        chain = (*chain, Entry(c.term, "Z"))
    opened = life._replace(term=c.term, seen=c.revision, next_entry=len(chain), next_offset=end_of(chain))
    yield "opens the segment", w._replace(chain=chain), opened


def _lands(w: World) -> Steps:
    for put in w.flying:
        flown, life = w._replace(flying=w.flying - {put}), _life_of(w, put.broker)
        is_over, what = life == OVER, f"{put.broker}'s {'slot' if isinstance(put.content, Slot) else 'entry'} {put.at}"
        if isinstance(put.content, Slot) and (journal := journal_of(w, put.broker)).fence is None:
            flown = _with_journal(flown, put.broker, journal._replace(slots=(*journal.slots, (put.at, put.content))))
            life = life._replace(is_durable=True)
        elif isinstance(put.content, Entry) and put.at == len(w.chain):
            flown = flown._replace(chain=(*w.chain, put.content))
            tail = tuple(row for row in life.tail if row not in life.flushing)
            life = life._replace(flushing=(), tail=tail, next_entry=life.next_entry + 1)
        else:
            what, life = f"{what} finds its name taken as it", OVER
        yield f"{what} lands", flown if is_over else _with_life(flown, put.broker, life)


def _begins(w: World, b: Bounds, c: Coordination) -> Steps:
    """Z begins over the new coordination, and leads: it serves where it sees no sign of a return, twice. The old one is
    dead then, since no code can tell two equal copies apart that both live."""
    if not (b.unnoticed and w.old_is_dead and c.state == "serving"):
        return
    z, notices = w.z, "notice" not in b.left_out
    if z.step == "off":
        if not (notices and _signs(w, b, c)):
            yield "Z finds no sign at its start", w._replace(z=z._replace(step="looked"))
    elif z.step == "looked":
        joined = c._replace(journals=c.journals | {"Z"}, revision=c.revision + 1)
        yield "Z joins", w._replace(new=joined, z=z._replace(step="joined", seen=joined.revision))
    else:
        unfenced = [
            name for name in sorted(c.journals - c.recovered - {"Z"} - _away(b)) if journal_of(w, name).fence is None
        ]
        for name in unfenced:
            yield f"Z fences {name}'s journal", _fenced(w, name)
        if not unfenced or "fence before the look" in b.left_out:
            if notices and (_signs(w, b, c) or _forgotten(w, b, c)):
                yield "Z finds that coordination went back", w._replace(new=c._replace(state="restored"))
            else:
                yield "Z leads", w._replace(serves=True)


def _signs(w: World, b: Bounds, c: Coordination) -> tuple[str, ...]:
    found = set()
    for name in needed(w) - _away(b):
        newest = max(journal_of(w, name).slots)[1]
        found.add((name, newest.term[0], newest.revision * ("revisions in slots" not in b.left_out)))
    done = max((each.done[1] for _, each in w.journals if each.done and each.done[0] == c.generation), default=0)
    return signs(w.generation, w.stored, done, c, frozenset(found))


def _away(b: Bounds) -> frozenset[str]:
    return frozenset({"Y"} if b.away else ())


def _forgotten(w: World, b: Bounds, c: Coordination) -> bool:
    """A journal has a term that its broker was not given."""
    if "terms in records" in b.left_out:
        return False
    stated = {name: highest(journal_of(w, name)) for name in c.journals - c.recovered - {"Z"} - _away(b)}
    return any(term and not (term < c.term or (term, name) == (c.term, c.owner)) for name, term in stated.items())


def _rebuilds(w: World, b: Bounds, c: Coordination) -> Steps:
    r = w.rebuild
    if r.step == "none":
        generation = w.generation if "generation" in b.left_out else w.generation + 1
        created = w._replace(generation=generation, rebuild=r._replace(step="created"))
        yield "a rebuild creates the generation", created
        return
    if r.crashes < b.crashes:
        yield "the rebuild dies", w._replace(rebuild=Rebuild(crashes=r.crashes + 1))
    if r.step == "created":
        state = c.state if c.state == "replacing" else "rebuilding"
        announced = c._replace(state=state, rebuild=w.generation)
        yield "the rebuild keeps brokers out", w._replace(new=announced, rebuild=r._replace(step="announced"))
    elif r.step == "announced":
        taken = state_taken(c, w.stored)
        names = taken.journals if "all needed journals" in b.left_out else taken.journals | c.journals | needed(w)
        names = frozenset(name for name in names if not journal_of(w, name).done)
        listed = r._replace(step="listed", needed=names, taken=taken)
        yield "the rebuild takes a state, and lists the journals", w._replace(rebuild=listed)
    elif r.step == "listed":
        yield from _reads(w, b, r)
    elif r.step == "planned":
        assert r.taken
        kept = r.taken._replace(generation=w.generation, state="serving", snapshot=0)
        saved = w._replace(rebuild=r._replace(step="saved"))
        yield "the rebuild saves the state", saved._replace(stored=kept)
    elif r.step == "saved":
        assert r.planned
        made = r.planned._replace(generation=w.generation, state="replacing", rebuild=w.generation, snapshot=1)
        half = made._replace(journals=frozenset())  # a mixture, of which journals' keys are not yet there
        yield "the rebuild replaces the first keys", w._replace(new=half, rebuild=r._replace(step="replaced"))
    elif r.step == "replaced":
        assert r.planned
        made = c._replace(journals=r.planned.journals)
        stored = made._replace(state="serving")
        yield "the rebuild replaces all keys", w._replace(new=made, stored=stored, rebuild=r._replace(step="backed"))
    elif r.step == "backed":
        opened = c._replace(state="serving", rebuild=0)
        yield (
            "the rebuild ends",
            w._replace(new=opened, serves=True, z=w.z._replace(step="off"), rebuild=Rebuild("over")),
        )


def _reads(w: World, b: Bounds, r: Rebuild) -> Steps:
    read, first = {name for name, _ in r.terms}, "fence before headers" not in b.left_out
    for name in sorted(r.needed):
        if name not in r.fenced and (first or name in read):
            after = _fenced(w, name)._replace(rebuild=r._replace(fenced=r.fenced | {name}))
            yield f"the rebuild fences {name}'s journal", after
        if name not in read and (name in r.fenced or not first):
            terms = tuple(sorted((*r.terms, (name, highest(journal_of(w, name))))))
            yield f"the rebuild reads {name}'s frames", w._replace(rebuild=r._replace(terms=terms))
    if r.fenced == read == r.needed:
        assert r.taken
        made = planned(r.taken, r.terms, w.chain, w.payload and "objects are published" not in b.left_out)
        if "owner by term" in b.left_out and not made.is_sealed:
            made = made._replace(owner=r.taken.owner, term=r.taken.term)
        yield "the rebuild makes its plan", w._replace(rebuild=r._replace(step="planned", planned=made))


def _fenced(w: World, name: str) -> World:
    journal = journal_of(w, name)
    if journal.fence is None:
        free = max((number + 1 for number, _ in journal.slots), default=0)
        w = _with_journal(w, name, journal._replace(fence=free))
    return w


def _recovers(w: World, b: Bounds, c: Coordination) -> Steps:
    """The leader recovers the journals of lives that are gone: those that its coordination names."""
    for name in sorted(c.journals - {"Z"}):
        journal = journal_of(w, name)
        if journal.fence is None:
            yield f"the leader fences {name}'s journal", _fenced(w, name)
            continue
        is_over = journal.done or name in c.recovered
        chain, damage = (w.chain, None) if is_over else _replayed(w.chain, name, journal, c, b)
        if damage:
            yield f"the leader finds that {name}'s journal is damaged", w._replace(damage=damage)
            continue
        said = c._replace(watermark=c.revision)
        if name == c.owner:  # it is given up for dead: the next owner is noted to owe an entry
            said = said._replace(entry_from=next_term(c.term, c.generation)[1])
        ended = _with_journal(w._replace(chain=chain), name, _done(journal, said)._replace(slots=()))
        yield f"the leader recovers {name}'s journal", ended._replace(new=_without_key(said, name))


def _replayed(
    chain: tuple[Entry, ...], name: str, journal: Journal, c: Coordination, b: Bounds
) -> tuple[tuple[Entry, ...], str | None]:
    """The chain with the rows of a journal that it lacks; why it cannot be replayed."""
    numbers, record = [number for number, _ in journal.slots], Tenure(c.term, c.owner or "")
    if numbers != list(range(len(numbers))):
        return chain, f"slots are missing: {numbers}"
    for _, slot in journal.slots:
        found = next((entry for entry in chain if slot.row[0] in dict(entry.rows)), None)
        if found and "term" in b.left_out:
            continue
        holder = Tenure(found.term, found.owner) if found else None
        judged = verdict(Tenure(slot.term, name), holder, record, chain)
        if judged == "damage":
            return chain, f"{slot.row} of {name} in term {slot.term} has {found or chain[-1]} in its place"
        if judged == "append":
            chain = (*chain, Entry(slot.term, name, (slot.row,), is_recovered=True))
    return chain, None


def _sweeps_uploads(w: World, c: Coordination) -> Steps:
    if w.payload and is_swept(c.published):
        yield "a sweep deletes the upload, which has expired", w._replace(payload=False)


def _sweeps(w: World, b: Bounds, c: Coordination) -> Steps:
    """The leader's sweeps: that of journals ends those of an older generation without a key."""
    if b.uploads:
        yield from _sweeps_uploads(w, c)
    for name in sorted(needed(w) - c.journals - {"Z"}):
        journal = journal_of(w, name)
        if max(journal.slots)[1].term[0] < c.generation:
            fenced = _fenced(w, name)
            ended = _with_journal(fenced, name, _done(journal_of(fenced, name), c))
            yield f"the sweep ends {name}'s journal", ended


def _done(journal: Journal, c: Coordination) -> Journal:
    return journal._replace(done=(c.generation, c.watermark))


def _without_key(c: Coordination, name: str) -> Coordination:
    return c._replace(journals=c.journals - {name}, recovered=c.recovered - {name})


def _life_of(w: World, name: str) -> Life:
    return {"X": w.x, "Y": w.y, "Z": w.z}[name]


def _with_life(w: World, name: str, life: Life) -> World:
    return w._replace(x=life) if name == "X" else w._replace(y=life) if name == "Y" else w._replace(z=life)


def _with_coordination(w: World, name: str, c: Coordination) -> World:
    return w._replace(new=c) if name == "Z" else w._replace(old=c)


def _with_journal(w: World, name: str, journal: Journal) -> World:
    return w._replace(journals=tuple(sorted({**dict(w.journals), name: journal}.items())))
