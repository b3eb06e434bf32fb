"""Following: the views of the cluster that this broker keeps, each loaded once and then watched.

A member follows them from before its recovery on, until it leaves.
"""

from seaweedq.broker.cluster.level_rise import JoinGuard
from seaweedq.broker.context import Context
from seaweedq.broker.service import Service, Tasks


class Following(Service):
    """Follows level, brokers, topics and principals. The `guard` keeps out brokers that do not read the level."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.guard = JoinGuard(context.coordination, context.level, context.roster)

    async def run(self) -> Tasks:
        """Loads the views, and follows them."""
        level, roster, catalog = self._context.level, self._context.roster, self._context.catalog
        callers = self._context.callers
        revisions = [await view.load() for view in (level, roster, catalog, callers.view)]
        return {
            "cluster level": level.follow(revisions[0]),
            "guard of the level": self.guard.run(),
            "roster": roster.follow(revisions[1]),
            "catalog": catalog.follow(revisions[2]),
            "principals and tokens": callers.view.follow(revisions[3]),
            "rights of those who wait": callers.look_often(self._context.membership.valid),
        }
