"""Assigns segments to brokers: pure decisions, no I/O, no clock, no randomness.

Loads become whole numbers first, so that sums do not depend on the order of the input and equal loads are equal: this
makes decisions repeatable and prevents segments from moving back and forth. A segment weighs at least `BASE`, so that
idle ones are spread by count. A segment too heavy for any host should be nearly alone there: it weighs a fair share,
and neither it nor one host enters the mean of the others, which would otherwise look idle in comparison.

The caller knows which brokers live and which segments are unassigned. Segments whose owners are not among the hosts are
left alone, since their journals must be recovered first.
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

TopicId = tuple[str, int]
"""Topic, incarnation."""
SegmentId = tuple[str, int, int]
"""Topic, incarnation, segment."""

MEAN = 10_000
"""The weight of a segment with the mean load; so loads that differ by less than a ten-thousandth of it are equal."""
BASE = 500
"""The least weight of a segment: all idle segments together have at most a twentieth of the load."""
LEAST = 1e-9
"""A lower mean load counts as none: rates that fade become so small that a division by them overflows."""
TOLERANCE = 0.2
"""How far a host may be from the mean, as a share of the mean."""
CANDIDATES = 8
"""How many of the lightest hosts are compared by their number of the topic's segments."""

_Weighted = tuple[int, int, SegmentId]  # weight, hash (mixes the topics of equal weights), segment


@dataclass(frozen=True, slots=True)
class Host:
    """A living broker. Hosts without a zone form one zone. A draining one gives segments away, and accepts none."""

    broker: str
    zone: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Hands a segment over from one living broker to another."""

    segment: SegmentId
    source: str
    target: str


def assign(
    unassigned: Sequence[SegmentId],
    owned: Mapping[SegmentId, str],
    loads: Mapping[SegmentId, float],
    hosts: Sequence[Host],
) -> dict[SegmentId, str]:
    """Returns an owner for each unassigned segment: the heaviest first, each to the lightest host and, among hosts
    below the mean, to the one with the fewest segments of its topic. Empty if no host accepts any. The order of the
    arguments does not matter.

    `owned` are the segments of living brokers; `loads` are of any unit, finite, and may lack idle segments.
    """
    board = _Board(hosts)
    if not board.order:
        return {}
    present = _present(owned, hosts)
    weights, fair = _weigh(chain(unassigned, present), loads, len(board.order), TOLERANCE)
    board.fill(present, weights)
    return {
        segment: board.put(segment, weights[segment], fair - weights[segment])
        for segment in sorted(unassigned, key=lambda each: (-weights[each], each))
    }


def spread(
    new: Mapping[SegmentId, float],
    siblings: Mapping[SegmentId, str],
    totals: Mapping[str, float],
    hosts: Sequence[Host],
) -> dict[SegmentId, str]:
    """Returns an owner for each new segment, as `assign` does, if each host's total is known: for a few segments among
    very many.

    `new` and `totals` are loads of one unit, `siblings` the owned segments of the same topics.
    """
    board = _Board(hosts)
    if not board.order:
        return {}
    each = fsum(new.values()) / max(len(new), 1)
    each = each if each >= LEAST else 1.0
    weights = {segment: max(BASE, round(load / each * MEAN)) for segment, load in new.items()}
    board.begin({broker: round(totals.get(broker, 0.0) / each * MEAN) for broker in board.load}, siblings)
    level = _level(board.load.values(), sum(weights.values()))
    return {
        segment: board.put(segment, weights[segment], level - weights[segment])
        for segment in sorted(new, key=lambda each: (-weights[each], each))
    }


def moves(
    owned: Mapping[SegmentId, str],
    loads: Mapping[SegmentId, float],
    hosts: Sequence[Host],
    limit: int,
    tolerance: float = TOLERANCE,
) -> list[Move]:
    """Returns the moves that balance the load, at most `limit`, the most useful first, at most one per segment.

    All segments of draining hosts move. Otherwise nothing moves while all hosts are within `tolerance` (a share) of the
    mean; a host below it counts too, so that a new one gets its share. A move always lowers the maximum of its two
    hosts, so moves end; once all are applied, the same loads give none. Arguments as in `assign`.
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
        plan[segment] = Move(segment, present[segment], board.put(segment, weights[segment], fair - weights[segment]))
    bounds = (fair * (1 - tolerance), fair, fair * (1 + tolerance))
    if len(plan) < limit and not board.within(bounds):
        where = present | {segment: move.target for segment, move in plan.items()}
        _even(board, where, weights, bounds, plan, limit)
    return list(plan.values())


def successor_of(key: str, hosts: Sequence[Host]) -> str | None:
    """Returns the host of a key that is not draining, by rendezvous hashing (Thaler and Ravishankar, 1998): when a host
    leaves, only its own keys move; a new host gets its share of the keys and no others move. None without a host."""
    ranked = ((mmh3.hash64(f"{host.broker}/{key}"), host.broker) for host in hosts if not host.draining)
    return max(ranked, default=(None, None))[1]


class _Board:
    """The hosts that accept segments, the lightest first, and the number of each topic's segments on hosts and in
    zones."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._zone = {host.broker: host.zone for host in hosts if not host.draining}
        self._rank = _alternating(self._zone)
        self._on_host: defaultdict[str, defaultdict[str, int]] = defaultdict(_counts)
        self._in_zone: defaultdict[str, defaultdict[str, int]] = defaultdict(_counts)
        self.load = dict.fromkeys(self._zone, 0)
        self.order = sorted((0, rank, broker) for broker, rank in self._rank.items())

    def fill(self, present: Mapping[SegmentId, str], weights: Mapping[SegmentId, int]) -> None:
        """Counts the segments that the hosts own."""
        for segment, broker in present.items():
            if broker in self.load:
                self.load[broker] += weights[segment]
                self._count(segment[0], broker, 1)
        self._sort()

    def begin(self, load: Mapping[str, int], siblings: Mapping[SegmentId, str]) -> None:
        """Sets the hosts' totals, and counts some of their segments."""
        self.load |= load
        for segment, broker in siblings.items():
            if broker in self.load:
                self._count(segment[0], broker, 1)
        self._sort()

    def within(self, bounds: tuple[float, float, float]) -> bool:
        """Tells whether no host is too light or too heavy."""
        return bounds[0] <= self.order[0][0] and self.order[-1][0] <= bounds[2]

    def put(self, segment: SegmentId, weight: int, most: float) -> str:
        """Puts a segment on the best of the lightest hosts: of those with at most `most`, or as little as the lightest,
        the one with the fewest segments of its topic, then the one whose zone has the fewest."""
        on_host, in_zone, zone = self._on_host[segment[0]], self._in_zone[segment[0]], self._zone
        most = max(most, self.order[0][0])
        few = [
            (on_host[broker], in_zone[zone[broker]], at)
            for at, (load, _, broker) in enumerate(self.order[:CANDIDATES])
            if load <= most
        ]
        at = min(few)[-1]
        broker = self.order[at][-1]
        self._change(at, segment[0], weight, 1)
        return broker

    def remove(self, segment: SegmentId, broker: str, weight: int) -> None:
        """Removes a segment from its host."""
        at = bisect_left(self.order, (self.load[broker], self._rank[broker], broker))
        self._change(at, segment[0], -weight, -1)

    def entry(self, broker: str) -> tuple[int, int, str]:
        """Returns the sort key of a host among those that give segments away: the heaviest first."""
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
    """Adds moves from the heaviest host to the lightest until all are within bounds, or no move helps."""
    low, fair, high = bounds
    per_host: defaultdict[str, list[_Weighted]] = defaultdict(list)
    for segment, broker in where.items():
        per_host[broker].append((weights[segment], mmh3.hash(repr(segment)), segment))
    for segments in per_host.values():
        segments.sort()
    givers = [board.entry(broker) for broker in board.load]
    heapify(givers)
    while givers and len(plan) < limit:
        source = heappop(givers)[-1]  # an entry from before it got a segment does no harm
        load, lightest = board.load[source], board.order[0][0]
        if load <= high and lightest >= low:
            return
        room = min(load - (low + fair) / 2, fair - lightest)
        at = _choose(per_host[source], load - lightest, room)
        if at is None:
            continue  # no move from it helps, as the lightest host only gets heavier; until it gets a segment
        weight, mark, segment = per_host[source].pop(at)
        board.remove(segment, source, weight)
        target = board.put(segment, weight, lightest)
        insort(per_host[target], (weight, mark, segment))
        origin = plan.pop(segment).source if segment in plan else source
        if origin != target:
            plan[segment] = Move(segment, origin, target)
        heappush(givers, board.entry(source))
        heappush(givers, board.entry(target))


def _choose(segments: Sequence[_Weighted], gap: int, room: float) -> int | None:
    """Returns the index of the segment to move: the heaviest within the room, so that moves are few, else the lightest.
    None if none is lighter than the gap between the hosts, since only such a move lowers the heavier of the two."""
    at = max(bisect_right(segments, min(room, gap - 1), key=itemgetter(0)) - 1, 0)
    return at if segments and segments[at][0] < gap else None


def _weigh(
    segments: Iterable[SegmentId], loads: Mapping[SegmentId, float], hosts: int, tolerance: float
) -> tuple[dict[SegmentId, int], float]:
    """Returns the weight of each segment, and the fair share of a host."""
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
    """Returns the load of the lighter hosts once `more` has been shared out to them."""
    total, hosts = sum(loads) + more, len(loads)
    for load in sorted(loads, reverse=True):
        if load * hosts <= total:
            break
        total, hosts = total - load, hosts - 1
    return total / hosts


def _present(owned: Mapping[SegmentId, str], hosts: Sequence[Host]) -> dict[SegmentId, str]:
    """Returns the segments whose owners are hosts."""
    brokers = {host.broker for host in hosts}
    return {segment: broker for segment, broker in owned.items() if broker in brokers}


def _alternating(zones: Mapping[str, str]) -> dict[str, int]:
    """Ranks the brokers in turn through the zones, so that the first few of equally light hosts are of all zones."""
    seen: defaultdict[str, int] = defaultdict(int)
    keys = []
    for broker, zone in sorted(zones.items()):
        keys.append((seen[zone], zone, broker))
        seen[zone] += 1
    return {broker: rank for rank, (_, _, broker) in enumerate(sorted(keys))}
