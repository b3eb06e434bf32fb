"""Which broker owns which segment: pure decisions, no I/O, no clock, no randomness.

Loads become whole numbers first, so that sums do not depend on the order of the input and equal loads are equal: that
is what makes decisions repeatable and keeps segments from going to and fro. A segment counts at least as `BASE`, so
that idle ones are spread by count. One that is too heavy for any host is left as good as alone: it counts as a fair
share, and neither it nor one host enters the mean of the others, which would otherwise look idle beside it.

It refuses: to say who is alive or which segments are homeless (the caller knows), and to touch segments of owners that
are not among the hosts (their journals come first).
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import chain
from math import fsum
from operator import itemgetter

import mmh3

SegmentId = tuple[str, int, int]
"""Topic, incarnation, segment."""

MEAN = 10_000
"""What the mean load of a segment counts as; so loads that differ by less than a ten-thousandth of it are equal."""
BASE = 500
"""The least that a segment counts as: all idle segments together are at most a twentieth of the load."""
TOLERANCE = 0.2
"""How far from the mean a host may be, as a share of the mean."""
LOOK = 8
"""Of how many of the lightest hosts the one with the least of the topic is taken."""

_Piece = tuple[int, int, SegmentId]  # weight, hash (what is moved first of equal ones is not all of one topic), segment


@dataclass(frozen=True, slots=True)
class Host:
    """A living broker. Hosts without a zone are one zone. A draining one gives, and takes nothing."""

    broker: str
    zone: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Hand a segment over from one living broker to another."""

    segment: SegmentId
    source: str
    target: str


def assign(
    homeless: Sequence[SegmentId],
    owned: Mapping[SegmentId, str],
    loads: Mapping[SegmentId, float],
    hosts: Sequence[Host],
) -> dict[SegmentId, str]:
    """An owner for each homeless segment: the heaviest first, each to the lightest host, and below the mean to where
    the least of its topic is. Empty where no host takes any. The order of the arguments does not matter.

    `owned` are the segments of living brokers; `loads` are of any unit, finite, and may lack idle segments.
    """
    board = _Board(hosts)
    if not board.order:
        return {}
    present = _present(owned, hosts)
    weights, fair = _weigh(chain(homeless, present), loads, len(board.order), TOLERANCE)
    board.fill(present, weights)
    return {
        segment: board.take(segment, weights[segment], fair - weights[segment])
        for segment in sorted(homeless, key=lambda each: (-weights[each], each))
    }


def spread(
    new: Mapping[SegmentId, float], kin: Mapping[SegmentId, str], totals: Mapping[str, float], hosts: Sequence[Host]
) -> dict[SegmentId, str]:
    """An owner for each new segment, as in `assign`, where it is known what each host has in all: a few segments among
    very many.

    `new` and `totals` are loads of one unit, `kin` the owned segments of the same topics.
    """
    board = _Board(hosts)
    if not board.order:
        return {}
    each = fsum(new.values()) / max(len(new), 1) or 1.0
    weights = {segment: max(BASE, round(load / each * MEAN)) for segment, load in new.items()}
    board.begin({broker: round(totals.get(broker, 0.0) / each * MEAN) for broker in board.load}, kin)
    level = _level(board.load.values(), sum(weights.values()))
    return {
        segment: board.take(segment, weights[segment], level - weights[segment])
        for segment in sorted(new, key=lambda each: (-weights[each], each))
    }


def moves(
    owned: Mapping[SegmentId, str],
    loads: Mapping[SegmentId, float],
    hosts: Sequence[Host],
    limit: int,
    tolerance: float = TOLERANCE,
) -> list[Move]:
    """The moves that even the load, at most `limit`, the most useful first, at most one of a segment.

    All segments of draining hosts go. Else nothing moves while all hosts are within `tolerance` (a share) of the mean;
    a host below it counts too, so that one that joins gets its share. A move always lowers the maximum of its two
    hosts, so that moves end; once all are applied, the same loads give none. Arguments as in `assign`.
    """
    board = _Board(hosts)
    if not board.order:
        return []
    present = _present(owned, hosts)
    weights, fair = _weigh(present, loads, len(board.order), tolerance)
    board.fill(present, weights)
    plan: dict[SegmentId, Move] = {}
    leaving = [segment for segment, broker in present.items() if broker not in board.load]
    for segment in sorted(leaving, key=lambda each: (-weights[each], each))[: max(limit, 0)]:
        plan[segment] = Move(segment, present[segment], board.take(segment, weights[segment], fair - weights[segment]))
    bounds = (fair * (1 - tolerance), fair, fair * (1 + tolerance))
    if len(plan) < limit and not board.within(bounds):
        where = present | {segment: move.target for segment, move in plan.items()}
        _even(board, where, weights, bounds, plan, limit)
    return list(plan.values())


def successor_of(key: str, hosts: Sequence[Host]) -> str | None:
    """The host of a key that is not draining, by rendezvous hashing (Thaler and Ravishankar, 1998): where a host goes,
    only its own keys move; one that comes takes its share of the keys and no others move. None without a host."""
    ranked = ((mmh3.hash64(f"{host.broker}/{key}"), host.broker) for host in hosts if not host.draining)
    return max(ranked, default=(None, None))[1]


class _Board:
    """The hosts that take segments, the lightest first, and how much of each topic they and their zones have."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._zone = {host.broker: host.zone for host in hosts if not host.draining}
        self._rank = _alternating(self._zone)
        self._on_host: defaultdict[str, defaultdict[str, int]] = defaultdict(_counts)
        self._in_zone: defaultdict[str, defaultdict[str, int]] = defaultdict(_counts)
        self.load = dict.fromkeys(self._zone, 0)
        self.order = sorted((0, rank, broker) for broker, rank in self._rank.items())

    def fill(self, present: Mapping[SegmentId, str], weights: Mapping[SegmentId, int]) -> None:
        """Count what the hosts own."""
        for segment, broker in present.items():
            if broker in self.load:
                self.load[broker] += weights[segment]
                self._count(segment[0], broker, 1)
        self._sort()

    def begin(self, load: Mapping[str, int], kin: Mapping[SegmentId, str]) -> None:
        """Take over what the hosts have in all, and count some of their segments."""
        self.load |= load
        for segment, broker in kin.items():
            if broker in self.load:
                self._count(segment[0], broker, 1)
        self._sort()

    def within(self, bounds: tuple[float, float, float]) -> bool:
        """Whether no host is too light or too heavy."""
        return bounds[0] <= self.order[0][0] and self.order[-1][0] <= bounds[2]

    def take(self, segment: SegmentId, weight: int, most: float) -> str:
        """Put a segment on the best of the lightest hosts: of those that have at most `most`, or as little as the
        lightest, the one with the least of its topic, then the one whose zone has the least of it."""
        on_host, in_zone, zone = self._on_host[segment[0]], self._in_zone[segment[0]], self._zone
        most = max(most, self.order[0][0])
        few = [
            (on_host[broker], in_zone[zone[broker]], at)
            for at, (load, _, broker) in enumerate(self.order[:LOOK])
            if load <= most
        ]
        at = min(few)[-1]
        broker = self.order[at][-1]
        self._change(at, segment[0], weight, 1)
        return broker

    def give(self, segment: SegmentId, broker: str, weight: int) -> None:
        """Take a segment off its host."""
        at = bisect_left(self.order, (self.load[broker], self._rank[broker], broker))
        self._change(at, segment[0], -weight, -1)

    def entry(self, broker: str) -> tuple[int, int, str]:
        """How the host sorts among those that give: the heaviest first."""
        return -self.load[broker], self._rank[broker], broker

    def _change(self, at: int, topic: str, weight: int, count: int) -> None:
        load, rank, broker = self.order.pop(at)
        self.load[broker] = load + weight
        insort(self.order, (load + weight, rank, broker))
        self._count(topic, broker, count)

    def _sort(self) -> None:
        self.order = sorted((load, self._rank[broker], broker) for broker, load in self.load.items())

    def _count(self, topic: str, broker: str, count: int) -> None:
        self._on_host[topic][broker] += count
        self._in_zone[topic][self._zone[broker]] += count


def _counts() -> defaultdict[str, int]:
    return defaultdict(int)


def _even(
    board: _Board,
    where: Mapping[SegmentId, str],
    weights: Mapping[SegmentId, int],
    bounds: tuple[float, float, float],
    plan: dict[SegmentId, Move],
    limit: int,
) -> None:
    """Add moves from the heaviest host to the lightest until all are within bounds, or no move helps."""
    low, fair, high = bounds
    held: defaultdict[str, list[_Piece]] = defaultdict(list)
    for segment, broker in where.items():
        held[broker].append((weights[segment], mmh3.hash(repr(segment)), segment))
    for pieces in held.values():
        pieces.sort()
    givers = [board.entry(broker) for broker in board.load]
    heapify(givers)
    while givers and len(plan) < limit:
        source = heappop(givers)[-1]  # an entry from before it got a segment does no harm
        load, lightest = board.load[source], board.order[0][0]
        if load <= high and lightest >= low:
            return
        room = min(load - (low + fair) / 2, fair - lightest)
        at = _choose(held[source], load - lightest, room)
        if at is None:
            continue  # no move from it helps, as the lightest host only gets heavier; until it gets a segment
        weight, mark, segment = held[source].pop(at)
        board.give(segment, source, weight)
        target = board.take(segment, weight, lightest)
        insort(held[target], (weight, mark, segment))
        origin = plan.pop(segment).source if segment in plan else source
        if origin != target:
            plan[segment] = Move(segment, origin, target)
        heappush(givers, board.entry(source))
        heappush(givers, board.entry(target))


def _choose(pieces: Sequence[_Piece], gap: int, room: float) -> int | None:
    """Where the segment to move stands: the heaviest within the room, so that moves are few, else the lightest. None
    where none is lighter than the gap between the hosts: only such a one lowers the heavier of the two."""
    at = max(bisect_right(pieces, min(room, gap - 1), key=itemgetter(0)) - 1, 0)
    return at if pieces and pieces[at][0] < gap else None


def _weigh(
    segments: Iterable[SegmentId], loads: Mapping[SegmentId, float], hosts: int, tolerance: float
) -> tuple[dict[SegmentId, int], float]:
    """What each segment counts as, and the fair share of a host."""
    given = {segment: loads.get(segment, 0.0) for segment in segments}
    mean = fsum(given.values()) / max(len(given), 1) or 1.0
    weights = {segment: max(BASE, round(load / mean * MEAN)) for segment, load in given.items()}
    total = sum(weights.values())
    for weight in sorted(weights.values(), reverse=True):
        if hosts == 1 or weight * hosts <= total * (1 + tolerance):
            break
        total, hosts = total - weight, hosts - 1
    fair = total / hosts
    high, share = fair * (1 + tolerance), max(BASE, int(fair) + 1)
    return {segment: weight if weight <= high else share for segment, weight in weights.items()}, fair


def _level(loads: Collection[int], more: int) -> float:
    """What the lighter ones all have once `more` has been shared out to them."""
    total, hosts = sum(loads) + more, len(loads)
    for load in sorted(loads, reverse=True):
        if load * hosts <= total:
            break
        total, hosts = total - load, hosts - 1
    return total / hosts


def _present(owned: Mapping[SegmentId, str], hosts: Sequence[Host]) -> dict[SegmentId, str]:
    """The segments whose owners are hosts."""
    brokers = {host.broker for host in hosts}
    return {segment: broker for segment, broker in owned.items() if broker in brokers}


def _alternating(zones: Mapping[str, str]) -> dict[str, int]:
    """Ranks of the brokers that go round the zones, so that the first few of equally light hosts are of all zones."""
    seen: defaultdict[str, int] = defaultdict(int)
    keys = []
    for broker, zone in sorted(zones.items()):
        keys.append((seen[zone], zone, broker))
        seen[zone] += 1
    return {broker: rank for rank, (_, _, broker) in enumerate(sorted(keys))}
