"""The pulls of a subscription that queue at other brokers (dispatch/relayed_waits), as those brokers told last. Pure.

Who queues there has no pull here, so the dispatcher would count none of them. What is told is soft: it is replaced by
the next report of the same broker, and forgotten after KEPT_S where none comes.
"""

from collections.abc import Collection
from typing import NamedTuple

KEPT_S = 5.0


class _Told(NamedTuple):
    pulls: int
    consumers: frozenset[str]
    until_s: float


class Elsewhere:
    """How many pulls queue at other brokers, and for which consumers; "" stands for those without a name."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def hear(self, broker: str, pulls: int, consumers: Collection[str], now_s: float) -> None:
        """Takes in what a broker tells."""
        if pulls:
            self._told[broker] = _Told(pulls, frozenset(consumers), now_s + KEPT_S)
        else:
            self._told.pop(broker, None)

    def pulls(self, now_s: float) -> int:
        """Returns how many pulls queue at other brokers."""
        return sum(one.pulls for one in self._current(now_s))

    def consumers(self, now_s: float) -> set[str]:
        """Returns the names of their consumers."""
        return set[str]().union(*(one.consumers for one in self._current(now_s)))

    def _current(self, now_s: float) -> Collection[_Told]:
        self._told = {broker: one for broker, one in self._told.items() if now_s < one.until_s}
        return self._told.values()
