"""The roster: the living brokers, and the journals that still exist. A watched view, so possibly behind.

Only `gone`, which reads the broker's key again, decides that a broker is dead. A deleted key never comes back, since
ids are new at every start.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Entry
from seaweedq.coordination.keys import KeyKind
from seaweedq.coordination.records import BrokerRecord, JournalRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.coordination.view import View
from seaweedq.errors import Unavailable
from seaweedq.formats import needs_newer

T = TypeVar("T", bound=msgspec.Struct)
NEVER = -1  # no key has this revision, and 0 would say that there is none
PREFIXES = (keys.BROKERS.prefix(), keys.JOURNALS.prefix())


logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


def _everybody(broker: str, record: BrokerRecord) -> bool:
    return True


class Roster:
    """Brokers and journals by broker id, each with its revision. `changed` is called after every change.

    A broker whose record is `unreadable` lives, gets nothing, and keeps its segments; so does one that is `strange`:
    its record does not show that it belongs to this cluster, as `is_known` tells. A journal whose record cannot be read
    is neither recovered nor removed by this broker; a leader asks others for it.
    """

    def __init__(
        self,
        coordination: Coordination,
        changed: Callable[[], None] = _nothing,
        is_known: Callable[[str, BrokerRecord], bool] = _everybody,
    ) -> None:
        self.brokers: dict[str, Versioned[BrokerRecord]] = {}
        self.strange: dict[str, Versioned[BrokerRecord]] = {}
        self.journals: dict[str, Versioned[JournalRecord]] = {}
        self.unreadable: dict[str, Unreadable] = {}  # brokers
        self.unreadable_journals: dict[str, Unreadable] = {}
        self._coordination = coordination
        self._changed = changed
        self._is_known = is_known
        self._view = View(coordination, PREFIXES, self._apply)
        self.load = self._view.load
        self.follow = self._view.follow

    def alive(self, broker: str | None) -> bool:
        """Tells whether the broker's key existed when last seen."""
        return broker in self.brokers or broker in self.unreadable or broker in self.strange

    @property
    def readable(self) -> dict[str, Versioned[BrokerRecord]]:
        """Returns the brokers that live, the strange ones among them."""
        return {**self.brokers, **self.strange}

    @property
    def living(self) -> int:
        """Returns how many brokers have a key, as far as is known."""
        return len(self.brokers) + len(self.unreadable)

    def journal(self, broker: str) -> Versioned[JournalRecord] | Unreadable | None:
        """Returns a broker's journal as it was last seen, None if there was none."""
        return self.journals.get(broker) or self.unreadable_journals.get(broker)

    def check_alive(self, broker: str | None) -> None:
        """Raises Unavailable if the broker's key was not there when last seen."""
        if not self.alive(broker):
            raise Unavailable(f"broker {broker} died before it answered the request")

    def check_journal(self, broker: str | None) -> None:
        """Raises NeedsNewerBroker if the broker is dead, and no living one reads its journal."""
        found = self.journals.get(broker or "")
        if found and found.record.needs_newer and not self.alive(broker):
            raise needs_newer(f"broker {broker} is no longer running, and no running broker can read its journal")

    def url(self, broker: str | None) -> str | None:
        """Returns the URL of a living broker."""
        found = self.brokers.get(broker or "")
        return found.record.url if found else None

    def compare(self, broker: str) -> Compare:
        """Returns a comparison that holds as long as the broker lives with its known record; never for one not known to
        live."""
        return Compare(keys.BROKERS.key(broker), self.brokers[broker].revision if broker in self.brokers else NEVER)

    async def gone(self, broker: str) -> bool:
        """Reads the broker's key again. Tells whether its lease has ended."""
        return await self._coordination.get(keys.BROKERS.key(broker)) is None

    def _apply(self, change: Change) -> None:
        there = None if change.value is None else Entry(change.key, change.value, change.revision)
        if keys.BROKERS.matches(change.key):
            (broker,) = keys.BROKERS.parse(change.key)
            self._place(broker, _read(keys.BROKERS, broker, there, self.unreadable))
        elif keys.JOURNALS.matches(change.key):
            (broker,) = keys.JOURNALS.parse(change.key)
            self.journals.pop(broker, None)
            if journal := _read(keys.JOURNALS, broker, there, self.unreadable_journals):
                self.journals[broker] = journal
        self._changed()

    def _place(self, broker: str, known: Versioned[BrokerRecord] | None) -> None:
        was_strange = broker in self.strange
        self.brokers.pop(broker, None)
        self.strange.pop(broker, None)
        if known is None:
            return
        if self._is_known(broker, known.record):
            self.brokers[broker] = known
            return
        self.strange[broker] = known
        if not was_strange:
            logger.warning(
                "this broker neither calls broker %s nor gives that broker's address to clients, because that broker's "
                "record in coordination does not prove knowledge of cluster_secret",
                broker,
            )


def _read(kind: KeyKind[T], broker: str, there: Entry | None, unreadable: dict[str, Unreadable]) -> Versioned[T] | None:
    """Returns the record of a broker's key, if there is one that can be read."""
    unreadable.pop(broker, None)
    found = kind.read(there) if there else None
    if isinstance(found, Unreadable):
        unreadable[broker] = found
        return None
    return found


def is_recovered(journal: Entry) -> bool:
    """Tells whether a dead broker's journal holds nothing any more that is needed; False if nobody here can tell."""
    found = keys.JOURNALS.read(journal)
    return isinstance(found, Versioned) and found.record.recovered


def is_replayed(journal: Versioned[JournalRecord] | Unreadable, topic: str) -> bool:
    """As `is_recovered`, of one topic: all that a dead broker's journal holds of it is in its chains and cursors."""
    if isinstance(journal, Unreadable):
        return False
    return journal.record.recovered or (journal.record.left is not None and topic not in journal.record.left)
