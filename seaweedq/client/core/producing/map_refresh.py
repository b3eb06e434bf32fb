"""When a producer fetches the segment map: at first, every 30 s, and soon after it may be stale. Pure."""

from math import inf

EVERY_S, STALE_S = 30.0, 1.0


class MapRefresh:
    """The times of fetches: only while the producer sends, and one at a time."""

    def __init__(self) -> None:
        self._fetched_s = -inf
        self._fetching = False
        self._stale = False

    def due(self, now_s: float) -> bool:
        """Tells whether a fetch is due."""
        return not self._fetching and now_s >= self._fetched_s + (STALE_S if self._stale else EVERY_S)

    def begin(self) -> None:
        """Records that a fetch begins."""
        self._fetching, self._stale = True, False

    def end(self, now_s: float, seen: bool) -> None:
        """Records that the fetch has ended; `seen`: whether it returned a map."""
        self._fetching, self._fetched_s = False, now_s
        self._stale = self._stale or not seen

    def invalidate(self) -> None:
        """Marks the map as possibly stale."""
        self._stale = True
