"""The pace of an object journal: when the next put may begin, how many there may be, and the patience with a slow one.
Pure.

A commit need not wait for company: what comes while the window is full, or while the budget of puts is used up, shares
the next one. Where a linger is set, it lies between the starts of two puts as well. It is additive to latency and
divides the cost, so it is short while the store keeps up and grows while the window is full: that costs nothing then.
The second try of a slow put is a hedge (Dean and Barroso, The Tail at Scale, 2013): the same bytes under the same name,
so it does no harm.

The budget is for stores that charge for each put: a token bucket that may go into debt. A put without a wait (a hedge,
a repeat, an empty slot, a full commit) is spent all the same, and the commits behind it pay for it.
"""

from dataclasses import dataclass

BURST = 1_000  # puts that a rest saves up: half a cent at list price
MOST_PACES = 2  # a commit waits no longer than for so many puts of the rate, whatever the debt
DEBT_S = 60  # a debt above what this time brings is let go
RATE_S = 300  # the time over which the rate of puts is told
MAX_WINDOW = 64
MANY_NEEDED = 3_000  # slots that a recovery would read: from here on puts lie MANY_APART_S apart, whatever else holds
MANY_APART_S = 0.02
GROW, SHRINK = 1.25, 0.8
FIRST_S = 0.001  # what a linger of zero grows from
HEDGE_FACTOR = 3
HEDGE_MIN_S, HEDGE_MAX_S = 0.1, 2.0
SLOW_BYTES_PER_S = 20e6  # a put of many bytes may take longer by so much
USUAL_AT_FIRST_S = 0.2
WEIGHT = 0.1  # of the newest put in the usual time


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


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of an object journal's puts. At most `window` (up to MAX_WINDOW) are under way, and in the long
    run `puts_per_s` begin (0: any number).

    `linger_s` to `linger_max_s` lie between the starts of two puts. After `idle_s` without an append, a journal of
    which everything is released puts the empty slot.
    """

    window: int
    linger_s: float = 0
    linger_max_s: float = 0
    puts_per_s: float = 0
    idle_s: float = 1.0

    def __post_init__(self) -> None:
        assert 1 <= self.window <= MAX_WINDOW


class Pacer:
    """Tells when the next commit may begin. Times are of a monotonic clock, in seconds."""

    def __init__(self, pace: Pace, now_s: float) -> None:
        self.budget = PutBudget(pace.puts_per_s, now_s)
        self._pace = pace
        self._linger_s = pace.linger_s
        self._may_begin_s = now_s

    def wait_s(self, now_s: float, needed: int) -> float:
        """Returns how many seconds the next commit waits that could begin now, while a recovery would read `needed`
        slots. The one behind it counts from there."""
        begin_s = max(self._may_begin_s, now_s + self.budget.wait_s(now_s))
        self._may_begin_s = begin_s + self._apart_s(needed)
        return begin_s - now_s

    def record_start(self, now_s: float, needed: int, is_full: bool) -> None:
        """Records that a commit has begun, and whether the window is full with it."""
        low_s, high_s = self._pace.linger_s, self._pace.linger_max_s
        self._linger_s = next_linger_s(self._linger_s, is_full, low_s, max(low_s, high_s))
        self._may_begin_s = now_s + self._apart_s(needed)

    def _apart_s(self, needed: int) -> float:
        return max(self._linger_s, MANY_APART_S if needed >= MANY_NEEDED else 0)


def next_linger_s(linger_s: float, is_full: bool, low_s: float, high_s: float) -> float:
    """Returns the linger, in [low_s, high_s], after one more put has begun.

    If `is_full`, no other put may begin before one ends.
    """
    if is_full:
        return min(max(linger_s, FIRST_S) * GROW, high_s)
    return max(linger_s * SHRINK, low_s)


def next_usual_s(usual_s: float, took_s: float) -> float:
    """Returns how long a put usually takes, after one more."""
    return usual_s + WEIGHT * (took_s - usual_s)


def patience_s(usual_s: float, size_bytes: int) -> float:
    """Returns how long to wait for a put of that size before a second one is begun."""
    return min(max(HEDGE_FACTOR * usual_s, HEDGE_MIN_S), HEDGE_MAX_S) + size_bytes / SLOW_BYTES_PER_S
