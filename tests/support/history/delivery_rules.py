"""The rules of `checker` for subscriptions: the order of first deliveries, what is not acked, and waits. Pure.

A pull without an answer may hold any message that was there by then. In `ordered` it excuses one thing: its own
consumer, which had the segment meanwhile, may have got later messages by another pull. What it held comes again before
any later one comes to anybody else. In `keyed` it excuses nothing: a key is with one lease at a time.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappush
from typing import NamedTuple

from tests.support.history.history import Event
from tests.support.history.judged import Id, Run
from tests.support.history.lineage_rules import ancestors

MARGIN_S = 0.05  # what clocks may differ in half a second
LATE_S = 10.0  # a broker that was stopped may serve a pull so long after its client has gone
IDLE_S = 1.0  # a consumer keeps its segments for so long after its last lease has ended
SLACK_S = 0.5  # a lease begins behind the pull's choice, and its end is noticed behind its deadline
FOREVER = float("inf")


class First(NamedTuple):
    """The first delivery of a message that somebody saw: when its pull began, and ended, and whose it was."""

    begun: float
    ended: float
    consumer: str = ""


class Held(NamedTuple):
    """From when to when a consumer may have had a segment, or what a pull may have held that nobody saw the answer
    of."""

    begun: float
    ended: float
    consumer: str


def in_turn(run: Run) -> Iterator[str]:
    """Of a key, no message comes for the first time in a pull that began when a later one was there."""
    for name in _in_order(run):
        first, excuses, begun = _first(run, name), _excuses(run, name), _published(run)
        for key, ids in _by_key(run).items():
            earliest, of, to = FOREVER, None, ""  # of all later ones: the first that came, and to whom
            for id in reversed(ids):
                came = first.get(id)
                if came is None:
                    continue
                if came.begun > earliest and not _may_hold(excuses[to], begun.get(id, 0.0), earliest):
                    yield f"{name}: {id} of {key} came at {came.ended:.3f}, and {of} at {earliest:.3f} to {to}"
                if came.ended < earliest:
                    earliest, of, to = came.ended, id, came.consumer


def acked_in_turn(run: Run) -> Iterator[str]:
    """Of a key, an ack that stands means that all earlier messages came to somebody before it was answered."""
    for name in _in_order(run):
        first, excuses, begun = _first(run, name), _excuses(run, name), _published(run)
        acked: dict[Id, First] = {}
        for event in run.lines("ack", "ok"):
            if event.subscription == name:
                acked.setdefault(_id(event), First(event.t, event.t, event.proc))
        never = First(FOREVER, FOREVER)
        for key, ids in _by_key(run).items():
            earliest, of = never, None
            for id in reversed(ids):
                late = first.get(id, never).begun > earliest.ended
                if late and not _may_hold(excuses[earliest.consumer], begun.get(id, 0.0), earliest.ended):
                    yield f"{name}: {of} of {key} was acked at {earliest.ended:.3f}, and {id} had come to nobody"
                if acked.get(id, never).ended < earliest.ended:
                    earliest, of = acked[id], id


def remembered(run: Run) -> Iterator[str]:
    """Once the lag is zero, each message was acked, by an ack that stands or that got no answer, or is a dead
    letter. One that nobody had seen by then may have come later, if its publish had no answer."""
    healed = max((e.t for e in run.lines("heal", "ok")), default=0.0)
    seen = {_id(e) for op in ("publish", "read", "deliver") for e in run.lines(op, "ok") if e.t < healed}
    there = {id for id, begun in _published(run).items() if begun < healed and id in seen}
    for name in _subscriptions(run) if healed else ():
        told = {(e.call, _id(e)) for e in run.lines("ack", "fail") if e.subscription == name}
        acked = {_id(e) for e in run.lines("ack", "invoke") if e.subscription == name and (e.call, _id(e)) not in told}
        if left := sorted(there - acked - run.dead[name]):
            yield f"{name}: the lag was zero, and {left[:10]} ({len(left)} in all) were never acked"


def sought(run: Run) -> Iterator[str]:
    """Once the lag is zero, what was sought was acked by an ack that was not answered before the seek began."""
    if not any(run.lines("heal", "ok")):
        return
    newest: dict[tuple[str, Id], float] = {}  # the end of the last ack that may stand
    for event in run.lines("ack", "invoke"):
        newest[event.subscription, _id(event)] = run.answered.get(event.call, FOREVER)
    for event in run.lines("seek", "ok"):
        name, segment, start = event.subscription, event.segment or 0, event.offset or 0
        begun = run.begun[event.call]
        dead = run.dead[name]
        left = [n for n in range(start, event.acked_to or 0) if newest.get((name, (segment, n)), 0.0) < begun]
        if left := [n for n in left if (segment, n) not in dead]:
            yield f"{name}: {segment} was moved back to {start} at {event.t:.3f}, and {left[:10]} were not acked again"


def buried(run: Run) -> Iterator[str]:
    """A dead letter holds the message that it names, which came to somebody, and died of what it says; each dies once,
    unless the subscription is moved back."""
    sought = {event.subscription for event in run.lines("seek", "invoke")}
    for (name, *id), count in Counter((one.subscription, one.segment, one.offset) for one in run.letters).items():
        if count > 1 and name not in sought:
            yield f"{name}: {id} has {count} dead letters"
    rejected = {(e.subscription, _id(e)) for e in run.lines("reject", "invoke")}
    came = {(e.subscription, _id(e)) for e in run.lines("deliver", "ok")}
    for letter in run.letters:
        id, most = (letter.segment, letter.offset), run.terms_of(letter.subscription).max_attempts
        row = run.content.get(id)
        if row is None or row.hash != letter.hash:
            yield f"{letter} is not {row}"
        if (letter.subscription, id) not in came:
            yield f"{letter} has come to nobody"
        if letter.reason == "rejected":
            if (letter.subscription, id) not in rejected:
                yield f"{letter} was rejected by nobody"
        elif letter.reason != "max-attempts" or letter.attempts < most:
            yield f"{letter} has died of nothing that is known; it had {most} attempts"


def waited_out(run: Run) -> Iterator[str]:
    """A pull that brings nothing has waited for as long as it was to."""
    for event in run.lines("wait", "ok"):
        waited_s = event.t - run.begun[event.call]
        if waited_s < event.wait_s - MARGIN_S:
            yield f"{event.proc} at {event.broker} was to wait {event.wait_s} s, and got nothing after {waited_s:.3f} s"


def nothing_there(run: Run) -> Iterator[str]:
    """A pull that brings nothing had nothing to bring: what was acknowledged before it began, with all that has to come
    before, has come to somebody, or somebody else may have had it (`_elsewhere`)."""
    for name in _subscriptions(run):
        first, begun = _first(run, name), _published(run)
        free = _free_at(run, name)
        lost = _lost(run, name)
        waits = sorted((e for e in run.lines("wait", "ok") if e.subscription == name), key=_begun(run))
        shares = _shares(run, name) if run.terms_of(name).mode == "ordered" else _nobody_shares
        for segment, there in _acknowledged(run).items():
            elsewhere = _elsewhere(run, name, segment, shares)
            waiting: list[tuple[float, Id]] = []  # those that were free so far, that which came last at the front
            known = iter(sorted((max(t, free(id)), id) for t, id in there))
            upcoming = next(known, None)
            for event in waits:
                begins = run.begun[event.call]
                while upcoming and upcoming[0] < begins:
                    id = upcoming[1]
                    heappush(waiting, (-first.get(id, First(FOREVER, FOREVER)).begun, id))
                    upcoming = next(known, None)
                if not waiting or -waiting[0][0] <= event.t:
                    continue
                id = waiting[0][1]
                if not elsewhere(event.proc, begins, event.t) and not _may_hold(lost, begun.get(id, 0.0), event.t):
                    yield f"{name}: {event.proc} got nothing from {begins:.3f} to {event.t:.3f}, and {id} was there"
                    break


RULES: Sequence[Callable[[Run], Iterable[str]]] = (
    *(in_turn, acked_in_turn, remembered, sought, buried, waited_out, nothing_there),
)


def _id(event: Event) -> Id:
    return event.segment or 0, event.offset or 0


def _begun(run: Run) -> Callable[[Event], float]:
    return lambda event: run.begun[event.call]


def _subscriptions(run: Run) -> list[str]:
    return sorted({e.subscription for e in run.lines("deliver", "invoke")})


def _in_order(run: Run) -> list[str]:
    """Those that promise an order."""
    return [name for name in _subscriptions(run) if run.terms_of(name).mode != "shared"]


def _first(run: Run, name: str) -> dict[Id, First]:
    found: dict[Id, First] = {}
    for event in run.lines("deliver", "ok"):
        if event.subscription == name:
            this = First(run.begun[event.call], event.t, event.proc)
            found[_id(event)] = min(found.get(_id(event), this), this)
    return found


def _excuses(run: Run, name: str) -> dict[str, list[Held]]:
    """The lost pulls of each consumer, as far as they excuse that it got later messages."""
    found: dict[str, list[Held]] = defaultdict(list)
    for held in _lost(run, name) if run.terms_of(name).mode == "ordered" else ():
        found[held.consumer].append(held)
    return found


def _lost(run: Run, name: str) -> list[Held]:
    """The pulls of which nobody saw an answer, until the leases that they may have got have ended."""
    told = {e.call: e for e in run.lines("deliver", "info", "fail")}
    leased_s = run.terms_of(name).ack_deadline_s + LATE_S
    found = []
    for event in run.lines("deliver", "invoke"):
        end = told.get(event.call)
        if event.subscription == name and event.call not in run.answered and not (end and end.type == "fail"):
            found.append(Held(event.t, end.t + leased_s if end else FOREVER, event.proc))
    return found


def _may_hold(lost: Sequence[Held], there: float, until: float) -> bool:
    """Whether a lost pull may have taken, before `until`, what was there from `there` on."""
    return any(each.begun < until and each.ended > there for each in lost)


def _published(run: Run) -> dict[Id, float]:
    """When a message was first sent, by the id that it has."""
    begun: dict[str, float] = {}
    for event in run.lines("publish", "invoke"):
        begun.setdefault(event.hash or "", event.t)
    return {id: begun[row.hash] for id, row in run.content.items() if row.hash in begun}


def _by_key(run: Run) -> dict[str, list[Id]]:
    found: dict[str, list[Id]] = defaultdict(list)
    for id, row in sorted(run.content.items()):
        if row.key is not None:
            found[row.key].append(id)
    return found


def _acknowledged(run: Run) -> dict[int, list[tuple[float, Id]]]:
    found: dict[int, list[tuple[float, Id]]] = defaultdict(list)
    for event in run.lines("publish", "ok"):
        found[event.segment or 0].append((event.t, _id(event)))
    return found


def _nobody_shares(consumer: str, begins: float, ended: float) -> bool:
    return False


def _elsewhere(
    run: Run, name: str, segment: int, shares: Callable[[str, float, float], bool]
) -> Callable[[str, float, float], bool]:
    """Tells whether anybody may have had what a consumer waited for, from one time to another; `shares` of the
    subscription.

    In all modes a pull under way may have chosen it, also one that gets nothing in the end, or something else, long
    after it was to wait: it was sent again, and the first answer was lost. In `ordered` another consumer may have had
    the segment, until its lease and its share have ended; and a message that has failed keeps back all behind it, until
    it is acked, or is known to be dead.
    """
    terms = run.terms_of(name)
    kept_s = terms.ack_deadline_s + terms.delay_s + IDLE_S + SLACK_S if terms.mode == "ordered" else 0.0
    spans = {
        Held(run.begun[e.call], e.t + kept_s, "" if e.attempt > 1 else e.proc)
        for e in run.lines("deliver", "ok")
        if e.subscription == name and e.segment == segment
    }
    wait_s = {e.call: e.wait_s for e in run.lines("deliver", "invoke") if e.subscription == name}
    spans |= {
        Held(run.begun[e.call], e.t + kept_s, e.proc)
        for e in (*run.lines("wait", "ok"), *run.lines("deliver", "ok"))
        if e.subscription == name and e.t - run.begun[e.call] > wait_s[e.call] + SLACK_S
    }
    if terms.mode == "ordered":
        spans |= {
            Held(e.t, run.answered.get(e.call, e.t + LATE_S) + kept_s, "")
            for e in run.lines("nack", "invoke")
            if e.subscription == name and e.segment == segment
        } | {*_last_attempts(run, name, segment)}
    held = _overlapping(spans)

    def found(consumer: str, begins: float, ended: float) -> bool:
        return any(each.consumer != consumer for each in held(begins, ended)) or shares(consumer, begins, ended)

    return found


def _last_attempts(run: Run, name: str, segment: int) -> Iterator[Held]:
    """In `ordered`, from its last delivery on a message keeps back all behind it, until one of those comes: behind a
    take-over it may be held for another `ack_deadline_s`."""
    came = [e for e in run.lines("deliver", "ok") if e.subscription == name and e.segment == segment]
    for letter in run.letters:
        if (letter.subscription, letter.segment, letter.reason) == (name, segment, "max-attempts"):
            last = max((e.t for e in came if e.offset == letter.offset), default=0.0)
            behind = [e.t for e in came if (e.offset or 0) > letter.offset and e.t > last]
            yield Held(last, min(behind, default=FOREVER), "")


def _shares(run: Run, name: str) -> Callable[[str, float, float], bool]:
    """Tells whether a segment of which nobody has anything may be another consumer's, that pulled within the last
    second and did not wait in vain itself meanwhile: of two who wait one gets it. Of a pull that was sent several times
    only the last request is known to have been in vain: one without an answer may have got the segment."""
    ends = {e.call: e for e in run.events if e.op in ("deliver", "wait") and e.type != "invoke"}
    pulls, waits = set(), set()
    for event in run.lines("deliver", "invoke"):
        if event.subscription == name:
            end = ends.get(event.call)
            pulls.add(Held(event.t, (end.t if end else FOREVER) + IDLE_S + SLACK_S, event.proc))
            if end and end.op == "wait":
                begun = event.t if end.took_s is None else end.t - end.took_s
                waits.add(Held(begun, end.t, event.proc))
    pulled, waited = _overlapping(pulls), _overlapping(waits)

    def found(consumer: str, begins: float, ended: float) -> bool:
        others = {each.consumer for each in pulled(begins, ended)} - {consumer}
        beside = waited(begins, ended)
        return bool(others - {w.consumer for w in beside if min(w.ended, ended) - max(w.begun, begins) > MARGIN_S})

    return found


def _overlapping(spans: Iterable[Held]) -> Callable[[float, float], list[Held]]:
    """Those that overlap a time."""
    found = sorted(spans, key=lambda each: each.ended)
    ends = [each.ended for each in found]
    return lambda begins, ended: [each for each in found[bisect_left(ends, begins) :] if each.begun < ended]


def _free_at(run: Run, name: str) -> Callable[[Id], float]:
    """Tells when all that must be acked before a message could come was acked: in `ordered` and `keyed` the segments
    before its own, in `keyed` the earlier ones of its key."""
    mode = run.terms_of(name).mode
    acked = {_id(e): e.t for e in run.lines("ack", "ok") if e.subscription == name}
    segments: dict[int, float] = {}
    keys: dict[Id, float] = {}
    if mode != "shared":
        for segment in {id[0] for id in run.content}:
            before = [(n, o) for n in ancestors(run.segments, segment) for o in range(run.segments[n].end or 0)]
            segments[segment] = max((acked.get(id, FOREVER) for id in before), default=0.0)
    if mode == "keyed":
        for ids in _by_key(run).values():
            newest: dict[int, float] = defaultdict(float)
            for id in ids:
                keys[id] = newest[id[0]]
                newest[id[0]] = max(newest[id[0]], acked.get(id, FOREVER))
    return lambda id: max(segments.get(id[0], 0.0), keys.get(id, 0.0))
