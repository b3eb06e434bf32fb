"""The records in the values of coordination's keys. Later versions may add members (coordination/versioned says which
ones); an earlier one keeps them."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from seaweedq.access.limits import Limits

SUBSCRIPTION_LEVEL = 3  # from which on subscriptions have modes and settings, and cursors named leases
MAX_IN_FLIGHT = 10_000
BEFORE_LEVEL_3: dict[str, Any] = {  # all that brokers of lower levels heed
    "mode": "ordered",
    "max_attempts": 0,
    "dead_letter_topic": None,
    "backoff_s": (),
    "max_in_flight": MAX_IN_FLIGHT,
    "filter": None,
    "expires_after_s": None,
    "paused": False,
    "seek": None,
    "used_us": 0,
}


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The id of the cluster and, once the store's identity exists, the id of that store; the store's `_cluster.json`
    must match both.

    A broker that joins must read `level`; forms are written at `written`, which follows it. Above level 1 the store's
    id is in `store_id`, and `store` is a text that is no store's id: brokers older than levels compare it with their
    store's, and end.
    """

    cluster: str
    store: str = ""
    store_id: str = ""
    level: int = 1
    written: int = 1

    @property
    def known_store(self) -> str:
        """Returns the id of the store; empty where it is not known yet."""
        return self.store_id if self.level > 1 else self.store

    def of_store(self, store: str) -> "ClusterRecord":
        """Returns the record with the id of the store."""
        return msgspec.structs.replace(self, **{"store_id" if self.level > 1 else "store": store})

    def risen_to(self, level: int) -> "ClusterRecord":
        """Returns the record with a higher level, at which nothing is written yet."""
        refused = f"this cluster needs a broker that reads level {level}"
        return msgspec.structs.replace(self, store=refused, store_id=self.known_store, level=level)

    def writing(self) -> "ClusterRecord":
        """Returns the record with all written at its level."""
        return msgspec.structs.replace(self, written=self.level)


class BrokerRecord(msgspec.Struct, frozen=True):
    """A living broker: its URL, its given name, its zone. One that is `starting` (its recovery may take long) or
    `draining` gets no new segments.

    It reads the levels from `lowest` to `highest`; one without these members is older than levels. `version` is for
    people. `lease_s` is the time of its lease as it was granted; 0: the broker does not say. One that is `spared` lost
    its last lease while it lived, and is not suspected for a while (broker/suspicion). `peer_url` is where brokers call
    it, if not at `url`; `proofs` show that it knows the cluster's secret (broker/rpc/peer_keys).
    """

    url: str
    name: str
    started_us: int
    zone: str = ""
    draining: bool = False
    starting: bool = False
    lowest: int = 1
    highest: int = 1
    version: str = ""
    lease_s: float = 0.0
    spared: bool = False
    peer_url: str = ""
    proofs: tuple[str, ...] = ()

    @property
    def takes_more(self) -> bool:
        """Tells whether it may get segments and subscriptions."""
        return not self.starting and not self.draining


class SuspicionRecord(msgspec.Struct, frozen=True):
    """One broker's report that another one, which had answered it at this URL, refuses connections there."""

    url: str


class RevocationRecord(msgspec.Struct, frozen=True):
    """The mark of a broker whose lease was ended early, or is about to be: the broker may go on as if it had one for
    `lease_s` after that. `by` is the broker that ends it, `reporters` are those that suspect it; without them it does
    not read the cluster's level."""

    by: str
    reporters: tuple[str, ...]
    lease_s: float


class LeaderRecord(msgspec.Struct, frozen=True):
    """The id of the broker that leads."""

    broker: str


class JournalRecord(msgspec.Struct, frozen=True):
    """The place of a broker's journal: which kind of backend has it, and the id of the broker's home folder (`place`),
    whose lock the broker held.

    `path` is that folder, where the backend needs it. `recovered`: the broker is dead, and its journal has been
    replayed; only the journal's content is still to be removed. The broker reads the levels from `lowest` to `highest`.
    `needs_newer`: no broker that lives reads the journal, as far as the leader knows. `left`, from level 2 on: the
    broker is dead, and all of its journal has been replayed but what it holds of these topics, since a record of theirs
    could not be read.
    """

    kind: str
    place: str
    path: str = ""
    recovered: bool = False
    lowest: int = 1
    highest: int = 1
    needs_newer: bool = False
    left: tuple[str, ...] | None = None


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


RETENTION_LEVEL = 3  # of the cluster, from which on retention is carried out
BARE_LEVEL = 3  # from which on all brokers read a topic's `ndjson`


class RetentionPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of what is kept, by age and by size of the topic; None is no bound.

    `keep_unread`: these two never take what a subscription has not acked. `delete_read`: what all of at least one have
    acked goes. `grace_s`: how long files stay behind that; None is the brokers' setting. Only an `enforced` policy is
    carried out, from level 3 on: versions before it stored policies, and did nothing.
    """

    max_age_s: float | None = None
    max_bytes: int | None = None
    keep_unread: bool = False
    delete_read: bool = False
    grace_s: float | None = None
    enforced: bool = False

    @property
    def takes(self) -> bool:
        """Tells whether it takes anything."""
        return self.max_age_s is not None or self.max_bytes is not None or self.delete_read


class TopicConfig(msgspec.Struct, frozen=True):
    """The configuration that users set. `schema` is Iceberg's schema JSON, of typed topics alone; `scaling` is the
    balancer's policy.

    `columns` is the Arrow schema made of `schema`, encoded, so that a broker need not parse `schema` at start.
    `max_payload_bytes` lowers the setting of that name. `ndjson`, from level 3 on: lines of NDJSON are values unless a
    request says otherwise; where it is left out they are messages. `limits`, from level 4 on, bound what all who use
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
    that created it, to whose limits it counts; it is not there where nobody in particular did, and of topics that are
    older than it."""

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


class MessageFilter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The messages that a subscription delivers: those whose key begins with `key_prefix`, and that have all `headers`
    with these values."""

    key_prefix: str | None = None
    headers: dict[str, str] = {}


class SeekRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last seek of a subscription, which began `epoch`; `ids` are the names of the last ones, the newest at the
    end, and `asked` has a digest of where to each of them went, so that a name is not used for another place.

    `plan` says where the cursors of that epoch begin (coordination/seek_plan). It is there until all of them are
    written: until then nothing is delivered, and nobody acks.
    """

    epoch: int
    ids: tuple[str, ...] = ()
    plan: str | None = None
    asked: Mapping[str, str] = {}


class SubscriptionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription's configuration and state; `epoch` rises with each seek and each change of dispatcher.

    `dispatcher` is the broker that delivered its messages last; as long as that broker lives, no other one delivers.
    `backoff_s` are the delays after the first, second, ... failed delivery. Modes other than `ordered`, and members
    from `backoff_s` on, exist from level 3 on: a record that has them says `needs_level` (`in_its_form`).
    With `expires_after_s`, somebody used it at `used_us` or later (broker/retention/expiry). `creator` is the principal
    that created it, or has named its `dead_letter_topic` since, and `creator_uid` the `uid` of that one, from level 4
    on: its dead letters go out with the rights of that one, and not of another that got the name later. The admin has
    no uid.
    """

    mode: Literal["ordered", "shared", "keyed"]
    start: str | dict[str, str]
    ack_deadline_s: float
    max_attempts: int
    dead_letter_topic: str | None
    created_us: int
    epoch: int
    state: Literal["creating", "active", "deleting"] = "active"
    dispatcher: str | None = None
    backoff_s: tuple[float, ...] = ()
    max_in_flight: int = MAX_IN_FLIGHT
    filter: MessageFilter | None = None
    expires_after_s: float | None = None
    paused: bool = False
    seek: SeekRecord | None = None
    used_us: int = 0
    creator: str | None = None
    creator_uid: str | None = None
    needs_level: int | UnsetType = UNSET

    @property
    def is_seeking(self) -> bool:
        """Tells whether its cursors are not yet those of its last seek."""
        return self.seek is not None and self.seek.plan is not None

    @property
    def new_in_level_3(self) -> list[str]:
        """Returns the names of the members whose values brokers of level 2 do not know, or do not heed."""
        return [name for name, known in BEFORE_LEVEL_3.items() if getattr(self, name) != known]

    def in_its_form(self) -> "SubscriptionRecord":
        """Returns the record with the level that a broker must read which works with it. A default is left out of the
        stored form only if it is that very object."""
        new = self.new_in_level_3
        known = {name: value for name, value in BEFORE_LEVEL_3.items() if name not in new}
        return msgspec.structs.replace(self, **known, needs_level=SUBSCRIPTION_LEVEL if new else UNSET)


class HeldLease(msgspec.Struct, frozen=True, array_like=True):
    """The messages that a resigning dispatcher had leased to `consumer` under a name: runs of offsets, for the seconds
    that were left. One without name and consumer is a delay, which is a lease of nobody's; with `dying` (the reason,
    and what was said of it) its messages are given up, and their dead letters not yet known to be durable."""

    name: str
    consumer: str
    left_s: float
    runs: tuple[tuple[int, int], ...]
    dying: tuple[str, str] | None = None


class CursorRecord(msgspec.Struct, frozen=True):
    """A subscription's progress in a segment: acked below `acked_to`, and in the half-open intervals `acked` beyond it.

    `attempts` counts the deliveries of unacked offsets (as strings) that were delivered more than once; offsets from
    `delivered_to` on were never delivered. `leases` are those that a resigning dispatcher had given to `consumer`, as
    (low, high, seconds left); they are valid for the very next epoch alone.

    From level 2 on it says `needs_level`, and its stored form holds `acked` and `attempts` in `packed`
    (coordination/cursor_form). From level 3 on `held` has the leases in place of `leases` and `consumer`; what is
    dying is in every checkpoint. `sought_below`: offsets below it may have been delivered before a seek, so that acks
    which came late from there say nothing.
    """

    epoch: int
    acked_to: int
    acked: tuple[tuple[int, int], ...] = ()
    attempts: dict[str, int] = {}
    delivered_to: int = 0
    leases: tuple[tuple[int, int, float], ...] = ()
    consumer: str | None = None
    needs_level: int | UnsetType = UNSET
    packed: str | UnsetType = UNSET
    held: tuple[HeldLease, ...] | UnsetType = UNSET
    sought_below: int | UnsetType = UNSET


class SecretRecord(msgspec.Struct, frozen=True):
    """A key that all brokers share, in hex."""

    secret: str
