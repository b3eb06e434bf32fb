"""Periodic tasks of the leader. They run beside its rounds, each at most once at a time: no round waits for one.

Here are those that need little: abandoned deletions of topics are continued, backends of journals delete what dead
brokers have left and nobody needs any more, and files that came late are swept. A put that was under way when its
broker was cut off may land minutes later. The ids of its segment are never used again, so no broker reads it. But
readers of the whole directory do, and after the topic's name was taken again they see rows of the old topic among those
of the new one. So the folders of a name are swept each time for LATE_S after its topic went; the hourly sweep removes
what comes later, or while another broker leads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, read_all
from seaweedq.errors import SeaweedqError
from seaweedq.journal.interface import Journals

DELETION_S = 5.0  # the leader continues a deletion that has not ended for so long
DELETIONS = 4
logger = logging.getLogger(__name__)


class PeriodicTask:
    """A periodic task: `work` is due again `every_s` after it has ended, also after it has failed."""

    def __init__(self, name: str, work: Callable[[], Awaitable[object]], every_s: float, clock: Clock) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._clock = clock
        self._due_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begins the work, if it is due and not under way."""
        if self._task is None and self._clock.monotonic_s() >= self._due_s:
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Cancels the work that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._work()
        except SeaweedqError as error:
            logger.warning("%s ended early, to be tried again: %s", self._name, error)
        except Exception:
            logger.exception("%s failed, to be tried again", self._name)
        finally:
            self._due_s = self._clock.monotonic_s() + self._every_s
            self._task = None


class Deletions:
    """Deletions of topics that the broker which began them seems to have abandoned."""

    def __init__(self, catalog: Catalog, delete: Callable[[Topic], Awaitable[None]], clock: Clock) -> None:
        self._catalog = catalog
        self._delete = delete
        self._clock = clock
        self._since_s: dict[Topic, float] = {}

    async def end(self) -> None:
        """Continues those that are due."""
        now_s = self._clock.monotonic_s()
        self._since_s = {topic: self._since_s.get(topic, now_s) for topic in self._catalog.doomed()}
        due = [topic for topic, since_s in self._since_s.items() if now_s - since_s > DELETION_S]
        await gather_bounded(DELETIONS, self._end, due)

    async def _end(self, topic: Topic) -> None:
        try:
            await self._delete(topic)
        except SeaweedqError as error:
            logger.warning("topic %s is not deleted yet: %s", topic.name, error)
        except Exception:  # a defect must not end the others under way
            logger.exception("topic %s is not deleted yet", topic.name)


class JournalSweep:
    """The sweep over all journals."""

    def __init__(self, coordination: Coordination, journals: Journals) -> None:
        self._coordination = coordination
        self._journals = journals

    async def sweep(self) -> None:
        """Deletes the rest of journals that are long forgotten."""
        if removed := await self._journals.sweep(self._known):
            logger.info("removed %d objects of journals of brokers that are long gone", removed)

    async def _known(self) -> set[str]:
        """Returns the brokers that live, or whose journals are still to be recovered, be their records readable or
        not."""
        brokers, _ = await read_all(self._coordination, keys.BROKERS.prefix())
        journals, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        return {keys.BROKERS.parse(e.key)[0] for e in brokers} | {keys.JOURNALS.parse(e.key)[0] for e in journals}


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
