"""A budget of an object journal's puts, for stores that charge for each of them. Pure.

A token bucket that may go into debt: what is put without a wait (a hedge, a repeat, an empty slot, a full commit)
is spent all the same, and the commits behind it pay for it.
"""

BURST = 1_000  # puts that a rest saves up: half a cent at list price
MOST_PACES = 2  # a commit waits no longer than for so many puts of the rate, whatever the debt
DEBT_S = 60  # a debt above what this time brings is let go
RATE_S = 300  # the time over which the rate of puts is told


class PutBudget:
    """The puts of one journal: at most `per_s` a second in the long run (0: any number), BURST of them at once.

    Counts them in `puts`. Times are of a monotonic clock, in seconds.
    """

    def __init__(self, per_s: float, now_s: float) -> None:
        self.puts = 0
        self._per_s = per_s
        self._tokens = float(BURST)
        self._at_s = now_s
        self._window_s, self._in_window = now_s, 0
        self._rate: float | None = None  # of the last whole window

    def spend(self, now_s: float) -> None:
        """Counts one put that begins now."""
        self.rate(now_s)
        self.puts += 1
        self._in_window += 1
        self._tokens = max(self._now(now_s) - 1, -self._per_s * DEBT_S)
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Returns how many seconds a commit has to wait that would begin now."""
        missing = 1 - self._now(now_s)
        return min(missing, MOST_PACES) / self._per_s if self._per_s and missing > 0 else 0.0

    def rate(self, now_s: float) -> float:
        """Returns how many puts a second there were over the last whole RATE_S; before that, since the beginning."""
        if (passed_s := now_s - self._window_s) >= RATE_S:
            self._rate, self._window_s, self._in_window = self._in_window / passed_s, now_s, 0
        return self._in_window / max(passed_s, 1.0) if self._rate is None else self._rate

    def _now(self, now_s: float) -> float:
        return min(self._tokens + (now_s - self._at_s) * self._per_s, BURST)
