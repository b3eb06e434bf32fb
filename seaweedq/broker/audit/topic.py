"""The writer of the audit's topic: it publishes what is in the queue, each TICK_S, by the same path as a client's
messages.

The topic is made by the first row, and again where somebody has deleted it. Rows go out under a producer's identity,
which makes a repeat known; so a batch whose outcome is unknown is sent again as it was, and has no doubles. While the
topic takes nothing the queue fills, and then events are lost.

A batch that is refused for GIVE_UP_S, without an outage meanwhile, is lost, too: nothing says that it is ever taken,
and all behind it wait.

One batch is on its way at a time. A stop sends what is left once more, and then whatever happens.
"""

import asyncio
import logging

from seaweedq.broker.audit.audit import Audit
from seaweedq.broker.audit.events import TOPIC, Event, config, fits, rows
from seaweedq.broker.publish.publisher import Producer, Publisher
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.errors import SeaweedqError, SequenceOutOfOrder, TopicConflict, Unavailable
from seaweedq.segments.producers import AUDIT

TICK_S, PAUSE_S = 0.5, 5.0
GIVE_UP_S = 600.0  # for a batch that the topic refuses, and that no outage keeps away
MOST = 500  # rows of a batch
LAST_S = 2.0  # for what is left at a stop
WARN_S = 60.0
logger = logging.getLogger(__name__)


class AuditTopic(Service):
    """Publishes the events of one broker, if the settings say so."""

    def __init__(
        self,
        audit: Audit,
        catalog: Catalog,
        admin: TopicAdmin,
        publisher: Publisher,
        broker: str,
    ) -> None:
        self.audit = audit
        self._catalog = catalog
        self._admin = admin
        self._publisher = publisher
        self._broker = broker
        self._batch: list[Event] = []  # is sent until it is known to be durable
        self._identities = self._sequence = 0
        self._target: Topic | None = None
        self._sending = asyncio.Lock()
        self._warned_s = float("-inf")
        self._refused_s: float | None = None  # since when the batch is refused

    async def run(self) -> Tasks:
        """Publishes events."""
        return {"audit": self._send_often()} if self.audit.mode == "topic" else {}

    async def _send_often(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not await self._send_all():
                await asyncio.sleep(PAUSE_S)

    async def send_rest(self) -> None:
        """Publishes what is left at a stop, as far as there is time; the rest is lost."""
        try:
            async with asyncio.timeout(LAST_S):
                if await self._send_all():
                    return
        except TimeoutError:
            pass
        self.audit.lose(len(self._batch) + len(self.audit))

    async def _send_all(self) -> bool:
        """Publishes all that there is. Returns False where the topic does not take it."""
        self.audit.look()
        async with self._sending:
            while True:
                self._batch = self._batch or self.audit.take(MOST)
                if not self._batch:
                    return True
                if not await self._sent():
                    return False

    async def _sent(self) -> bool:
        """Publishes the batch. Returns False where that failed, or its outcome is unknown: it goes again as it is."""
        try:
            await self._send()
        except SeaweedqError as error:
            if isinstance(error, SequenceOutOfOrder):
                self._target = None  # under another identity
            self._warn(error)
            if not self._gives_up(error):
                return False
            self._lose()
        except Exception:  # a defect here must end neither the task nor the broker's life
            logger.exception("rows of the audit could not be published, and are lost")
            self._lose()
        self._batch, self._refused_s = [], None
        return True

    def _gives_up(self, error: SeaweedqError) -> bool:
        """Returns whether the batch is refused for so long that it is lost. An outage begins the time anew: what
        refused the batch before may have ended meanwhile."""
        if isinstance(error, Unavailable):
            self._refused_s = None
            return False
        now_s = self.audit.clock.monotonic_s()
        if self._refused_s is None:
            self._refused_s = now_s
        return now_s - self._refused_s >= GIVE_UP_S

    def _lose(self) -> None:
        self.audit.lose(len(self._batch))
        self._target = None  # under another identity: nobody knows what has this one's sequences

    async def _send(self) -> None:
        target = await self._topic()
        if target is not self._target:
            self._target, self._sequence = target, 0
            self._identities += 1
        producer = Producer(f"{AUDIT}{self._broker}.{self._identities}", self._sequence)
        await self._publisher.batch(target, rows(self._batch, target.layout), producer)
        self._sequence += len(self._batch)

    async def _topic(self) -> Topic:
        """Returns the topic, and creates it where it does not exist. Raises TopicConflict where it takes no rows of the
        audit, TooManyTopics, TooManySegments, TopicBeingDeleted, Unavailable."""
        if self._catalog.find(TOPIC) is None:
            self._catalog.check_readable(TOPIC)
            await self._admin.create(TOPIC, await asyncio.to_thread(config))
        found = await self._catalog.known(TOPIC)
        if not fits(found.layout):
            raise TopicConflict(f"the topic {TOPIC!r} has other columns than the audit; delete it")
        return found

    def _warn(self, error: SeaweedqError) -> None:
        now_s = self.audit.clock.monotonic_s()
        if now_s - self._warned_s >= WARN_S:
            self._warned_s = now_s
            waiting = len(self._batch) + len(self.audit)
            logger.warning("the topic %s does not take %d rows of the audit, again soon: %s", TOPIC, waiting, error)
