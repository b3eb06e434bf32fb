"""Values that this version cannot read: of a later form (`needs_level`), or damaged.

Nobody here writes in the place of one, or removes it, or guesses: whatever it describes is left as it is, and answers
503 (NeedsNewerBroker), until a newer broker has written it back. NOTED has those that were met; like the log of a
process, which says each of them once, it is one for the process.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from seaweedq.coordination.interface import Coordination, Entry
from seaweedq.errors import CoordinationUnavailable, NeedsNewerBroker

LOOK_S = 30.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The value of a key that cannot be read, the revision of its last change, and the parts of the key by the names
    that errors give them."""

    key: str
    why: str
    revision: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def error(self) -> NeedsNewerBroker:
        """Returns the error for those who ask for what the record describes."""
        detail = f"the record {self.key} cannot be read by this broker: {self.why}; a newer broker is needed"
        return NeedsNewerBroker(detail, record=self.key, **self.fields)


class UnreadableRecords:
    """The unreadable records that were met, by key, until they are readable or gone."""

    def __init__(self) -> None:
        self._met: dict[str, tuple[str, Callable[[Entry], object]]] = {}  # by key: the kind, and how it is read

    def __bool__(self) -> bool:
        return bool(self._met)

    def note(self, kind: str, found: Unreadable, read: Callable[[Entry], object]) -> None:
        """Logs a record that is met for the first time. `read` notes or forgets it again."""
        if found.key not in self._met:
            self._met[found.key] = kind, read
            logger.error("the record %s cannot be read by this broker and is left alone: %s", found.key, found.why)

    def forget(self, key: str) -> None:
        """Forgets a record that can be read, or is gone."""
        if self._met.pop(key, None):
            logger.info("the record %s can be read again, or is gone", key)

    def has(self, keys: Iterable[str]) -> bool:
        """Tells whether all of these records were unreadable when they were last read."""
        return all(key in self._met for key in keys)

    def by_kind(self) -> Counter[str]:
        """Returns the number of unreadable records of each kind."""
        return Counter(kind for kind, _ in self._met.values())

    async def look_often(self, coordination: Coordination) -> None:
        """Reads the records again now and then, for ever: most of them nobody else reads unless he is asked."""
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(CoordinationUnavailable):
                await self.look(coordination)

    async def look(self, coordination: Coordination) -> None:
        """Reads the records again once."""
        for key, (_, read) in list(self._met.items()):
            there = await coordination.get(key)
            if there is None:
                self.forget(key)
            else:
                read(there)


NOTED = UnreadableRecords()
