"""The records in the values of coordination's keys (coordination/keys): principals, tokens and denials; the cluster,
its brokers and journals; topics and segments; subscriptions and cursors; uploads and imports.

Later versions may add members (coordination/versioned says which ones); an earlier one keeps them. A member that
narrows a right is added only by the level of the cluster: an earlier version would keep it, and not heed it.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from seaweedq import levels
from seaweedq.access.limits import NO_LIMITS, Limits
from seaweedq.access.rights import Grant
from seaweedq.segments.terms import FIRST_TERM, Term

MAX_IN_FLIGHT = 10_000


class PrincipalRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A principal: its rights and limits. `uid` is drawn when it is created: tokens name it, so that none counts for
    another principal that gets the same name later. One whose uid is empty is being deleted, and gives no right."""

    uid: str
    grants: tuple[Grant, ...]
    created_us: int
    disabled: bool = False
    limits: Limits = NO_LIMITS


class TokenRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token: the SHA-256 of its text, and the principal that it stands for.

    `parent` is the token from which it was issued: it counts only as long as that one does. `grants` narrow it further.
    `issuer` is the principal that issued it, and `note` a text of that one's; both are for people.
    """

    digest: str
    principal: str
    uid: str
    created_us: int
    issuer: str = ""
    expires_us: int | None = None
    grants: tuple[Grant, ...] | None = None
    parent: str | None = None
    note: str = ""


class DenialRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A denial: no JSON Web Token with this `jti`, or of this subject (`sub`), counts; until `expires_us` if that is
    set. `issuer` is the principal that denied it, and `note` a text of that one's; both are for people."""

    kind: Literal["jti", "sub"]
    value: str
    created_us: int
    issuer: str = ""
    expires_us: int | None = None
    note: str = ""


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The id of the cluster and, once the store's identity exists, the id of that store; the store's `_cluster.json`
    must match both.

    A broker that joins must read `level`; forms are written at `written`, which follows it. `draft` is the draft number
    of the forms (levels.DRAFT). `generation` is the number of this history of coordination, and `nonce` tells it from
    another one of that number (storage/generations).

    Brokers join, and serve, in the `state` serving alone. One that is `restored` went back, as `found` says. While it
    is `rebuilding` or `replacing` the rebuild of the generation `rebuild` is under way, or was broken off: of one that
    is `rebuilding` no other key has changed, so `generation` is that of its content still.
    """

    cluster: str
    store: str = ""
    level: int = 1
    written: int = 1
    draft: int = 0
    generation: int = 1
    nonce: str = ""
    state: Literal["serving", "restored", "rebuilding", "replacing"] = "serving"
    found: str = ""
    rebuild: int = 0

    @staticmethod
    def new(cluster: str, level: int, nonce: str = "") -> "ClusterRecord":
        """Returns the record of a cluster that begins at a level, and whose store is not known yet."""
        return ClusterRecord(cluster, level=level, written=level, draft=levels.DRAFT, nonce=nonce)


class BrokerRecord(msgspec.Struct, frozen=True):
    """A living broker: its URL, its given name, its zone. One that is `starting` (its recovery may take long) or
    `draining` gets no new segments.

    It reads the levels from `lowest` to `highest`. `version` is for people. `lease_s` is the time of its lease as
    it was granted; 0: the broker does not say. One that is `suspicion_exempt` lost its last lease while it lived, and
    is not suspected for a while (broker/cluster/suspecting). Brokers call it at `peer_url`, and clients of gRPC at
    `grpc_url`, if that is not empty; `proofs` show that it knows the cluster's secret (broker/rpc/peer_keys).
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
    suspicion_exempt: bool = False
    peer_url: str = ""
    proofs: tuple[str, ...] = ()
    grpc_url: str = ""

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


class UnknownJournal(msgspec.Struct, frozen=True):
    """Since when no broker that lives can reach a journal, as far as the leader knows, and why."""

    since_us: int
    why: str


class JournalRecord(msgspec.Struct, frozen=True):
    """The place of a broker's journal: which kind of backend has it, and the id of the broker's home folder (`place`),
    whose lock the broker held.

    `path` is that folder, if the backend needs it. `recovered`: the broker is dead, and its journal has been
    replayed; only the journal's content is still to be removed. The broker reads the levels from `lowest` to `highest`.
    `needs_newer`: no broker that lives reads the journal, as far as the leader knows. `left`: the
    broker is dead, and all of its journal has been replayed but what it holds of these topics, since a record of theirs
    could not be read. `unknown`: the broker is dead, and nobody reaches its journal. `loss_accepted_us`: from that time
    on a recovery may do with what is left of it, once its segments are to be sealed.
    """

    kind: str
    place: str
    path: str = ""
    recovered: bool = False
    lowest: int = 1
    highest: int = 1
    needs_newer: bool = False
    left: tuple[str, ...] | None = None
    unknown: UnknownJournal | None = None
    loss_accepted_us: int = 0


class MirrorMember(msgspec.Struct, frozen=True):
    """A mirror: the broker that had the holding when it joined the set, and the holding's id."""

    broker: str
    holding: str


class MirrorsRecord(msgspec.Struct, frozen=True):
    """The mirror set of a journal. Its broker changes an `open` one, the changes counted by `change`.

    `closed`: a recovery has begun, the set stays as it is. `decided`: the end of the journal is `slots` slots in the
    store below the name `copy`; an empty name stands for none. `is_lossy`: no holding of the set was left for it. The
    store lacks the commits of the last `exposure_s` seconds at most, if it was there; None: no bound is known.
    """

    state: Literal["open", "closed", "decided"]
    members: tuple[MirrorMember, ...] = ()
    change: int = 0
    copy: str = ""
    slots: int = 0
    is_lossy: bool = False
    exposure_s: float | None = None


class ReportedJournal(msgspec.Struct, frozen=True):
    """A journal that is needed, and the highest term of each segment in it: topic, segment, generation, number."""

    broker: str
    record: JournalRecord
    terms: tuple[tuple[str, int, int, int], ...] = ()


class WaitingRecord(msgspec.Struct, frozen=True):
    """A broker at `url` that waits for a rebuild of coordination, and the needed journals of its home folder, of which
    it holds the lock."""

    url: str
    journals: tuple[ReportedJournal, ...] = ()


class SecretRecord(msgspec.Struct, frozen=True):
    """A key that all brokers share, in hex."""

    secret: str


class CreationRecord(msgspec.Struct, frozen=True):
    """A topic's creation in progress: the creating broker, the number of ids it allocated, and for whom (as in the
    topic's record)."""

    broker: str
    count: int
    creator: str | UnsetType = UNSET


class FlushPolicy(msgspec.Struct, frozen=True):
    """The limits, in bytes and seconds, at which a tail is written to a file; null means the broker's setting."""

    max_bytes: int | None = None
    min_bytes: int | None = None
    max_age_s: float | None = None


class RetentionPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of a topic, by age and by size; None is no bound.

    `keep_unread`: these two never take messages that a subscription has not acked. `delete_read`: messages go that all
    subscriptions, of at least one, have acked. `grace_s`: how long files stay behind that; None is the brokers'
    setting.
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
    request says otherwise; if it is left out they are messages. `limits` bound all users of the topic together.
    `compatibility` says which changes of the schema a typed topic takes (segments/evolution); left out: `backward`.
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
    compatibility: Literal["forward", "full", "none"] | UnsetType = UNSET

    @property
    def schema_id(self) -> int:
        """The id of the newest version of the schema; 0 without one."""
        return int((self.schema or {}).get("schema-id", 0))

    @property
    def lines_are_bare(self) -> bool:
        """Tells whether a line of NDJSON is itself the value, unless a request says otherwise."""
        return self.ndjson == "bare"

    def payload_limit(self, limit_bytes: int) -> int:
        """Returns the largest payload, in bytes: the topic's own limit, never over the brokers'."""
        return min(self.max_payload_bytes or limit_bytes, limit_bytes)


class TopicRecord(msgspec.Struct, frozen=True):
    """A topic. Its incarnation tells it from earlier topics of the same name. `creator` is the uid of the principal
    that created it, to whose limits it counts; it is not there if nobody in particular did. `pending` is the id of a
    version of the schema that was decided, and does not count yet (broker/topics/schema_versions)."""

    incarnation: int
    state: Literal["active", "deleting"]
    config: TopicConfig
    created_us: int
    creator: str | UnsetType = UNSET
    pending: int | UnsetType = UNSET


class SchemaRecord(msgspec.Struct, frozen=True):
    """A version of a typed topic's schema, as in the topic's configuration. A transaction has up to two of these beside
    that configuration, and etcd takes 1.5 MB of it, so their columns are made of it where they are needed."""

    schema: dict[str, Any]
    created_us: int


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

    `cuts` are the inner bounds of the parts of its range that have producer tables of their own. `term` is that of the
    owner, or of the last one (segments/terms): each transaction that writes another owner raises it. `entry_from` is
    the number of the term in which it was last taken from an owner that was given up for dead; 0 if it never was.
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
    term: Term = FIRST_TERM
    entry_from: int = 0

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
    """The memory of a segment that retention has removed: the content of its record, and its end by the store's clock.
    A reader that stands at `end_offset` goes on with the successors, each from 0; one below it has lost rows."""

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


class WatermarkRecord(msgspec.Struct, frozen=True):
    """Says nothing: the revision of its key counts (coordination/watermark)."""


class RewindRecord(msgspec.Struct, frozen=True):
    """The last subscription of a topic that was created or sought, or got a topic of dead letters, which has it then,
    too. Its key changes with each: a writer that relies on the acks of subscriptions, or on the topics of their dead
    letters, compares the revision, since there may be more subscriptions than one transaction compares."""

    subscription: str


class MessageFilter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The messages that a subscription delivers: those whose key begins with `key_prefix`, and that have all `headers`
    with these values."""

    key_prefix: str | None = None
    headers: dict[str, str] = {}


class SeekRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last seek of a subscription, which began `epoch`; `ids` are the names of the last ones, the newest at the
    end, and `asked` has a digest of where to each of them went, so that a name is not used for another place.

    `plan` says where the cursors of that epoch begin (coordination/packed_forms). It is there until all of them
    are written: until then nothing is delivered, and nobody acks.
    """

    epoch: int
    ids: tuple[str, ...] = ()
    plan: str | None = None
    asked: Mapping[str, str] = {}


class SubscriptionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription's configuration and state; `epoch` rises with each seek and each change of dispatcher.

    `dispatcher` is the broker that delivered its messages last; as long as that broker lives, no other one delivers.
    `backoff_s` are the delays after the first, second, ... failed delivery. With `expires_after_s`, somebody used it at
    `used_us` or later (broker/retention/subscription_expiry). `creator` is the principal that created it, or has named
    its `dead_letter_topic` since, and `creator_uid` the `uid` of that one: its dead letters go out with the rights of
    that one, and not of another that got the name later. The admin has no uid. `generation` is that of coordination in
    which a change of dispatcher has raised the epoch last.
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
    generation: int = 1

    @property
    def is_seeking(self) -> bool:
        """Tells whether its cursors are not yet those of its last seek."""
        return self.seek is not None and self.seek.plan is not None


class HeldLease(msgspec.Struct, frozen=True, array_like=True):
    """The messages that a resigning dispatcher had leased to `consumer` under a name: runs of offsets, for the seconds
    that were left. One without name and consumer is a delay, which is a lease of nobody's; with `dying` (the reason,
    and its detail) its messages are given up, and their dead letters not yet known to be durable. One with `dying` and
    a name is a batch of these that may have been published, under that identity; others have these too."""

    name: str
    consumer: str
    left_s: float
    runs: tuple[tuple[int, int], ...]
    dying: tuple[str, str] | None = None


class CursorRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription's progress in a segment: acked below `acked_to`, and in the half-open intervals `acked` beyond it.

    `attempts` counts the deliveries of unacked offsets (as strings) that were not delivered just once; offsets from
    `delivered_to` on were never delivered. `held` are the leases of a resigning dispatcher, which are valid for the
    very next epoch alone, and dying messages, which are in every checkpoint. `sought_below`: offsets below it may have
    been delivered before a seek, so acks that came late from there say nothing. The stored form holds `acked` and
    `attempts` in `packed` (coordination/packed_forms).
    """

    epoch: int
    acked_to: int
    acked: tuple[tuple[int, int], ...] = ()
    attempts: dict[str, int] = {}
    delivered_to: int = 0
    packed: str | None = None
    held: tuple[HeldLease, ...] = ()
    sought_below: int = 0


class UploadRecord(msgspec.Struct, frozen=True):
    """An upload: the object `name`, `size` bytes of `content_type`, and their SHA-256 as the client states it (hex).

    `checked` is the digest that the object was found to have. `parts` is the store's id of a multipart upload, whose
    parts have `part_bytes` bytes, except the last one. A removed upload is `cleared` once its object was deleted.
    `write` is the writer and number of the write that alone may take it: `{writer}/{number}`.
    docs/internals/by-reference.md has the states.
    """

    name: str
    size: int
    content_type: str
    sha256: str | None
    created_us: int
    expires_us: int
    state: Literal["open", "imported", "published", "removed"] = "open"
    checked: str | None = None
    parts: str | None = None
    part_bytes: int | None = None
    cleared: bool = False
    write: str | UnsetType = UNSET


class ImportedSegment(msgspec.Struct, frozen=True):
    """The rows of an import in a segment: their number, and the first and last offset; other rows may lie between."""

    segment: int
    first_offset: int
    last_offset: int
    count: int


class ImportProblem(msgspec.Struct, frozen=True):
    """The reason why an import failed: the slug of an error, its detail and fields."""

    slug: str
    detail: str
    fields: dict[str, Any] = {}


class ImportRecord(msgspec.Struct, frozen=True):
    """An import of the object `name` (`size` bytes, `sha256`). `broker` works on it; None: no broker does.

    `started_us`, of the cluster's time, is that of rows that have none, and the one from which lifetimes count; with
    `max_message_bytes` and `schema_id`, the version of the topic's schema, it makes rows a function of the file, and
    `batch_rows` does the same for batches. `rows` is known once the file was checked; the first `rows_done` are
    durable. `traceparent` is that of the request, which each row gets that has none. docs/internals/by-reference.md
    has the states.
    """

    format: Literal["parquet", "ndjson", "arrow"]
    bare: bool
    name: str
    size: int
    sha256: str
    started_us: int
    expires_us: int
    max_message_bytes: int
    batch_rows: int
    broker: str | None
    state: Literal["checking", "running", "done", "failed"] = "checking"
    rows: int | None = None
    rows_done: int = 0
    segments: tuple[ImportedSegment, ...] = ()
    problem: ImportProblem | None = None
    schema_id: int = 0
    traceparent: str | None = None


class WriteRecord(msgspec.Struct, frozen=True):
    """The newest write of a writer: its `number`, and `uploads` files, of which `uploads_sha256` is the digest of their
    ids. While it is not over, the object `listed` has them. `broker` works on it; None: no broker does.

    `started_us`, `max_message_bytes`, `schema_id`, `batch_rows`, `rows`, `rows_done` and `traceparent` are as of an
    import. `nonce` is in the name of the producer, and `first` is the sequence of the first row. `drawn` says that the
    writer's name was drawn. `ended_us` is when it was over, `ended_by` the broker that ended it.
    docs/internals/by-reference.md has the states.
    """

    number: int
    format: Literal["parquet", "ndjson", "arrow"]
    bare: bool
    uploads: int
    uploads_sha256: str
    listed: str | None
    drawn: bool
    started_us: int
    max_message_bytes: int
    batch_rows: int
    nonce: str
    first: int
    broker: str | None
    state: Literal["checking", "running", "done", "failed"] = "checking"
    rows: int | None = None
    rows_done: int = 0
    segments: tuple[ImportedSegment, ...] = ()
    problem: ImportProblem | None = None
    ended_us: int | None = None
    ended_by: str | None = None
    schema_id: int = 0
    traceparent: str | None = None
