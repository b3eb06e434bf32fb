"""The rules of `checker` for subscriptions: the order of first deliveries, what is not acked, and waits. Pure.

A pull without an answer may hold any message that was there by then, until the lease has ended: it excuses what nobody
else got meanwhile. A broker that was stopped may even answer it later, so it is given some more time.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappush
from typing import NamedTuple

from tests.support.history.history import Event
from tests.support.history.judged import Id, Run
from tests.support.history.lineage_rules import ancestors

MARGIN_S = 0.05  # what clocks may differ in half a second
LATE_S = 10.0  # beyond its end a lost pull may still be served
LEASED_S = 20.0  # a delivery may keep its segment from others for so long, however its lease ends
FOREVER = float("inf")


class First(NamedTuple):
    """The first delivery of a message that somebody saw: when its pull began, and ended."""

    begun: float
    ended: float


class Lost(NamedTuple):
    """A pull that nobody saw the answer of."""

    begun: float
    ended: float


def in_turn(run: Run) -> Iterator[str]:
    """Of a key, no message comes for the first time in a pull that began when a later one was there."""
    for name in _subscriptions(run):
        first, lost, begun = _first(run, name), _lost(run, name), _published(run)
        for key, ids in _by_key(run).items():
            earliest, of = FOREVER, None  # of all later ones: the first that came
            for id in reversed(ids):
                came = first.get(id)
                if came is None:
                    continue
                if came.begun > earliest and not _may_hold(lost, begun.get(id, 0.0), earliest):
                    yield f"{name}: {id} of {key} came at {came.ended:.3f}, and {of} at {earliest:.3f}"
                if came.ended < earliest:
                    earliest, of = came.ended, id


def acked_in_turn(run: Run) -> Iterator[str]:
    """Of a key, an ack that stands means that all earlier messages came to somebody before it was answered."""
    for name in _subscriptions(run):
        first, lost, begun = _first(run, name), _lost(run, name), _published(run)
        acked: dict[Id, float] = {}
        for event in run.lines("ack", "ok"):
            if event.subscription == name:
                acked.setdefault(_id(event), event.t)
        for key, ids in _by_key(run).items():
            earliest, of = FOREVER, None
            for id in reversed(ids):
                late = first.get(id, First(FOREVER, FOREVER)).begun > earliest
                if late and not _may_hold(lost, begun.get(id, 0.0), earliest):
                    yield f"{name}: {of} of {key} was acked at {earliest:.3f}, and {id} had come to nobody"
                if acked.get(id, FOREVER) < earliest:
                    earliest, of = acked[id], id


def remembered(run: Run) -> Iterator[str]:
    """Once the lag is zero, each message was acked, by an ack that stands or that got no answer."""
    healed = max((e.t for e in run.lines("heal", "ok")), default=0.0)
    there = {id for id, begun in _published(run).items() if begun < healed}
    for name in _subscriptions(run) if healed else ():
        told = {(e.call, _id(e)) for e in run.lines("ack", "fail") if e.subscription == name}
        acked = {_id(e) for e in run.lines("ack", "invoke") if e.subscription == name and (e.call, _id(e)) not in told}
        if left := sorted(there - acked):
            yield f"{name}: the lag was zero, and {left[:10]} ({len(left)} in all) were never acked"


def waited_out(run: Run) -> Iterator[str]:
    """A pull that brings nothing has waited for as long as it was to."""
    for event in run.lines("wait", "ok"):
        waited_s = event.t - run.begun[event.call]
        if waited_s < event.wait_s - MARGIN_S:
            yield f"{event.proc} at {event.broker} was to wait {event.wait_s} s, and got nothing after {waited_s:.3f} s"


def nothing_there(run: Run) -> Iterator[str]:
    """A pull that brings nothing had nothing to bring: what was acknowledged before it began, with all that has to come
    before, has come to somebody, or another consumer had the segment."""
    for name in _subscriptions(run):
        first, lost, begun = _first(run, name), _lost(run, name), _published(run)
        holders = _holders(run, name)
        for segment, there in _acknowledged(run).items():
            free_at = _free_at(run, name, segment)
            waiting: list[tuple[float, Id]] = []  # those acknowledged so far, that which came last at the front
            known = iter(sorted(there, key=lambda each: each[0]))
            upcoming = next(known, None)
            for event in sorted((e for e in run.lines("wait", "ok") if e.subscription == name), key=_begun(run)):
                begins = run.begun[event.call]
                while upcoming and upcoming[0] < begins:
                    id = upcoming[1]
                    heappush(waiting, (-first.get(id, First(FOREVER, FOREVER)).begun, id))
                    upcoming = next(known, None)
                if not waiting or -waiting[0][0] <= event.t or begins < free_at:
                    continue
                id = waiting[0][1]
                if not _held(holders[segment], event.proc, begins, event.t) and not _may_hold(
                    lost, begun.get(id, 0.0), event.t
                ):
                    yield f"{name}: {event.proc} got nothing from {begins:.3f} to {event.t:.3f}, and {id} was there"
                    break


RULES: Sequence[Callable[[Run], Iterable[str]]] = (in_turn, acked_in_turn, remembered, waited_out, nothing_there)


def _id(event: Event) -> Id:
    return event.segment or 0, event.offset or 0


def _begun(run: Run) -> Callable[[Event], float]:
    return lambda event: run.begun[event.call]


def _subscriptions(run: Run) -> list[str]:
    return sorted({e.subscription for e in run.lines("deliver", "invoke")})


def _first(run: Run, name: str) -> dict[Id, First]:
    found: dict[Id, First] = {}
    for event in run.lines("deliver", "ok"):
        if event.subscription == name:
            this = First(run.begun[event.call], event.t)
            found[_id(event)] = min(found.get(_id(event), this), this)
    return found


def _lost(run: Run, name: str) -> list[Lost]:
    told = {e.call: e for e in run.lines("deliver", "info", "fail")}
    found = []
    for event in run.lines("deliver", "invoke"):
        end = told.get(event.call)
        if event.subscription == name and event.call not in run.answered and not (end and end.type == "fail"):
            found.append(Lost(event.t, end.t + LATE_S if end else FOREVER))
    return found


def _may_hold(lost: Sequence[Lost], there: float, until: float) -> bool:
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


def _holders(run: Run, name: str) -> dict[int, dict[str, list[float]]]:
    """When each consumer got something of a segment."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for event in run.lines("deliver", "ok"):
        if event.subscription == name:
            found[event.segment or 0][event.proc].append(event.t)
    return found


def _held(holders: dict[str, list[float]], proc: str, begins: float, ends: float) -> bool:
    """Whether another consumer may have had the segment. What it gets later it may have been about to get."""
    for other, times in holders.items():
        at = bisect_left(times, begins - LEASED_S)
        if other != proc and at < len(times) and times[at] < ends + LEASED_S:
            return True
    return False


def _free_at(run: Run, name: str, segment: int) -> float:
    """When all that comes before a segment's messages was acked."""
    acked = {_id(e): e.t for e in run.lines("ack", "ok") if e.subscription == name}
    before = [(n, o) for n in ancestors(run.segments, segment) for o in range(run.segments[n].end or 0)]
    return max((acked.get(id, FOREVER) for id in before), default=0.0)
