"""The leader's sweep of late files: those that a broker put into the folder of a topic after the topic was deleted.

A put that was under way when its broker was cut off may land minutes later. The ids of its segment are never used
again, so no broker reads it. But readers of the whole directory do, and where the name was taken again they see rows of
the old topic among those of the new one. So the folders of a name are swept each time for LATE_S after its topic went;
what comes later, or where another broker leads by then, the hourly sweep removes.
"""

from collections.abc import Awaitable, Callable, Collection

from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock

LATE_S = 600.0


class LateFiles:
    """The names whose topics went lately. `sweep` removes the files of the dead ids of some names."""

    def __init__(self, catalog: Catalog, sweep: Callable[[Collection[str]], Awaitable[object]], clock: Clock) -> None:
        self._catalog = catalog
        self._sweep = sweep
        self._clock = clock
        self._seen: dict[str, int] = {}  # the incarnation of each name at the last look
        self._gone_s: dict[str, float] = {}

    async def look(self) -> None:
        """Notes which topics went since the last look, and sweeps the names of those that did so lately."""
        now_s = self._clock.monotonic_s()
        topics = filter(None, map(self._catalog.find, self._catalog.names()))
        there = {topic.name: topic.record.incarnation for topic in topics}
        gone = [name for name, incarnation in self._seen.items() if there.get(name) != incarnation]
        self._seen = there
        self._gone_s |= dict.fromkeys(gone, now_s)
        self._gone_s = {name: at_s for name, at_s in self._gone_s.items() if now_s - at_s < LATE_S}
        if self._gone_s:
            await self._sweep(self._gone_s.keys())
