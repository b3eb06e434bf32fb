"""The names of a client's leases. A pull that is repeated under its name gets the same messages, so that none is
skipped where an answer was lost.

Brokers of 0.1, and clusters below level 3, refuse the name. They are asked again after REFUSED_S: a cluster's level
rises while its clients run.
"""

from collections.abc import Callable
from math import inf

from seaweedq.errors import InvalidRequest, NeedsLevel, SeaweedqError

REFUSED_S = 300.0


class LeaseNames:
    """Gives each pull of a client a name, unless its brokers refuse them."""

    def __init__(self, new: Callable[[], str], monotonic_s: Callable[[], float]) -> None:
        self._new = new
        self._monotonic_s = monotonic_s
        self._refused_s = -inf

    def new_name(self) -> str | None:
        """Returns a new name, or None for a while after one was refused."""
        return None if self._monotonic_s() < self._refused_s + REFUSED_S else self._new()

    def refuse(self, error: SeaweedqError) -> None:
        """Notes that a broker refused a name; raises any error that says something else."""
        if not (isinstance(error, NeedsLevel) or "`lease`" in error.detail):
            raise error
        self._refused_s = self._monotonic_s()


REFUSALS = (InvalidRequest, NeedsLevel)
