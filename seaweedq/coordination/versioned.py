"""A record as it is stored: its revision, and the members of the stored JSON that this version does not know; or a
value that it cannot read.

Brokers of several versions write the same records. A member that a later version has added would be erased by each
write of an earlier one, so it is kept beside the record, and `KeyKind.encode` merges it back: also a member of a nested
object, and of an item of a list, which is found again by its identity (IDENTITIES). It goes only with the object
that it was in: with an intent that ends, a segment that an import no longer names, a policy that is set to null.

So a version may *add* a member only if that member stays true when a writer that does not know it changes all others.
Any other change of a form changes it with the cluster's level: the record says `needs_level`, and for brokers of lower
levels it is unreadable. The members of cursors, intents and journals never stay true by themselves: they change with
the level, always.

A value is unreadable if its form is later (`needs_level`), or it is damaged. Nobody here writes in its place, or
removes it, or guesses: its subject is left as it is, and answers 503 (NeedsNewerBroker), until a newer broker has
written the value back. UNREADABLE_RECORDS has those that were met; like the log of a process, which names each of them
once, it is one for the process.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec

from seaweedq.coordination.interface import Coordination, Entry
from seaweedq.errors import CoordinationUnavailable, NeedsNewerBroker

T = TypeVar("T", bound=msgspec.Struct)
IDENTITIES = ("id", "segment")  # the members by which a nested object is known, the first of them that it has
REFRESH_S = 30.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unknown:
    """The unknown `members` of one stored object, and those `inside` its members and items.

    The key of an item is its identity, that of a member its name. `identity` is that of the object itself.
    """

    members: Mapping[str, Any] = field(default_factory=dict)
    inside: Mapping[str | int, "Unknown"] = field(default_factory=dict)
    identity: str | int | None = None

    def __bool__(self) -> bool:
        return bool(self.members or self.inside)

    def merged(self, known: Any) -> Any:
        """Returns the JSON value `known` with these members, if the objects that they were in still exist."""
        if isinstance(known, dict) and _identity(known) == self.identity:
            return {**self.members, **{name: self._merged(name, value) for name, value in known.items()}}
        if isinstance(known, list):
            return [self._merged(_identity(item), item) for item in known]
        return known

    def within(self, known: Any) -> "Unknown":
        """Returns those of these members whose objects are in the JSON value `known`."""
        return unknown_in(self.merged(known), known)

    def _merged(self, key: str | int | None, value: Any) -> Any:
        found = None if key is None else self.inside.get(key)
        return found.merged(value) if found else value


NOTHING = Unknown()


def unknown_in(stored: Any, known: Any) -> Unknown:
    """Returns the members of the JSON value `stored` that `known`, the part that this version understands, has not."""
    if isinstance(stored, dict) and isinstance(known, dict):
        more = {name: value for name, value in stored.items() if name not in known}
        return _unknown(more, {n: unknown_in(stored[n], v) for n, v in known.items() if n in stored}, _identity(known))
    if isinstance(stored, list) and isinstance(known, list):
        by_identity = {key: item for item in stored if (key := _identity(item)) is not None}
        pairs = ((key, item) for item in known if (key := _identity(item)) in by_identity)
        return _unknown({}, {key: unknown_in(by_identity[key], item) for key, item in pairs if key is not None}, None)
    return NOTHING


def _unknown(members: dict[str, Any], inside: dict[Any, Unknown], identity: str | int | None) -> Unknown:
    inside = {key: one for key, one in inside.items() if one}
    return Unknown(members, inside, identity) if members or inside else NOTHING


def _identity(value: Any) -> str | int | None:
    if not isinstance(value, dict):
        return None
    found = next((value[name] for name in IDENTITIES if name in value), None)
    return found if isinstance(found, str | int) else None


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A record, the revision of its last change, and its unknown members. Functions that replace a record take it
    whole, and pass it on with another record."""

    record: T
    revision: int
    unknown: Unknown = NOTHING

    @staticmethod
    def new(record: T) -> "Versioned[T]":
        """Returns a record that is not stored yet: its key must not exist."""
        return Versioned(record, 0)

    def replace(self, **changes: Any) -> "Versioned[T]":
        """Returns the record that a writer stores in its place to change these members."""
        return self.with_record(msgspec.structs.replace(self.record, **changes))

    def with_record(self, record: T) -> "Versioned[T]":
        """Returns this record as a writer stores it in place of the other."""
        unknown = self.unknown.within(msgspec.json.decode(msgspec.json.encode(record))) if self.unknown else NOTHING
        return Versioned(record, self.revision, unknown)

    def stored(self, revision: int) -> "Versioned[T]":
        """Returns it as it is once it was written, in that revision."""
        return replace(self, revision=revision)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The value of a key that cannot be read, the revision of its last change, and the parts of the key by the names
    that errors give them."""

    key: str
    why: str
    revision: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def error(self) -> NeedsNewerBroker:
        """Returns the error for a request of the record's subject."""
        detail = f"this broker cannot read the record {self.key}: {self.why}; a newer broker is needed"
        return NeedsNewerBroker(detail, record=self.key, **self.fields)


class UnreadableRecords:
    """The unreadable records that were met, by key, until they are readable or gone."""

    def __init__(self) -> None:
        self._met: dict[str, tuple[str, Callable[[Entry], object]]] = {}  # by key: the kind, and how it is read

    def __bool__(self) -> bool:
        return bool(self._met)

    def add(self, kind: str, found: Unreadable, read: Callable[[Entry], object]) -> None:
        """Logs a record that is met for the first time. `read` adds or forgets it again."""
        if found.key not in self._met:
            self._met[found.key] = kind, read
            logger.error(
                "this broker cannot read the record %s (%s), so it leaves the record unchanged", found.key, found.why
            )

    def forget(self, key: str) -> None:
        """Forgets a record that can be read, or is gone."""
        if self._met.pop(key, None):
            logger.info("the problem with the record %s is over: it was deleted, or this broker can read it again", key)

    def has(self, keys: Iterable[str]) -> bool:
        """Tells whether all of these records were unreadable when they were last read."""
        return all(key in self._met for key in keys)

    def by_kind(self) -> Counter[str]:
        """Returns the number of unreadable records of each kind."""
        return Counter(kind for kind, _ in self._met.values())

    async def refresh_often(self, coordination: Coordination) -> None:
        """Reads the records again now and then, for ever: most of them nobody else reads unless he is asked."""
        while True:
            await asyncio.sleep(REFRESH_S)
            with suppress(CoordinationUnavailable):
                await self.refresh(coordination)

    async def refresh(self, coordination: Coordination) -> None:
        """Reads the records again once."""
        for key, (_, read) in list(self._met.items()):
            there = await coordination.get(key)
            if there is None:
                self.forget(key)
            else:
                read(there)


UNREADABLE_RECORDS = UnreadableRecords()
