"""The decisions of a mirrored journal. Pure: the owner, the mirrors and recoveries act on them, and the model checks
them (docs/internals/mirrored-journal.md).

A journal's commits are numbered from 0. A mirror has a dense run of them, its *span*. `stored` is the number below
which the store has all that is needed: in acknowledged slots, or in chains and cursors.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple


class Span(NamedTuple):
    """The commits [first, end) that a holding has."""

    first: int
    end: int

    def after(self, stored: int, first: int, end: int) -> "Span":
        """Returns the span once the commits below `stored` have gone, and [first, end) have come. Those that are behind
        a gap are not taken; those that it has are the same ones."""
        begins = max(self.first, stored)
        ends = max(self.end, begins)
        return Span(begins, max(ends, end) if first <= ends else ends)


def held_below(ends: Iterable[int], stored: int) -> int:
    """Returns the number below which each commit is stored, or held by all mirrors of a set, whose spans have these
    `ends`. An empty set holds nothing."""
    return max(stored, min(ends, default=stored))


def acknowledged_below(ends: Iterable[int], asked: Iterable[int] | None, stored: int) -> int:
    """Returns the number below which commits may be answered. `asked` has the ends of the set that a change asks for
    whose outcome is not known: both sets must have a commit then."""
    below = held_below(ends, stored)
    return below if asked is None else min(below, held_below(asked, stored))


def may_change(ends: Iterable[int], stored: int, acknowledged: int) -> bool:
    """Tells whether a change may be sent to a set whose mirrors have these ends: all that was acknowledged is there, or
    stored."""
    return held_below(ends, stored) >= acknowledged


@dataclass(frozen=True, slots=True)
class KnownHolding:
    """A holding as its owner knows it; its id is empty until it is open. One that is `able` answers in time; one that
    is not `staying` is to be replaced, since its broker drains, or is in the wrong zone."""

    holding: str
    end: int
    able: bool = True
    staying: bool = True


def next_set(
    members: Sequence[KnownHolding],
    joining: Sequence[KnownHolding],
    count: int,
    least: int,
    stored: int,
    acknowledged: int,
) -> tuple[str, ...]:
    """Returns the holdings that the set is to have: those that stay, then those that join and have all; one that is to
    be replaced stays until another one has all. With fewer than `least` the set is empty."""
    able = [one for one in joining if one.able and one.staying]
    ready = [one for one in able if one.holding and may_change((one.end,), stored, acknowledged)]
    chosen = ([one for one in members if one.able and one.staying] + ready)[:count]
    if len(ready) < len(able):
        leaving = [one for one in members if one.able and not one.staying]
        chosen += leaving[: count - len(chosen)]
    return tuple(one.holding for one in chosen) if len(chosen) >= least else ()


def wanted_brokers(journal: str, zone: str, members: Sequence[str], zones: Mapping[str, str], count: int) -> list[str]:
    """Returns the brokers that are to be the mirrors of a journal whose owner is in `zone`; `members` are its mirrors
    now, and `zones` has the brokers that may be.

    Members stay. Others come from zones that have neither the owner nor a mirror, then from any other than the owner's;
    a hash of the journal spreads the load. If another zone than the owner's has a broker, one mirror is there.
    """
    kept = [broker for broker in members if broker in zones][:count]
    elsewhere = {broker for broker, its in zones.items() if its != zone}
    if len(kept) == count and elsewhere and not elsewhere.intersection(kept):
        kept.pop()
    while len(kept) < count and (rest := zones.keys() - kept):
        used = {zone, *(zones[broker] for broker in kept)}
        kept.append(min(rest, key=partial(_rank, journal, zone, zones, used)))
    return kept


def _rank(journal: str, zone: str, zones: Mapping[str, str], used: set[str], broker: str) -> tuple[bool, bool, bytes]:
    drawn = hashlib.sha256(f"{journal} {broker}".encode()).digest()
    return zones[broker] in used, zones[broker] == zone, drawn


class FencedHolding(NamedTuple):
    """A holding that takes nothing any more, with its span as of its fence."""

    holding: str
    first: int
    end: int


def chosen_holding(
    members: Collection[str], found: Iterable[FencedHolding], is_given_up: bool = False
) -> FencedHolding | None:
    """Returns the holding from which a recovery takes the journal's end: any of the set will do, and the longest one
    has most of what was never acknowledged. None: no holding of the set is left. Of an empty set any holding may be
    taken, and none has to be; so it is for a journal that `is_given_up`, if none of the set is left."""
    there = list(found)
    able = [one for one in there if not members or one.holding in members] or (there if is_given_up else [])
    return max(able, key=lambda one: (one.end, one.holding), default=None)
