"""The audit: changes and denials, as lines of the log and as rows of the topic `seaweedq.audit`.

The topic is typed, so that any reader of the directory queries its columns. Their ids stay for ever: a new column gets
the next one, which existing topics do not have.

An event is a line of the log at once, and goes into a queue; that neither waits nor fails. An event for which the queue
has no room is lost for the topic, and counted; denials have half of it, so that none displaces a change. Of denials,
PER_S a second have events of their own for known principals, and as many for strangers; the others are counted, and one
event a second says how many there were for each reason. So a flood of strangers hides no denial of a principal. One
principal can have denials of others counted alone, as can many of them; changes have lines and rows in any case, as far
as there is room. A broker that is killed loses its queue: about a second. The log has it.

The writer publishes the queue each TICK_S, by the same path as a client's messages. It makes the topic with the first
row, and again after somebody has deleted it. Rows go out under a producer's identity, which makes a repeat known; so a
batch whose outcome is unknown is sent again as it was, and has no doubles. While the topic takes nothing the queue
fills, and then events are lost. A batch that is refused for GIVE_UP_S, without an outage meanwhile, is lost, too: it
may never be taken, and all behind it wait. One batch is on its way at a time. A stop sends the rest once more.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from seaweedq.access.tokens import masked
from seaweedq.broker.publish.publisher import Producer, Publisher
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.clock import Clock
from seaweedq.coordination.records import RetentionPolicy, TopicConfig
from seaweedq.errors import SeaweedqError, SequenceOutOfOrder, TopicConflict, Unavailable
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.producers import AUDIT
from seaweedq.segments.rows import assemble, microseconds
from seaweedq.segments.schema import encode_fields, parse_schema
from seaweedq.settings import Settings

TOPIC = "seaweedq.audit"
KEPT_S = 90 * 86_400.0  # for a topic that is made here; its administrators may change that
SHOWN = 200  # characters of a text that a stranger may have chosen
LOOKED_AT = 2 * SHOWN  # for secrets, before it is cut
Kind = Literal["change", "denial", "denials"]
COLUMNS = (  # id, name, Iceberg's type
    (1, "kind", "string"),
    (2, "broker", "string"),
    (3, "principal", "string"),
    (4, "token", "string"),
    (5, "address", "string"),
    (6, "method", "string"),
    (7, "path", "string"),
    (8, "action", "string"),
    (9, "topic", "string"),
    (10, "subscription", "string"),
    (11, "made", "string"),
    (12, "status", "int"),
    (13, "reason", "string"),
    (14, "count", "long"),
    (15, "identity", "string"),
)
_TYPES = {"string": pa.string(), "int": pa.int32(), "long": pa.int64()}
PER_S = 10
ROOM, ROOM_FOR_DENIALS = 2_000, 1_000
SECOND_S = 1.0
Mode = Literal["topic", "log", "none"]
AUDIT_LOG = logging.getLogger("seaweedq.audit")
TICK_S, PAUSE_S = 0.5, 5.0
GIVE_UP_S = 600.0  # for a batch that the topic refuses, and that no outage keeps away
MOST = 500  # rows of a batch
LAST_S = 2.0  # for the rest at a stop
WARN_S = 60.0
logger = logging.getLogger(__name__)


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change, a denial, or the number of denials of one reason that have no events of their own. `status` is that of
    the answer, 0 for no answer; `made` is the id of a token that a change has made."""

    time_us: int
    kind: Kind
    broker: str
    principal: str | None = None
    token: str | None = None
    address: str | None = None
    method: str | None = None
    path: str | None = None
    action: str | None = None
    topic: str | None = None
    subscription: str | None = None
    made: str | None = None
    status: int = 0
    reason: str | None = None
    count: int = 1
    identity: str | None = None


def shown(text: str) -> str:
    """Returns a text that a stranger may have chosen: cut, and without the secret of a token that may be in it."""
    return masked(text[:LOOKED_AT])[:SHOWN]


def line(event: Event) -> str:
    """Returns an event as JSON in one line; members that are null are left out."""
    members = msgspec.to_builtins(event)
    time = np.datetime_as_string(np.datetime64(members.pop("time_us"), "us")) + "Z"
    return msgspec.json.encode({"audit": members.pop("kind"), "time": time, **members, "status": event.status}).decode()


def rows(events: Sequence[Event], layout: Layout) -> pa.RecordBatch:
    """Returns events as rows of the topic."""
    times = microseconds(np.array([event.time_us for event in events], np.int64))
    values: list[Any] = [pa.array([getattr(event, f.name) for event in events], f.type) for f in layout.values]
    return assemble(layout, times, None, None, None, values)


def config() -> TopicConfig:
    """Returns the configuration of the topic."""
    fields = [{"id": number, "name": name, "required": False, "type": kind} for number, name, kind in COLUMNS]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    return TopicConfig(
        format="typed",
        schema=schema,
        columns=encode_fields(parse_schema(schema)),
        retention=RetentionPolicy(max_age_s=KEPT_S),
    )


def fits(layout: Layout) -> bool:
    """Returns whether a topic takes these rows: it is typed, and its columns are among ours, with their types."""
    ours = {name: _TYPES[kind] for _, name, kind in COLUMNS}
    return layout.format is Format.TYPED and all(f.nullable and ours.get(f.name) == f.type for f in layout.values)


def mode_of(settings: Settings) -> Mode:
    """Returns the audit's destination; by default there is one if tokens are required."""
    if settings.audit == "auto":
        return "topic" if settings.auth == "required" else "none"
    return settings.audit


class Audit:
    """The events of one broker. `counts` has those so far by kind, `lost` those that the topic will not have."""

    def __init__(self, mode: Mode, broker: str, clock: Clock) -> None:
        self.mode = mode
        self.is_on = mode != "none"
        self.broker = broker
        self.clock = clock
        self.counts = {"change": 0, "denial": 0}
        self.lost = 0
        self._queue: deque[Event] = deque()
        self._second_s = clock.monotonic_s()
        self._detailed = {True: 0, False: 0}  # denials of this second, by whether the caller has a principal
        self._summed: Counter[tuple[str, int]] = Counter()  # reason and status

    def add_change(self, event: Event) -> None:
        """Notes a change."""
        self.counts["change"] += 1
        self._add(event, ROOM)

    def has_room(self, known: bool, reason: str, status: int) -> bool:
        """Counts a denial. Returns whether it is to have an event of its own, since this second has not had enough."""
        self.counts["denial"] += 1
        self.end_second()
        self._detailed[known] += 1
        if self._detailed[known] <= PER_S:
            return True
        self._summed[reason, status] += 1
        return False

    def add_denial(self, event: Event) -> None:
        """Notes a denial for which there is room."""
        self._add(event, ROOM_FOR_DENIALS)

    def end_second(self) -> None:
        """Ends a second that is over, with the events that say how many more denials there were."""
        now_s = self.clock.monotonic_s()
        if now_s - self._second_s < SECOND_S:
            return
        self._second_s, self._detailed = now_s, {True: 0, False: 0}
        summed, self._summed = self._summed, Counter()
        for (reason, status), count in sorted(summed.items()):
            event = Event(self.clock.now_us(), "denials", self.broker, status=status, reason=reason, count=count)
            self._add(event, ROOM_FOR_DENIALS)

    def pop(self, most: int) -> list[Event]:
        """Returns the oldest events, and forgets them."""
        return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def count_lost(self, events: int) -> None:
        """Counts events that the topic does not take."""
        self.lost += events

    def __len__(self) -> int:
        return len(self._queue)

    def _add(self, event: Event, room: int) -> None:
        AUDIT_LOG.info("%s", line(event))
        if self.mode != "topic":
            return
        if len(self._queue) < room:
            self._queue.append(event)
        else:
            self.count_lost(1)


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
        """Publishes the queue at a stop, as far as there is time; the rest is lost."""
        try:
            async with asyncio.timeout(LAST_S):
                if await self._send_all():
                    return
        except TimeoutError:
            pass
        self.audit.count_lost(len(self._batch) + len(self.audit))

    async def _send_all(self) -> bool:
        """Publishes all that there is. Returns False if the topic does not take it."""
        self.audit.end_second()
        async with self._sending:
            while True:
                self._batch = self._batch or self.audit.pop(MOST)
                if not self._batch:
                    return True
                if not await self._sent():
                    return False

    async def _sent(self) -> bool:
        """Publishes the batch. Returns False if that failed, or its outcome is unknown: it goes again as it is."""
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
            logger.exception("audit events could not be published to the audit topic, and are lost")
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
        self.audit.count_lost(len(self._batch))
        self._target = None  # under another identity: nobody knows which rows have this one's sequences

    async def _send(self) -> None:
        target = await self._topic()
        if target is not self._target:
            self._target, self._sequence = target, 0
            self._identities += 1
        producer = Producer(f"{AUDIT}{self._broker}.{self._identities}", self._sequence)
        await self._publisher.batch(target, rows(self._batch, target.layout), producer)
        self._sequence += len(self._batch)

    async def _topic(self) -> Topic:
        """Returns the topic, and creates it if it does not exist. Raises TopicConflict if it takes no rows of the
        audit, TooManyTopics, TooManySegments, TopicBeingDeleted, Unavailable."""
        if self._catalog.get(TOPIC) is None:
            self._catalog.check_readable(TOPIC)
            await self._admin.create(TOPIC, await asyncio.to_thread(config))
        found = await self._catalog.require(TOPIC)
        if not fits(found.layout):
            raise TopicConflict(
                f"topic {TOPIC!r} cannot store the audit, because its columns are not those of audit "
                "events; delete the topic"
            )
        return found

    def _warn(self, error: SeaweedqError) -> None:
        now_s = self.audit.clock.monotonic_s()
        if now_s - self._warned_s >= WARN_S:
            self._warned_s = now_s
            waiting = len(self._batch) + len(self.audit)
            logger.warning("the topic %s did not accept %d audit events (%s); retrying soon", TOPIC, waiting, error)
