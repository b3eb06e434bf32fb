"""The records of topics and of their segments."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from seaweedq.access.limits import Limits


class CreationRecord(msgspec.Struct, frozen=True):
    """A topic's creation in progress: the creating broker, the number of ids it allocated, and for whom (as in the
    topic's record)."""

    broker: str
    count: int
    creator: str | UnsetType = UNSET


class FlushPolicy(msgspec.Struct, frozen=True):
    """When a tail becomes a file, in bytes and seconds; None is the broker's own setting."""

    max_bytes: int | None = None
    min_bytes: int | None = None
    max_age_s: float | None = None


class RetentionPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of what is kept, by age and by size of the topic; None is no bound.

    `keep_unread`: these two never take what a subscription has not acked. `delete_read`: what all of at least one have
    acked goes. `grace_s`: how long files stay behind that; None is the brokers' setting.
    """

    max_age_s: float | None = None
    max_bytes: int | None = None
    keep_unread: bool = False
    delete_read: bool = False
    grace_s: float | None = None

    @property
    def takes(self) -> bool:
        """Tells whether it takes anything."""
        return self.max_age_s is not None or self.max_bytes is not None or self.delete_read


class TopicConfig(msgspec.Struct, frozen=True):
    """The configuration that users set. `schema` is Iceberg's schema JSON, of typed topics alone; `scaling` is the
    balancer's policy.

    `columns` is the Arrow schema made of `schema`, encoded, so that a broker need not parse `schema` at start.
    `max_payload_bytes` lowers the setting of that name. `ndjson`: lines of NDJSON are values unless a
    request says otherwise; where it is left out they are messages. `limits` bound what all who use
    the topic do together.
    """

    format: Literal["json", "bytes", "typed"] = "json"
    schema: dict[str, Any] | None = None
    key_field: str | None = None
    initial_segments: int = 1
    scaling: dict[str, Any] = {}
    flush: FlushPolicy = FlushPolicy()
    retention: RetentionPolicy = RetentionPolicy()
    columns: str | None = None
    max_payload_bytes: int | None = None
    ndjson: Literal["bare"] | UnsetType = UNSET
    limits: Limits | UnsetType = UNSET

    @property
    def lines_are_bare(self) -> bool:
        """Tells whether a line of NDJSON is itself the value, unless a request says otherwise."""
        return self.ndjson == "bare"


class TopicRecord(msgspec.Struct, frozen=True):
    """A topic. Its incarnation tells it from earlier topics of the same name. `creator` is the uid of the principal
    that created it, to whose limits it counts; it is not there where nobody in particular did."""

    incarnation: int
    state: Literal["active", "deleting"]
    config: TopicConfig
    created_us: int
    creator: str | UnsetType = UNSET


class Successor(msgspec.Struct, frozen=True):
    """A planned segment: its id, its range [low, high), and the broker that should own it, if that lives then."""

    id: int
    low: int
    high: int
    owner: str | None = None


class Intent(msgspec.Struct, frozen=True):
    """A plan to seal the open `segments`, in the order of their ranges, and to open `successors` in their place.

    `id` is that of the first successor. The records of all its segments contain the same intent.
    """

    id: int
    state: Literal["planned", "committed"]
    segments: tuple[int, ...]
    successors: tuple[Successor, ...]


class SegmentRecord(msgspec.Struct, frozen=True):
    """A segment: the key range [low, high), lineage, state, owner (a broker id), and the end once it is sealed.

    `cuts` are the inner bounds of the parts of its range that have producer tables of their own.
    """

    low: int
    high: int
    state: Literal["open", "sealed"]
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]
    owner: str | None
    end_offset: int | None
    created_us: int
    sealed_us: int | None = None
    cuts: tuple[int, ...] = ()
    intent: Intent | None = None

    @property
    def parts(self) -> tuple[int, ...]:
        """Returns the low ends of the parts of its range."""
        return (self.low, *self.cuts)


class StartRecord(msgspec.Struct, frozen=True):
    """The start of a segment: retention has removed the rows below `offset`, which are those of the entries before
    `sequence`. It never falls.

    `raised` has the sequence and the time, in microseconds since 1970, of each raise whose files may still be there.
    The files before `deleted` were deleted, of a topic with payloads; it was looked which payloads went with those
    before `looked`. `emptied`: the segment is sealed, and all its entries are before `sequence`; `offset` is its end.
    """

    sequence: int
    offset: int
    raised: tuple[tuple[int, int], ...] = ()
    deleted: int = 0
    looked: int = 0
    emptied: bool = False


class TombstoneRecord(msgspec.Struct, frozen=True):
    """The memory of a segment that retention has removed: what its record said, and when it went, by the store's
    clock. A reader that stands at `end_offset` goes on with the successors, each from 0; one below it has lost rows."""

    low: int
    high: int
    end_offset: int
    predecessors: tuple[int, ...]
    successors: tuple[int, ...]
    created_us: int
    sealed_us: int
    removed_us: int


class Counter(msgspec.Struct, frozen=True):
    """The next unused segment id, or incarnation."""

    next: int


class RewindRecord(msgspec.Struct, frozen=True):
    """The last subscription of a topic that was created or sought. Its key changes with each: whoever goes by what
    subscriptions have acked compares the revision, since there may be more subscriptions than one transaction
    compares."""

    subscription: str
