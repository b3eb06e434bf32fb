"""A bound of so much a second, kept by one broker. Pure: the time is passed in.

A request is let in where the bucket is not in debt, whatever it costs, and may leave it in debt: else one that costs
more than the bucket holds could never be served. Those behind it wait until the debt is paid, so that the rate holds.
"""

BURST_S = 1.0  # of its rate is what a bucket holds that nobody has drawn from
MOST_WAIT_S = 60.0  # is what a refusal says at most: the rate may be raised meanwhile


class Bucket:
    """A bucket, full at first. `rate` is what it gains a second. It counts what was `used`, and whether something was
    `refused`."""

    __slots__ = ("_at_s", "_level", "rate", "refused", "used")

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self._level = rate * BURST_S
        self._at_s = now_s
        self.used = 0.0
        self.refused = False

    def take(self, amount: float, now_s: float) -> float:
        """Takes an amount and returns 0; or takes nothing, and returns the seconds until a request is let in."""
        rate = self.rate
        level = self._level + (now_s - self._at_s) * rate
        most = rate * BURST_S
        self._level = level = level if level < most else most
        self._at_s = now_s
        if level < 0 or not self.rate:
            self.refused = True
            return min(MOST_WAIT_S, -level / self.rate) if self.rate else MOST_WAIT_S
        self._level = level - amount
        self.used += amount
        return 0.0

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
        self._level, self._at_s, self.rate = min(level, max(self.rate, rate) * BURST_S), now_s, rate
