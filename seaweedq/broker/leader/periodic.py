"""Periodic tasks of the leader. They run beside its rounds, each at most once at a time: no round waits for one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.clock import Clock
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.errors import SeaweedqError

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
