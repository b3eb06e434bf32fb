"""The cluster's level, as this broker knows it: a watched view of the cluster's record, so possibly behind.

To be behind is safe, since the level never falls: this broker then writes an older form, and each broker reads those.
"""

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Coordination
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.view import View
from seaweedq.errors import NeedsLevel
from seaweedq.levels import LOWEST


class ClusterLevel:
    """The level at which forms are written now."""

    def __init__(self, coordination: Coordination, roster: Roster) -> None:
        self._roster = roster
        self._written = LOWEST
        view = View(coordination, [keys.CLUSTER.key()], self._apply)
        self.load = view.load
        self.follow = view.follow

    @property
    def written(self) -> int:
        """Returns the level at which forms are written now. It never falls."""
        return self._written

    def require(self, level: int, what: str) -> None:
        """Raises NeedsLevel where forms of `level`, which `what` needs, are not written yet."""
        if self._written >= level:
            return
        too_old = sorted(id for id, known in self._roster.brokers.items() if known.record.highest < level)
        raise NeedsLevel(
            f"{what} needs a cluster of level {level}, and this one has level {self._written}; "
            + (
                f"these brokers are too old for it: {', '.join(too_old)}"
                if too_old
                else f"`seaweedq cluster level {level}` raises it"
            ),
            level=self._written,
            needs=level,
            too_old=too_old,
        )

    def _apply(self, change: Change) -> None:
        if change.value is not None:
            self._written = max(self._written, keys.CLUSTER.decode(change.value).written)
