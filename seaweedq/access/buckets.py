"""A bound of so much a second, kept by one broker. Pure: the time is passed in.

A request is let in where the bucket is not in debt, whatever it costs, and may leave it in debt: else one that costs
more than the bucket holds could never be served. Those behind it wait until the debt is paid, so that the rate holds.

A bucket of a low rate holds what more than a second brings: one that holds less than a request or two forgets most of
what it gains while nobody asks, and where requests come as they like, and are lost when they are refused, it would let
in little more than half of its rate.
"""

from collections.abc import Iterable

BURST_S = 1.0  # of its rate is what a bucket holds that nobody has drawn from
FEW, FEW_S = 5.0, 8.0  # it holds at least so many requests, as far as so many seconds bring them
MOST_WAIT_S = 60.0  # is what a refusal says at most: the rate may be raised meanwhile


def burst(rate: float) -> float:
    """Returns what a bucket of this rate holds."""
    return max(rate * BURST_S, min(FEW, rate * FEW_S))


def take_all(asked: Iterable["Bucket"], costs: Iterable[tuple["Bucket", float]], now_s: float) -> bool:
    """Takes all costs and returns True; or nothing, where one of those `asked`, the ones that costs name among them,
    would refuse. To `take` of each costs a request with a few limits twice as much."""
    for bucket in asked:
        level = bucket._level + (now_s - bucket._at_s) * bucket.rate
        bucket._level = level if level < bucket._most else bucket._most
        bucket._at_s = now_s
        if level < 0 or not bucket.rate:
            return False
    for bucket, amount in costs:
        bucket._level -= amount
        bucket.used += amount
    return True


class Bucket:
    """A bucket, full at first. `rate` is what it gains a second. It counts what was `used`, and whether something was
    `refused`."""

    __slots__ = ("_at_s", "_level", "_most", "rate", "refused", "used")

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self._level = self._most = burst(rate)
        self._at_s = now_s
        self.used = 0.0
        self.refused = False

    def take(self, amount: float, now_s: float) -> float:
        """Takes an amount and returns 0; or takes nothing, and returns the seconds until a request is let in."""
        rate = self.rate
        level = self._level + (now_s - self._at_s) * rate
        self._level = level = level if level < self._most else self._most
        self._at_s = now_s
        if level < 0 or not rate:
            self.refused = True
            return self.wait_s(max(0.0, -level))
        self._level = level - amount
        self.used += amount
        return 0.0

    def wait_s(self, debt: float) -> float:
        """Returns how long whoever was refused is to wait until so much is paid."""
        return min(MOST_WAIT_S, debt / self.rate) if self.rate else MOST_WAIT_S

    def level(self, now_s: float) -> float:
        """Returns what it holds, below 0 what is owed."""
        return self._level + max(0.0, now_s - self._at_s) * self.rate

    def spend(self, amount: float) -> None:
        """Takes what a request that was let in turned out to cost more; a negative amount is given back."""
        self._level -= amount
        self.used += amount

    def set_rate(self, rate: float, now_s: float) -> None:
        """Changes the rate from now on. What was gained is kept as far as the bucket holds it then, a debt as it is."""
        level = self._level + max(0.0, now_s - self._at_s) * self.rate
        most = burst(rate)
        self._level, self._at_s, self.rate = min(level, max(self._most, most)), now_s, rate
        self._most = most
