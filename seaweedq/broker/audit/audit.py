"""The queue between requests and the audit's topic, with its bounds. Nothing here waits or fails.

An event is a line of the log at once, and goes into the queue. What the queue has no room for is lost for the topic,
and counted; denials have half of it, so that none displaces a change. Of denials, PER_S a second have events of their
own for known principals, and as many for strangers; the others are counted, and one event a second says how many there
were for each reason. So a flood of strangers hides nothing that principals are denied. One principal can have denials
of others counted alone, as can many of them; changes have lines and rows in any case, as far as there is room.

A broker that is killed loses what is in the queue: about a second. The log has it.
"""

import logging
from collections import Counter, deque
from typing import Literal

from seaweedq.broker.audit.events import Event, line
from seaweedq.clock import Clock
from seaweedq.settings import Settings

PER_S = 10
ROOM, ROOM_FOR_DENIALS = 2_000, 1_000
SECOND_S = 1.0
Mode = Literal["topic", "log", "none"]
logger = logging.getLogger("seaweedq.audit")


def mode_of(settings: Settings) -> Mode:
    """Returns where the audit goes; by default it is there where tokens are required."""
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
        self._said = {True: 0, False: 0}  # denials of this second, by whether the caller has a principal
        self._unsaid: Counter[tuple[str, int]] = Counter()  # reason and status

    def change(self, event: Event) -> None:
        """Notes a change."""
        self.counts["change"] += 1
        self._note(event, ROOM)

    def has_room(self, known: bool, reason: str, status: int) -> bool:
        """Counts a denial. Returns whether it is to have an event of its own, since this second has not had enough."""
        self.counts["denial"] += 1
        self.look()
        self._said[known] += 1
        if self._said[known] <= PER_S:
            return True
        self._unsaid[reason, status] += 1
        return False

    def denial(self, event: Event) -> None:
        """Notes a denial for which there is room."""
        self._note(event, ROOM_FOR_DENIALS)

    def look(self) -> None:
        """Ends a second that is over, with the events that say how many more denials there were."""
        now_s = self.clock.monotonic_s()
        if now_s - self._second_s < SECOND_S:
            return
        self._second_s, self._said = now_s, {True: 0, False: 0}
        unsaid, self._unsaid = self._unsaid, Counter()
        for (reason, status), count in sorted(unsaid.items()):
            event = Event(self.clock.now_us(), "denials", self.broker, status=status, reason=reason, count=count)
            self._note(event, ROOM_FOR_DENIALS)

    def take(self, most: int) -> list[Event]:
        """Returns the oldest events, and forgets them."""
        return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def lose(self, events: int) -> None:
        """Counts events that the topic does not take."""
        self.lost += events

    def __len__(self) -> int:
        return len(self._queue)

    def _note(self, event: Event, room: int) -> None:
        logger.info("%s", line(event))
        if self.mode != "topic":
            return
        if len(self._queue) < room:
            self._queue.append(event)
        else:
            self.lose(1)
