"""The pace of an object journal: the linger between two puts, and the patience with a slow one. Pure.

The linger is additive to latency and divides the cost, so it is short while the store keeps up and grows while the
window is full: then waiting costs nothing, and more messages share a put. The second try of a slow put is a hedge
(Dean and Barroso, The Tail at Scale, 2013): the same bytes under the same name, so it does no harm.
"""

GROW, SHRINK = 1.25, 0.8
FIRST_S = 0.001  # what a linger of zero grows from

HEDGE_FACTOR = 3
HEDGE_MIN_S, HEDGE_MAX_S = 0.1, 2.0
SLOW_BYTES_PER_S = 20e6  # a put of many bytes may take longer by so much
USUAL_AT_FIRST_S = 0.2
WEIGHT = 0.1  # of the newest put in the usual time


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
