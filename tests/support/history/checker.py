"""Judges a history: the lines of `history.History` and what was read at last, against what a log promises. Pure.

Each rule is a function of its own that yields the texts of its violations; `check` asks them all. One topic at a time.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tests.support.history import delivery_rules, isolation_rules, lineage_rules
from tests.support.history.history import Event, Row
from tests.support.history.judged import Id, Run
from tests.support.history.reading_rules import alike, dense, fresh, live, stable


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took effect between `invoke` and `ok`, with a number that must not fall in real time."""

    invoke: float
    ok: float
    number: int


def loss(run: Run) -> Iterator[str]:
    """Every ok publish is in the last read, at its id."""
    ends = Counter(r.segment for r in run.http)
    for event in run.lines("publish", "ok"):
        assert event.segment is not None
        assert event.offset is not None
        there = run.content.get((event.segment, event.offset))
        if there is None or there.hash != event.hash:
            where = f"{event.segment}-{event.offset} (of {ends[event.segment]})"
            yield f"{event.producer}:{event.seq} was acknowledged as {where}, which is {there}"


def once(run: Run) -> Iterator[str]:
    """Every value is there at most once, and an id is given once."""
    for hash, count in Counter(r.hash for r in run.http).items():
        if count > 1:
            ids = [(r.segment, r.offset) for r in run.http if r.hash == hash]
            yield f"{next(r for r in run.http if r.hash == hash)} is read {count} times: {ids}"
    for id, count in Counter((r.segment, r.offset) for r in run.http).items():
        if count > 1:
            yield f"id {id} is read {count} times"


def phantom(run: Run) -> Iterator[str]:
    """What is read was sent, and did not certainly fail."""
    for row in run.http:
        if row.hash not in run.outcomes:
            yield f"{row} was never sent"
        elif run.outcomes[row.hash] == {"fail"}:
            yield f"{row} certainly failed, and is there"


def gap(run: Run) -> Iterator[str]:
    """A segment holds exactly the offsets from 0 to its end."""
    for segment, offsets in _by_segment(run.http).items():
        if missing := set(range(max(offsets) + 1)) - offsets:
            yield f"segment {segment} has no {sorted(missing)[:10]} and {len(missing)} in all"


def agreement(run: Run) -> Iterator[str]:
    """An id has one content: for publishers, subscribers, readers, in files, at all times."""
    seen: dict[Id, str | None] = {id: row.hash for id, row in run.content.items()}
    told = [((e.segment or 0, e.offset or 0), e.hash, e.op) for e in run.events if e.type == "ok" and e.hash]
    files = [((r.segment, r.offset), r.hash, "file") for rows in [*run.listings, run.files] for r in rows]
    for id, hash, where in [*told, *files]:
        if seen.setdefault(id, hash) != hash:
            yield f"{id} is {hash} to a {where}, and {seen[id]} elsewhere"


def idempotence(run: Run) -> Iterator[str]:
    """A producer's sequence has one id, however often it was asked."""
    ids: dict[tuple[str | None, int | None], set[Id]] = defaultdict(set)
    for event in run.lines("publish", "ok"):
        ids[event.producer, event.seq].add((event.segment or 0, event.offset or 0))
    for row in run.http:
        ids[row.producer, row.seq].add((row.segment, row.offset))
    yield from (f"{producer}:{seq} has the ids {found}" for (producer, seq), found in ids.items() if len(found) > 1)


def key_order(run: Run) -> Iterator[str]:
    """For a key and a producer sequences rise; one that nobody answered may have come later than its successors."""
    newest: dict[tuple[str, str], int] = {}
    for row in sorted(run.http, key=lambda r: (r.segment, r.offset)):
        if row.key is not None and "ok" in run.outcomes.get(row.hash, ()):
            if row.seq < newest.get((row.key, row.producer), -1):
                yield f"{row} comes behind {newest[row.key, row.producer]} of its key and producer"
            newest[row.key, row.producer] = row.seq


def real_time(run: Run) -> Iterator[str]:
    """What was acknowledged before another publish began has the smaller offset."""
    spans: dict[int | None, list[Span]] = defaultdict(list)
    first_ok: dict[str | None, Event] = {}
    for event in run.lines("publish", "ok"):
        first_ok.setdefault(event.hash, event)
    first_invoke: dict[str | None, float] = {}
    for event in run.lines("publish", "invoke"):
        first_invoke.setdefault(event.hash, event.t)
    for hash, event in first_ok.items():
        spans[event.segment].append(Span(first_invoke[hash], event.t, event.offset or 0))
    for segment, found in spans.items():
        for before, after in _fallen(found):
            yield f"segment {segment}: offset {after.number} was begun after {before.number} was acknowledged"


def cursor(run: Run) -> Iterator[str]:
    """A committed cursor never goes back, but by a seek, with coordination, or behind a lost journal."""
    spans: dict[tuple[str, int | None], list[Span]] = defaultdict(list)
    for event in run.lines("cursor", "ok"):
        at = (event.subscription, event.segment)
        spans[at].append(Span(run.begun[event.call], event.t, event.acked_to or 0))
    for (name, segment), found in spans.items():
        for before, after in _fallen(found, partial(run.moved, name, segment or 0)):
            left = run.lapsed(name, segment or 0, before.invoke, before.ok, after.ok)
            is_lapsed = any(after.number >= acked.end_of(0) for acked in left)
            if not is_lapsed and not run.forgotten(before.ok, after.ok):
                yield f"{name}, segment {segment}: the cursor was {before.number}, and {after.number} later"


def redelivery(run: Run) -> Iterator[str]:
    """What was acked, and answered so, is in no pull that began later, but behind a seek or a lost journal, or if
    coordination went back since."""
    acks: dict[tuple[str, int, int], list[Event]] = defaultdict(list)
    for event in run.lines("ack", "ok"):
        acks[event.subscription, event.segment or 0, event.offset or 0].append(event)
    for event in run.lines("deliver", "ok"):
        name, segment, offset = event.subscription, event.segment or 0, event.offset or 0
        for ack in acks.get((name, segment, offset), ()):
            acked_s = run.begun[ack.call]
            if (
                ack.t < (pulled := run.begun[event.call])
                and not run.moved(name, segment, acked_s, event.t)
                and all(offset in acked for acked in run.lapsed(name, segment, acked_s, ack.t, event.t))
                and not run.forgotten(ack.t, event.t)
            ):
                yield f"{name}: {segment}-{offset} was acked at {ack.t:.3f}, and is in a pull of {pulled:.3f}"
                break


def skipped(run: Run) -> Iterator[str]:
    """Whatever lies below a cursor was delivered."""
    delivered = {(e.subscription, e.segment, e.offset) for e in run.lines("deliver", "ok")}
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for event in run.lines("cursor", "ok"):
        at = (event.subscription, event.segment or 0)
        ends[at] = max(ends[at], event.acked_to or 0)
    for (name, segment), end in ends.items():
        if missing := [offset for offset in range(end) if (name, segment, offset) not in delivered]:
            count = len(missing)
            yield f"{name}, segment {segment}: the cursor is {end}, but {missing[:10]} ({count} in all) came to nobody"


def tables(run: Run) -> Iterator[str]:
    """At last the files hold what HTTP reads; a listing before holds no row twice, none that goes."""
    here, there = Counter(run.http), Counter(run.files)
    if here != there:
        only_http, only_files = [*(here - there).elements()], [*(there - here).elements()]
        yield f"only over HTTP: {only_http[:5]}; only in files: {only_files[:5]}"
    for at, listing in enumerate(run.listings):
        if double := [row for row, count in Counter(listing).items() if count > 1]:
            yield f"listing {at} holds {len(double)} rows twice: {double[:5]}"
        if strange := set(listing) - set(run.http):
            yield f"listing {at} holds {len(strange)} rows that are not there at last: {list(strange)[:5]}"


RULES: Sequence[Callable[[Run], Iterable[str]]] = (
    loss,
    once,
    phantom,
    gap,
    agreement,
    idempotence,
    key_order,
    real_time,
    alike,
    stable,
    fresh,
    dense,
    live,
    cursor,
    redelivery,
    skipped,
    tables,
)


EVERY = (*RULES, *lineage_rules.RULES, *delivery_rules.RULES, *isolation_rules.RULES)


def check(run: Run) -> list[Violation]:
    """Every violation of every rule."""
    return [Violation(rule.__name__, text) for rule in EVERY for text in rule(run)]


def _by_segment(rows: Iterable[Row]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        found[row.segment].add(row.offset)
    return found


def _never(since: float, until: float) -> bool:
    return False


def _fallen(spans: Sequence[Span], excused: Callable[[float, float], bool] = _never) -> Iterator[tuple[Span, Span]]:
    """Pairs (before, after) where `after` was begun when `before` was known, and has the smaller number. Where that is
    excused, of what happened between their times, `after` counts from there on."""
    known = sorted(spans, key=lambda s: s.ok)
    at, highest = 0, None
    for after in sorted(spans, key=lambda s: s.invoke):
        while known[at].ok < after.invoke:
            if highest is None or known[at].number > highest.number:
                highest = known[at]
            at += 1
        if highest and after.number < highest.number:
            if excused(highest.invoke, after.ok):
                highest = after
            else:
                yield highest, after
