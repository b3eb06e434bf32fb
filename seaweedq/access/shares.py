"""The split of a limit among the brokers of a cluster, in parts of 1. Pure.

The leader splits by what each broker used since the last time. Whoever refused something wants more than it used: those
share evenly what the others leave. What nobody used is shared out evenly. No share is below a tenth of an even one, so
that a broker which gets its first requests can serve some of them until the next split. Those floors come on top of the
split: they are used by nobody, or are used, and then count as such in the next one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SPLIT_S = 2.0
LAPSE_S = 6.0  # for which a share counts that is not renewed; then it is an even one
FLOOR = 0.1  # of an even share


@dataclass(frozen=True, slots=True)
class Use:
    """The part of a limit that one broker let in, and whether it refused something."""

    part: float
    refused: bool = False


IDLE = Use(0.0)


def split(uses: Mapping[str, Use], silent: int = 0) -> dict[str, float]:
    """Returns the share of each broker that said what it used. Each `silent` one may take an even share."""
    if not uses:
        return {}
    floor, limit = FLOOR / (len(uses) + silent), len(uses) / (len(uses) + silent)
    hungry = [broker for broker, use in uses.items() if use.refused]
    shares = _in_proportion(limit, {broker: use.part for broker, use in uses.items() if not use.refused})
    shares = _fair(shares, limit, len(hungry))
    left = max(0.0, limit - sum(shares.values()))
    takers = hungry or list(uses)
    for broker in takers:
        shares[broker] = shares.get(broker, 0.0) + left / len(takers)
    return {broker: max(floor, share) for broker, share in shares.items()}


def _in_proportion(limit: float, parts: Mapping[str, float]) -> dict[str, float]:
    """Returns the parts, cut in proportion where they are over the limit together."""
    total = sum(parts.values())
    return {broker: part * min(1.0, limit / total) if total else 0.0 for broker, part in parts.items()}


def _fair(shares: Mapping[str, float], limit: float, hungry: int) -> dict[str, float]:
    """Cuts the shares of those who want no more to what is fair, beside so many who do: the highest bound at which all
    who are below it keep theirs, and all others, the hungry ones with them, have that bound."""
    ordered = sorted(shares.values())
    left, heads = limit, len(ordered) + hungry
    bound = left / heads if hungry else limit
    for part in ordered if hungry else ():
        if part > left / heads:
            break
        left, heads = left - part, heads - 1
        bound = left / heads
    return {broker: min(part, bound) for broker, part in shares.items()}
