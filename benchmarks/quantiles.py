"""Quantiles of what was measured."""

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many of the others, at least, do not exceed: 0.5 is the median, 1 the greatest."""
    return sorted(values)[int(share * (len(values) - 1))]
