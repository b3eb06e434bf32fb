"""Levels of a cluster, as those who write formats ask for them."""

from seaweedq.levels import HIGHEST, LOWEST


def newest() -> int:
    """The level of a new cluster."""
    return HIGHEST


def first() -> int:
    """The level of a cluster that is older than levels."""
    return LOWEST
