"""The catalogue of every kind of key: path, record, writer, lifetime. No other module builds a path.

Numbers are padded, so that key order is numeric order.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import Any, Generic, Literal, TypeVar

import msgspec

from seaweedq import levels
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.packed_forms import pack_cursor, unpack_cursor
from seaweedq.coordination.records import (
    BrokerRecord,
    ClusterRecord,
    Counter,
    CreationRecord,
    CursorRecord,
    DenialRecord,
    ImportRecord,
    JournalRecord,
    LeaderRecord,
    MirrorsRecord,
    PrincipalRecord,
    RevocationRecord,
    RewindRecord,
    SchemaRecord,
    SecretRecord,
    SegmentRecord,
    StartRecord,
    SubscriptionRecord,
    SuspicionRecord,
    TokenRecord,
    TombstoneRecord,
    TopicRecord,
    UploadRecord,
    WaitingRecord,
    WatermarkRecord,
    WriteRecord,
)
from seaweedq.coordination.versioned import UNREADABLE_RECORDS, Unreadable, Versioned, unknown_in

T = TypeVar("T", bound=msgspec.Struct)
Backup = Literal["snapshot", "changes", "both", "neither"]
Part = str | int
ID_BOUND = 10**10  # of a number in a key: ten digits
FIELDS = {  # of errors, by part
    "topic": "topic",
    "segment": "segment",
    "name": "subscription",
    "upload": "upload_id",
    "writer": "writer",
}


def _same(record: T) -> T:
    return record


@dataclass(frozen=True)
class KeyKind(Generic[T]):
    """One kind of key. `pattern` is a format string whose fields are the parts: `{name}`, or `{number:010d}`.

    `stored_form` makes the stored form of a record, `read_form` a record of its stored form; that one raises
    ValueError. `backup` tells whether snapshots of coordination or administrative changes have its keys
    (coordination/backup); no snapshot has a key that is tied to a lease.
    """

    pattern: str
    record: type[T]
    writer: str
    lifetime: str
    stored_form: Callable[[T], T] = _same
    read_form: Callable[[T], T] = _same
    backup: Backup = "snapshot"
    _decoder: msgspec.json.Decoder[T] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Makes the decoder at once, since msgspec crashes if threads make the first one of a type together."""
        object.__setattr__(self, "_decoder", msgspec.json.Decoder(self.record))

    @property
    def name(self) -> str:
        """Returns the kind's name, the first part of its paths."""
        return self.pattern.split("/")[0]

    def key(self, *parts: Part) -> str:
        """Returns the path with these parts, in the pattern's order. Raises ValueError for invalid parts."""
        return self._fill(self.pattern, parts)

    def prefix(self, *parts: Part) -> str:
        """Returns the common prefix of all keys with these leading parts. Raises ValueError if they make a whole
        key."""
        fields = self.pattern.split("{")
        if 0 < len(parts) >= len(fields) - 1:
            raise ValueError(
                f"a prefix of the key pattern {self.pattern} must have at most {len(fields) - 2} parts, but was given "
                f"{parts}"
            )
        return self._fill("{".join(fields[: len(parts) + 1]), parts)

    def parse(self, key: str) -> tuple[Any, ...]:
        """Returns the parts of a path. Raises ValueError for a path of another kind."""
        found = self._matcher.fullmatch(key)
        if found is None:
            raise ValueError(f"{key!r} does not match the key pattern {self.pattern}")
        return tuple(int(part) if number else part for part, number in zip(found.groups(), self._numbers, strict=True))

    def encode(self, held: Versioned[T]) -> bytes:
        """Encodes the record as JSON, with the members that this version does not know."""
        known = msgspec.json.encode(self.stored_form(held.record))
        return msgspec.json.encode(held.unknown.merged(msgspec.json.decode(known))) if held.unknown else known

    def read(self, entry: Entry) -> Versioned[T] | Unreadable:
        """Returns the record of an entry, with the entry's revision and the members that are not known. If it cannot
        be read, UNREADABLE_RECORDS has it."""
        found = self._read(entry)
        if isinstance(found, Unreadable):
            UNREADABLE_RECORDS.add(self.name, found, self.read)
        elif UNREADABLE_RECORDS:
            UNREADABLE_RECORDS.forget(entry.key)
        return found

    def require(self, entry: Entry) -> Versioned[T]:
        """As `read`. Raises NeedsNewerBroker."""
        found = self.read(entry)
        if isinstance(found, Unreadable):
            raise found.error()
        return found

    def matches(self, key: str) -> bool:
        """Tells whether a path is one of this kind: later versions may have others below the same prefix."""
        return self._matcher.fullmatch(key) is not None

    def _read(self, entry: Entry) -> Versioned[T] | Unreadable:
        try:
            record = self.read_form(self._decoder.decode(entry.value))
            known = msgspec.json.encode(self.stored_form(record))
            if known == entry.value:
                return Versioned(record, entry.revision)  # as nearly always: nobody compares members then
            stored = msgspec.json.decode(entry.value)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return self._unreadable(entry, _why(entry.value, error))
        if later := _needs_later(stored):
            return self._unreadable(entry, later)
        names = dict.fromkeys(self.record.__struct_fields__)  # also those that are left out if they have defaults
        return Versioned(record, entry.revision, unknown_in(stored, names | msgspec.json.decode(known)))

    def _unreadable(self, entry: Entry, why: str) -> Unreadable:
        names = [name for _, name, _, _ in Formatter().parse(self.pattern) if name]
        parts = self.parse(entry.key) if self.matches(entry.key) else ()
        fields = {FIELDS[name]: part for name, part in zip(names, parts, strict=False) if name in FIELDS}
        return Unreadable(entry.key, why, entry.revision, fields)

    def _fill(self, pattern: str, parts: tuple[Part, ...]) -> str:
        for part, number in zip(parts, self._numbers, strict=False):
            if not (isinstance(part, int) and 0 <= part < ID_BOUND if number else part and "/" not in str(part)):
                raise ValueError(f"the key pattern {self.pattern} does not allow {part!r} as a part")
        names = [name for _, name, _, _ in Formatter().parse(pattern) if name]
        return pattern.format(**dict(zip(names, parts, strict=True)))

    @cached_property
    def _numbers(self) -> tuple[bool, ...]:
        return tuple(bool(spec) for _, name, spec, _ in Formatter().parse(self.pattern) if name)

    @cached_property
    def _matcher(self) -> re.Pattern[str]:
        parts = Formatter().parse(self.pattern)
        groups = {None: "", "": "([^/]+)"}
        return re.compile("".join(re.escape(text) + groups.get(spec, "([0-9]{10})") for text, _, spec, _ in parts))


def _needs_later(stored: Any) -> str | None:
    """Returns why a value is not to be read although it looks known: its form is that of a later level."""
    needs = stored.get("needs_level", 1) if isinstance(stored, dict) else 1
    if isinstance(needs, int) and needs <= levels.HIGHEST:
        return None
    return f"it needs level {str(needs)[:20]}, and this broker reads levels up to {levels.HIGHEST}"


def _why(value: bytes, error: Exception) -> str:
    try:
        return _needs_later(msgspec.json.decode(value)) or str(error)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return str(error)


CLUSTER = KeyKind(
    "cluster",
    ClusterRecord,
    writer="the first broker of the cluster, before it creates the store's identity, and once more behind it",
    lifetime="for ever",
)
BROKERS = KeyKind(
    "brokers/{broker}",
    BrokerRecord,
    writer="the broker itself, at start",
    lifetime="its lease: the key is there as long as the broker lives",
    backup="neither",
)
SUSPICIONS = KeyKind(
    "suspicions/{broker}/{reporter}",
    SuspicionRecord,
    writer="the reporter",
    lifetime="the lease of the reporter; it goes as soon as the broker does not refuse any more, or is gone",
    backup="neither",
)
REVOCATIONS = KeyKind(
    "revocations/{broker}",
    RevocationRecord,
    writer="the broker that ends a lease on suspicion, before it does",
    lifetime="no lease: until the leader has waited for a lease behind the broker's key, or the end is certain",
)
LEADER = KeyKind(
    "leader",
    LeaderRecord,
    writer="the broker that wins the election",
    lifetime="the lease of that broker; every transaction of the leader compares the revision",
    backup="neither",
)
JOURNALS = KeyKind(
    "journals/{broker}",
    JournalRecord,
    writer="the broker itself, before it takes its first message",
    lifetime="no lease: until the journal of a broker that is gone was recovered, and its content has gone",
    backup="both",
)
MIRRORS = KeyKind(
    "mirrors/{broker}",
    MirrorsRecord,
    writer="the broker itself, at each change of its journal's mirrors; recoveries, which close it and decide",
    lifetime="no lease: it comes with the journal's key, and goes before it, once the journal was recovered",
    backup="neither",
)
WAITING = KeyKind(
    "waiting/{place}",
    WaitingRecord,
    writer="a broker that waits for a rebuild of coordination; `place` is the id of its home folder",
    lifetime="its lease: as long as that broker waits",
    backup="neither",
)
TOPICS = KeyKind(
    "topics/{topic}",
    TopicRecord,
    writer="the broker that takes the request; the leader for the last step of a deletion",
    lifetime="until the files of a deleted topic are gone",
    backup="both",
)
SCHEMAS = KeyKind(
    "schemas/{topic}/{incarnation:010d}/{schema:010d}",
    SchemaRecord,
    writer="the broker that takes the request, in the transaction that decides on a topic's next version",
    lifetime="until the topic goes; a topic whose schema never changed has none",
    backup="both",
)
SEGMENTS = KeyKind(
    "segments/{topic}/{incarnation:010d}/{segment:010d}",
    SegmentRecord,
    writer="the leader; the owner, to release it and to seal it",
    lifetime="until retention has removed all of a closed segment, or the topic goes",
    backup="both",
)
STARTS = KeyKind(
    "starts/{topic}/{incarnation:010d}/{segment:010d}",
    StartRecord,
    writer="the leader, when retention takes the first files of a segment; a rebuild",
    lifetime="as long as its segment",
)
TOMBSTONES = KeyKind(
    "tombstones/{topic}/{incarnation:010d}/{segment:010d}",
    TombstoneRecord,
    writer="the leader, in the transaction that removes the segment's record",
    lifetime="at least 30 days, and until no open segment descends from it within 10 generations, or the topic goes",
)
COUNTERS = KeyKind(
    "counters/{topic}",
    Counter,
    writer="whoever needs an id, by compare and set",
    lifetime="for ever, also after the topic: an id is never used again",
    backup="both",
)
CREATIONS = KeyKind(
    "creations/{topic}/{first:010d}",
    CreationRecord,
    writer="the broker that creates the topic, with the ids it took",
    lifetime="the creation: it goes with the topic's record, or with the lease of that broker",
    backup="neither",
)
SUBSCRIPTIONS = KeyKind(
    "subscriptions/{topic}/{incarnation:010d}/{name}",
    SubscriptionRecord,
    writer="the broker that takes the request; the dispatcher raises the epoch",
    lifetime="until it is deleted, or the topic goes",
    backup="both",
)
REWINDS = KeyKind(
    "rewinds/{topic}/{incarnation:010d}",
    RewindRecord,
    writer="the broker that creates or seeks a subscription, or sets its dead-letter topic, in that transaction",
    lifetime="from the first subscription on, until the topic goes",
)
CURSORS = KeyKind(
    "cursors/{topic}/{incarnation:010d}/{name}/{segment:010d}",
    CursorRecord,
    writer="the dispatcher, as a checkpoint; whoever recovers its journal, for the same epoch",
    lifetime="as long as its subscription and its segment",
    stored_form=pack_cursor,
    read_form=unpack_cursor,
    backup="both",
)
UPLOADS = KeyKind(
    "uploads/{topic}/{incarnation:010d}/{upload}",
    UploadRecord,
    writer="the broker that takes the request; the leader's sweep",
    lifetime="until it has expired, and what never was published is gone from the store",
)
IMPORTS = KeyKind(
    "imports/{topic}/{incarnation:010d}/{upload}",
    ImportRecord,
    writer="the broker that takes the request; the one that works on it; who adopts it from one that is gone",
    lifetime="until a day after its upload has expired, or the topic goes",
)
WRITES = KeyKind(
    "writes/{topic}/{incarnation:010d}/{writer}",
    WriteRecord,
    writer="the broker that takes the request; the one that works on it; who adopts it from one that is gone",
    lifetime="until 30 days after the writer's last write, a day where its name was drawn, or the topic goes",
    backup="both",
)
GROWTH = KeyKind(
    "growth",
    Counter,
    writer="whoever creates a topic or plans segments while the cluster has nearly as many as it may",
    lifetime="for ever",
)
RETENTION = KeyKind(
    "retention",
    Counter,
    writer="the leader, before each round of retention; a rebuild",
    lifetime="for ever",
)
SNAPSHOTS = KeyKind(
    "snapshots",
    Counter,
    writer="the leader, before it puts a snapshot of coordination into the store; a rebuild",
    lifetime="for ever",
    backup="neither",
)
WATERMARK = KeyKind(
    "watermark",
    WatermarkRecord,
    writer="whoever is about to put an administrative change, or a journal's `done`, into the store",
    lifetime="for ever; a rebuild begins without one",
    backup="neither",
)
URL_SECRET = KeyKind(
    "url-secret",
    SecretRecord,
    writer="the first broker that signs a URL of its own",
    lifetime="for ever",
    backup="neither",
)
PRINCIPALS = KeyKind(
    "principals/{principal}",
    PrincipalRecord,
    writer="the broker that takes the request",
    lifetime="until it is deleted",
    backup="both",
)
TOKENS = KeyKind(
    "tokens/{token}",
    TokenRecord,
    writer="the broker that takes the request; it compares the principal and the token from which it was issued",
    lifetime="until it, its principal or a token from which it came is revoked, or a day after it has expired",
    backup="both",
)
DENIALS = KeyKind(
    "denials/{denial}",
    DenialRecord,
    writer="the broker that takes the request; the name is that of what is denied (access/tokens)",
    lifetime="until it is taken back, or another one is made behind its end",
    backup="both",
)

CATALOGUE = (
    CLUSTER,
    BROKERS,
    SUSPICIONS,
    REVOCATIONS,
    LEADER,
    JOURNALS,
    MIRRORS,
    WAITING,
    TOPICS,
    SCHEMAS,
    SEGMENTS,
    STARTS,
    TOMBSTONES,
    COUNTERS,
    CREATIONS,
    SUBSCRIPTIONS,
    REWINDS,
    CURSORS,
    UPLOADS,
    IMPORTS,
    WRITES,
    GROWTH,
    RETENTION,
    SNAPSHOTS,
    WATERMARK,
    URL_SECRET,
    PRINCIPALS,
    TOKENS,
    DENIALS,
)

_LEFT_OUT = frozenset(kind.name for kind in CATALOGUE if kind.backup in ("changes", "neither"))


def is_in_snapshots(key: str) -> bool:
    """Tells whether snapshots have a key, if it is tied to no lease: also one of a kind that only later versions
    know."""
    return key.partition("/")[0] not in _LEFT_OUT
