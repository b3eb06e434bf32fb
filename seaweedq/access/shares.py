"""The shares that the brokers of a cluster have of one limit. Pure.

The leader splits a limit every SPLIT_S by what each broker used since the last time. Whoever refused something wants
more than it used: those share evenly what the others leave. What nobody used is shared out evenly. No share is below a
tenth of an even one, so that a broker which gets its first requests can serve some of them until the next split. Those
floors come on top of the split: they are used by nobody, or are used, and then count as such in the next one.

A broker whose share was not renewed for LAPSE_S has an even one: leaders end, and messages get lost. Then all brokers
together give the limit again, if they see the same number of brokers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SPLIT_S = 2.0
LAPSE_S = 6.0
FLOOR = 0.1  # of an even share


@dataclass(frozen=True, slots=True)
class Use:
    """What one broker let in, a second, and whether it refused something."""

    rate: float
    refused: bool = False


def even(limit: float, brokers: int) -> float:
    """Returns the share of a broker of which nothing else is known."""
    return limit / max(1, brokers)


def split(limit: float, uses: Mapping[str, Use]) -> dict[str, float]:
    """Returns the share of each broker."""
    if not uses:
        return {}
    floor = FLOOR * even(limit, len(uses))
    hungry = [broker for broker, use in uses.items() if use.refused]
    shares = _in_proportion(limit, {broker: use.rate for broker, use in uses.items() if not use.refused})
    shares = _fair(shares, limit, len(hungry))
    left = max(0.0, limit - sum(shares.values()))
    takers = hungry or list(uses)
    for broker in takers:
        shares[broker] = shares.get(broker, 0.0) + left / len(takers)
    return {broker: max(floor, share) for broker, share in shares.items()}


def _in_proportion(limit: float, rates: Mapping[str, float]) -> dict[str, float]:
    """Returns the rates, cut in proportion where they are over the limit together."""
    total = sum(rates.values())
    return {broker: rate * min(1.0, limit / total) if total else 0.0 for broker, rate in rates.items()}


def _fair(shares: Mapping[str, float], limit: float, hungry: int) -> dict[str, float]:
    """Cuts the shares of those who want no more to what is fair, beside so many who do: the highest bound at which all
    who are below it keep theirs, and all others, the hungry ones with them, have that bound."""
    ordered = sorted(shares.values())
    left, heads = limit, len(ordered) + hungry
    bound = left / heads if hungry else limit
    for rate in ordered if hungry else ():
        if rate > left / heads:
            break
        left, heads = left - rate, heads - 1
        bound = left / heads
    return {broker: min(rate, bound) for broker, rate in shares.items()}


class Share:
    """One broker's share of a limit, as the leader last said it."""

    __slots__ = ("_granted", "_until_s")

    def __init__(self) -> None:
        self._granted, self._until_s = 0.0, float("-inf")

    def grant(self, rate: float, now_s: float) -> None:
        """Takes what the leader said just now."""
        self._granted, self._until_s = rate, now_s + LAPSE_S

    def rate(self, limit: float, brokers: int, now_s: float) -> float:
        """Returns what this broker may let in a second, where so many brokers live."""
        return self._granted if now_s < self._until_s else even(limit, brokers)
