"""Carries out the intents of one broker's segments: split, merge, roll.

Level triggered: each intent in the records of this broker's segments is continued from its state
(broker/reshape/replacer), whichever broker began it. This module does not decide what to split or merge.
"""

import asyncio
import logging

from seaweedq.broker.reshape.metrics import Counters
from seaweedq.broker.reshape.replacer import Replacer
from seaweedq.broker.reshape.sealer import Sealer
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.coordination.records.topics import Intent
from seaweedq.errors import SeaweedqError

LOOK_S, PAUSE_S = 1.0, 0.1
logger = logging.getLogger(__name__)


class Reshaper:
    """Runs one task for each intent of this broker's segments, and restarts it until the intent is over."""

    def __init__(self, catalog: Catalog, ownership: Ownership, sealer: Sealer, replacer: Replacer) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._sealer = sealer
        self._replacer = replacer
        self._ending = False
        self._tasks: dict[tuple[Topic, int], asyncio.Task[None]] = {}

    @property
    def under_way(self) -> int:
        """Returns the number of intents that are being carried out."""
        return len(self._tasks)

    @property
    def counters(self) -> Counters:
        """Returns the counters of completed intents."""
        return self._replacer.counters

    async def run(self) -> None:
        """Carries out intents, for ever."""
        while True:
            seen = self._catalog.locking.count
            self._begin()
            if self._catalog.locking.count == seen:
                await self._catalog.locking.wait(LOOK_S)

    async def stop(self, topic: Topic | None = None) -> None:
        """Cancels the tasks of a topic that is being deleted, or all; then no task is begun any more."""
        self._ending = self._ending or topic is None
        tasks = [task for (whose, _), task in self._tasks.items() if topic in (None, whose)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}  # some never began

    def _begin(self) -> None:
        """Begins a task for each intent that has a segment of this broker, and has no task."""
        self._sealer.unlock_what_is_over()
        for name, incarnation, number in [] if self._ending else list(self._catalog.locked()):
            topic = self._catalog.find(name)
            if topic is None or topic.record.incarnation != incarnation or topic.record.state == "deleting":
                continue
            if self._catalog.unreadable_of(topic):
                continue  # perhaps the intent has more segments than those that are known
            record = self._catalog.segment(topic, number).record
            if record.intent is None or record.owner != self._ownership.broker:
                continue
            key = (topic, record.intent.id)
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._try(topic, record.intent), name=f"reshaping {name}")

    async def _try(self, topic: Topic, intent: Intent) -> None:
        try:
            if not await self._replacer.carry_out(topic, intent):
                await asyncio.sleep(PAUSE_S)
        except SeaweedqError as error:
            logger.warning("segments %s of %s are not replaced yet: %s", intent.segments, topic.name, error)
            await asyncio.sleep(LOOK_S)
        except Exception:
            logger.exception("segments %s of %s are not replaced yet", intent.segments, topic.name)
            await asyncio.sleep(LOOK_S)
        finally:
            del self._tasks[topic, intent.id]
            self._catalog.locking.wake()
