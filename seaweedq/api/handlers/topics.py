"""Topics: their configuration, scaling and retention in requests and answers; create, list, show, change, delete,
flush.

A publish or upload to an unknown topic also creates the topic (`may_create`, `create`)."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.access.limits import NO_LIMITS, OF_TOPICS, Limits
from seaweedq.access.rights import OURS, Action, Resource, judge
from seaweedq.api.access.authentication import forbidden
from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.handlers.principals import Count, Rate
from seaweedq.api.handlers.schemas import SchemaAnswer
from seaweedq.api.parameters import (
    PageToken,
    PathTopic,
    RequestDep,
    integer,
    json_answer,
    moment,
    query,
    show_differences,
    truth,
)
from seaweedq.api.request import Request
from seaweedq.api.routes import KNOWN, OF_BODIES, OF_CREATION, OF_TOPIC, TOPIC, Lead, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.balancer.policy import Count as SegmentCount
from seaweedq.balancer.policy import ScalingPolicy, Seconds, Target, scaling_policy
from seaweedq.broker.load import policy_of
from seaweedq.broker.read import TopicPositions
from seaweedq.broker.retention import Preview, TopicDeletion, TopicFiles
from seaweedq.broker.topics import Catalog, SchemaVersions, Topic, TopicAdmin
from seaweedq.coordination.records import FlushPolicy, RetentionPolicy, TopicConfig
from seaweedq.errors import (
    InvalidRequest,
    SchemaIncompatible,
    SegmentNotFound,
    TopicBeingDeleted,
    TopicConflict,
    TopicNotFound,
)
from seaweedq.rows.bodies import JSON
from seaweedq.rows.json_values import check_key_field
from seaweedq.segments.evolution import warnings, with_ids
from seaweedq.segments.layout import MAX_FIRST_ID, Format, Layout, renamed, schema_id_of
from seaweedq.segments.schema import encode_fields, parse_schema


class ScalingRequest(Struct, forbid_unknown_fields=True):
    """The policy by which segments split and merge automatically; null means the default. Each target applies to one
    segment."""

    target_messages_per_s: Target | UnsetType | None = UNSET
    target_bytes_per_s: Target | UnsetType | None = UNSET
    min_segments: SegmentCount | UnsetType | None = UNSET
    max_segments: SegmentCount | UnsetType | None = UNSET
    cool_down_s: Seconds | UnsetType | None = UNSET
    enabled: bool | UnsetType | None = UNSET


def changed_scaling(config: TopicConfig, wanted: ScalingRequest) -> dict[str, Any]:
    """Returns the fields to store: those that were set and not reset. Raises InvalidRequest if they contradict each
    other."""
    named = config.scaling | msgspec.to_builtins(wanted)
    kept = {field: value for field, value in named.items() if value is not None}
    scaling_policy(kept, config.initial_segments)
    return kept


def wanted_scaling(topic: Topic, wanted: ScalingRequest) -> dict[str, Any]:
    """Returns a topic's policy with the request's fields applied; null restores a default."""
    named: dict[str, Any] = msgspec.to_builtins(wanted)
    config = topic.record.config
    rest = {field: value for field, value in config.scaling.items() if named.get(field, value) is not None}
    defaults = msgspec.to_builtins(scaling_policy(rest, config.initial_segments))
    asked = {field: defaults[field] if value is None else value for field, value in named.items()}
    current: dict[str, Any] = msgspec.to_builtins(policy_of(topic))
    return current | asked


_AGE_S = 10 * 365 * 86_400
Bytes = Annotated[int, Meta(ge=1, le=2**60)]
Age = Annotated[float, Meta(ge=1, le=_AGE_S)]
Grace = Annotated[float, Meta(ge=60, le=604_800)]


class RetentionRequest(Struct, forbid_unknown_fields=True):
    """The rules by which the broker deletes the topic's messages; null means no limit, or false.

    - `max_age_s` and `max_bytes`: the broker deletes the oldest files beyond these limits.
    - `keep_unread`: these two limits delete nothing that a subscription has not acked.
    - `delete_read`: the broker deletes messages that all subscriptions have acked, if there is at least one
      subscription.
    - `grace_s`: how long deleted files stay available to readers; null means the brokers' setting.
    """

    max_age_s: Age | UnsetType | None = UNSET
    max_bytes: Bytes | UnsetType | None = UNSET
    keep_unread: bool | UnsetType | None = UNSET
    delete_read: bool | UnsetType | None = UNSET
    grace_s: Grace | UnsetType | None = UNSET


class RetentionAnswer(Struct):
    """The retention of a topic."""

    max_age_s: float | None
    max_bytes: int | None
    keep_unread: bool
    delete_read: bool
    grace_s: float | None


class PreviewAnswer(Struct):
    """The number of files that a retention would delete now, their stored bytes, and their messages. `unread` counts
    those messages that at least one subscription has not acked, according to the last checkpoints of the cursors."""

    files: int
    bytes: int
    messages: int
    unread: int


def changed_retention(policy: RetentionPolicy, wanted: RetentionRequest) -> RetentionPolicy:
    """Returns the policy with a request's fields applied."""
    given, plain = msgspec.to_builtins(wanted), RetentionPolicy()
    changed = {name: getattr(plain, name) if value is None else value for name, value in given.items()}
    return msgspec.structs.replace(policy, **changed)


def shown_retention(policy: RetentionPolicy) -> RetentionAnswer:
    """Converts the policy for answers."""
    return RetentionAnswer(policy.max_age_s, policy.max_bytes, policy.keep_unread, policy.delete_read, policy.grace_s)


def preview_answer(preview: Preview) -> PreviewAnswer:
    """Converts a preview for answers."""
    return PreviewAnswer(preview.files, preview.size_bytes, preview.rows, preview.unread_rows)


MAX_SEGMENTS = 1024
MAX_SCHEMA_BYTES = 256 * 1024
FieldName = Annotated[str, Meta(min_length=1, max_length=255)]


class FlushRequest(Struct, forbid_unknown_fields=True):
    """The limits at which the broker writes buffered messages to a file; null means the broker's setting."""

    max_bytes: Annotated[int, Meta(ge=65_536, le=64 * 1024 * 1024)] | UnsetType | None = UNSET
    min_bytes: Annotated[int, Meta(ge=0, le=64 * 1024 * 1024)] | UnsetType | None = UNSET
    max_age_s: Annotated[float, Meta(ge=1, le=86_400)] | UnsetType | None = UNSET


class TopicLimitsRequest(Struct, forbid_unknown_fields=True):
    """Limits on a topic in the whole cluster, for all users together. Rates are per second; null means no limit."""

    requests: Rate | UnsetType = UNSET
    messages: Rate | UnsetType = UNSET
    bytes_in: Rate | UnsetType = UNSET
    bytes_out: Rate | UnsetType = UNSET
    changes: Rate | UnsetType = UNSET
    waiting_pulls: Count | UnsetType = UNSET
    open_uploads: Count | UnsetType = UNSET


Compatibility = Literal["backward", "forward", "full", "none"]


class ChangeRequest(Struct, forbid_unknown_fields=True):
    """The topic fields that can be changed."""

    scaling: ScalingRequest | UnsetType = UNSET
    flush: FlushRequest | UnsetType = UNSET
    retention: RetentionRequest | UnsetType = UNSET
    max_payload_bytes: Annotated[int, Meta(ge=1, le=5 * 1024**4)] | UnsetType | None = UNSET
    ndjson: Literal["envelope", "bare"] | UnsetType | None = UNSET
    limits: TopicLimitsRequest | UnsetType = UNSET
    compatibility: Compatibility | UnsetType | None = UNSET


class PatchRequest(ChangeRequest, forbid_unknown_fields=True):
    """The fields of a topic that can be changed.

    - `schema`: the next version of a typed topic's schema, in Iceberg's JSON format. Fields are matched by `id`, and
      those without an id by name; a new field gets the next id. A request with `schema` changes nothing else.
    - `if_schema_id`: refuse the change unless this version is the newest.
    """

    FIXED: ClassVar = ("format", "key_field", "initial_segments")

    schema: dict[str, Any] | UnsetType = UNSET
    if_schema_id: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class TopicRequest(ChangeRequest, forbid_unknown_fields=True):
    """A topic's configuration. All fields are optional; for an existing topic, only the fields in the request are
    compared.

    - `format`: `json` (the default), `bytes` or `typed`. A typed topic needs `schema`, in Iceberg's JSON format; fields
      without an `id` get the next one.
    - `key_field`: the top-level field of the value that supplies the message's key.
    - `initial_segments`: 1 by default. Segments split and merge later.
    - `max_payload_bytes`: the largest payload, if it should be lower than the brokers' setting.
    - `ndjson`: how a line of NDJSON is read: `envelope` (the default) means a message with its `value`; `bare` means
      the value itself.
    - `compatibility`: the accepted changes of a typed topic's schema: `backward` (the default), `forward`, `full` or
      `none`.
    """

    format: Literal["json", "bytes", "typed"] | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType | None = UNSET
    key_field: FieldName | UnsetType | None = UNSET
    initial_segments: Annotated[int, Meta(ge=1, le=MAX_SEGMENTS)] | UnsetType = UNSET


def new_config(wanted: TopicRequest) -> TopicConfig:
    """Makes the complete configuration of a new topic. Raises InvalidRequest."""
    format = Format(wanted.format or Format.JSON)
    if (format is Format.TYPED) != bool(wanted.schema):
        raise InvalidRequest(
            "a topic with the format `typed` needs a schema; a topic with another format must not have a schema",
            field="schema",
            value=format,
        )
    if wanted.schema:
        _check_size(wanted.schema)
    schema = with_ids(wanted.schema) if wanted.schema else None
    columns = parse_schema(schema) if schema else None
    if columns and (first := schema_id_of(columns)) > MAX_FIRST_ID:
        detail = (
            f"the schema-id {first} of a new topic must be between 0 and {MAX_FIRST_ID}, because later versions have "
            "the next ids"
        )
        raise InvalidRequest(detail, field="schema", value=first, bound=MAX_FIRST_ID)
    if wanted.key_field:
        check_key_field(Layout.from_format(format, columns), wanted.key_field)
    base = TopicConfig(
        format=format.value,
        schema=schema,
        key_field=wanted.key_field or None,
        initial_segments=wanted.initial_segments or 1,
        columns=encode_fields(columns) if columns else None,
    )
    return changed_config(base, wanted)


def _check_size(schema: dict[str, Any]) -> None:
    if (size := len(msgspec.json.encode(schema))) > MAX_SCHEMA_BYTES:
        detail = f"the schema has {size} bytes; the limit is {MAX_SCHEMA_BYTES}"
        raise InvalidRequest(detail, field="schema", value=size, bound=MAX_SCHEMA_BYTES)


def changed_config(config: TopicConfig, wanted: ChangeRequest) -> TopicConfig:
    """Applies a request's changes to the configuration. Raises InvalidRequest."""
    replace = msgspec.structs.replace
    if wanted.ndjson == "bare" and config.format == "bytes":
        raise InvalidRequest(
            "`ndjson` cannot be `bare` for a bytes topic: bare lines are JSON values, and a "
            "bytes topic cannot store JSON values",
            field="ndjson",
            value="bare",
        )
    ndjson: Literal["bare"] | UnsetType = "bare" if wanted.ndjson == "bare" else UNSET
    if wanted.compatibility and config.format != "typed":
        detail = f"compatibility needs a typed topic, but the format of this one is {config.format}"
        raise InvalidRequest(detail, field="compatibility", value=wanted.compatibility)
    compatibility = wanted.compatibility if wanted.compatibility not in (None, "backward") else UNSET
    return replace(
        config,
        scaling=changed_scaling(config, wanted.scaling) if wanted.scaling else config.scaling,
        flush=replace(config.flush, **msgspec.to_builtins(wanted.flush or FlushRequest())),
        retention=changed_retention(config.retention, wanted.retention or RetentionRequest()),
        max_payload_bytes=config.max_payload_bytes if wanted.max_payload_bytes is UNSET else wanted.max_payload_bytes,
        ndjson=config.ndjson if wanted.ndjson is UNSET else ndjson,
        limits=config.limits if wanted.limits is UNSET else _changed_limits(config, wanted.limits),
        compatibility=config.compatibility if wanted.compatibility is UNSET else compatibility,
    )


def _changed_limits(config: TopicConfig, wanted: TopicLimitsRequest) -> Limits | UnsetType:
    limits = msgspec.structs.replace(config.limits or NO_LIMITS, **msgspec.to_builtins(wanted))
    return UNSET if limits == NO_LIMITS else limits


def shown_topic_limits(config: TopicConfig) -> dict[str, float | None]:
    """Converts a topic's limits for answers."""
    return {name: getattr(config.limits or NO_LIMITS, name) for name in OF_TOPICS}


def lines_of(config: TopicConfig) -> Literal["envelope", "bare"]:
    """Returns how the topic reads NDJSON lines, for answers."""
    return "bare" if config.lines_are_bare else "envelope"


def compatibility_of(config: TopicConfig) -> Compatibility | None:
    """Returns which changes of the schema the topic takes, for answers; None for a topic without a schema."""
    return config.compatibility or "backward" if config.format == "typed" else None


def compare(topic: Topic, wanted: TopicRequest) -> None:
    """Raises TopicConflict if a field in the request differs from the topic's."""
    current = msgspec.to_builtins(topic.record.config)
    current["ndjson"] = lines_of(topic.record.config)
    current["compatibility"] = compatibility_of(topic.record.config)
    current["retention"] = msgspec.to_builtins(shown_retention(topic.record.config.retention))
    current["limits"] = shown_topic_limits(topic.record.config)
    named = msgspec.to_builtins(wanted)
    if wanted.ndjson is None:
        named["ndjson"] = "envelope"
    if wanted.compatibility is None:
        named["compatibility"] = current["compatibility"] and "backward"
    if wanted.scaling:
        current["scaling"] = msgspec.to_builtins(policy_of(topic))
        named["scaling"] = wanted_scaling(topic, wanted.scaling)
    differences = {}
    for field, value in named.items():
        if field in ("flush", "retention", "limits"):
            value = current[field] | value
        if current[field] != value:
            differences[field] = {"current": current[field], "requested": value}
    if differences:
        raise TopicConflict(
            f"topic {topic.name!r} already exists: {show_differences(differences)}", differences=differences
        )


async def may_create(request: Request, catalog: Catalog, name: str) -> bool:
    """Returns whether to create a topic that this broker does not know. If the caller may not create topics, first
    checks whether another broker has just created it: returns False if so, and otherwise raises Forbidden."""
    resource = Resource(name)
    if judge(request.caller, Action.CREATE, resource):
        return True
    try:
        await catalog.require(name)
    except TopicNotFound:
        raise forbidden(Action.CREATE, resource) from None
    return False


async def create(request: Request, topics: TopicAdmin, name: str) -> None:
    """Creates a topic with the default configuration, and records it in the audit."""
    if await topics.create(name, TopicConfig(), request.caller.uid):
        request.has_created = True


router = Router("topics")
MAX_PAGE = 1000
TRIES = 3  # of a PUT whose topic is deleted meanwhile


class TopicBounds(Struct):
    """The largest message and the largest payload, in bytes, and the maximum number of open uploads for writes. The
    values come from this broker's settings; the topic may lower the payload limit."""

    max_message_bytes: int
    max_payload_bytes: int
    max_write_uploads: int


class TopicAnswer(Struct):
    """A topic. `scaling` is the policy in effect, with defaults filled in.

    - `schema_id` is the id of the newest version of the schema, or null.
    - `compatibility` determines the accepted changes of the schema; null for a topic without a schema.
    - `segments` counts segments that receive messages. `hot_segments` counts overloaded segments that are not split
      because most of their load comes from one key.
    - `messages` counts all acknowledged messages.
    - `bytes` is the stored size of its files. `tail_bytes` is the in-memory size of messages that are not in a file
      yet; they take less space in files.
    - `start_offsets` lists segments from which retention has deleted messages, namely those below the given offset.
    - `newest_file_at` is when the newest file was written, or null if there is none.
    - `store_endpoint` is the URL of an S3-compatible store; null for AWS and local folders.
    - `warnings`, only after a change of the schema: how each renamed or dropped field affects publishers and readers of
      files.
    """

    name: str
    state: str
    format: str
    schema: dict[str, Any] | None
    schema_id: int | None
    key_field: str | None
    initial_segments: int
    scaling: ScalingPolicy
    flush: FlushPolicy
    retention: RetentionAnswer
    max_payload_bytes: int | None
    ndjson: Literal["envelope", "bare"]
    limits: dict[str, float | None]
    compatibility: Compatibility | None
    bounds: TopicBounds
    created_at: datetime
    segments: int
    hot_segments: list[int]
    messages: int
    bytes: int
    tail_bytes: int
    start_offsets: dict[int, int]
    newest_file_at: datetime | None
    path: str
    store_endpoint: str | None
    warnings: list[str] | UnsetType = UNSET


class TopicSummary(Struct):
    """A topic in a list."""

    name: str
    state: str
    format: str
    created_at: datetime


class TopicList(Struct, omit_defaults=True):
    """One page of topics. `next_page_token` is present if more follow. `unreadable` lists this page's topics whose
    records only a newer broker can read."""

    topics: list[TopicSummary]
    unreadable: list[str] | UnsetType = UNSET
    next_page_token: str | UnsetType = UNSET


class FlushAnswer(Struct):
    """All messages acknowledged before the request are in files."""

    flushed: bool


_EXAMPLE = {"format": "json", "key_field": "carrier", "initial_segments": 4}
_SHOWN = {
    "name": "flights",
    "state": "active",
    **_EXAMPLE,
    "schema": None,
    "schema_id": None,
    "scaling": msgspec.to_builtins(ScalingPolicy(min_segments=4)),
    "flush": {"max_bytes": None, "min_bytes": None, "max_age_s": 60.0},
    "retention": msgspec.to_builtins(shown_retention(RetentionPolicy())),
    "max_payload_bytes": None,
    "limits": dict.fromkeys(OF_TOPICS),
    "compatibility": None,
    "bounds": {"max_message_bytes": 1_048_576, "max_payload_bytes": 5 * 1024**4, "max_write_uploads": 100_000},
    "created_at": "2026-01-31T12:00:00Z",
    "segments": 4,
    "hot_segments": [],
    "messages": 18,
    "bytes": 936,
    "tail_bytes": 0,
    "start_offsets": {},
    "newest_file_at": "2026-01-31T12:01:00Z",
    "path": "file:///var/lib/seaweedq/store/topics/flights",
    "store_endpoint": None,
}
_DRY_RUN = query(
    "dry_run",
    "change nothing, and return what the retention would delete now, or the version that the schema would make",
    {"type": "boolean", "default": False},
    partial(truth, what="dry_run"),
    "false",
)
_LISTED = {name: _SHOWN[name] for name in ("name", "state", "format", "created_at")}


@dataclass(frozen=True)
class TopicServices:
    """The services of these routes."""

    catalog: Catalog
    admin: TopicAdmin
    positions: TopicPositions
    deletion: TopicDeletion
    reader: RequestReader
    files: TopicFiles
    schemas: SchemaVersions

    @classmethod
    def of(cls, parts: Parts) -> Self:
        broker = parts.broker
        positions, files = broker.reading.positions, broker.retaining.files
        return cls(broker.catalog, broker.topics, positions, broker.deletion, parts.reader, files, broker.schemas)


Services = Annotated[TopicServices, given(TopicServices)]


@router.route(
    "GET",
    "/v1/topics",
    KNOWN,
    "listTopics",
    "List topics",
    answers={200: TopicList},
    refuses=(400,),
    shows={"topics": [_LISTED], "next_page_token": "flights"},
    leads=(Lead(("createTopic",), {"topic": "flights"}),),
)
async def list_topics(
    services: Services,
    request: RequestDep,
    size: Annotated[int, integer("page_size", 1, MAX_PAGE, "maximum number of topics", MAX_PAGE)],
    after: PageToken,
) -> Response:
    """Lists the topics that the caller may describe, sorted by name, page by page.

    `unreadable` lists this page's topics whose records only a newer broker can read.
    """
    unreadable = services.catalog.unreadable_names()
    every = sorted([*services.catalog.names(), *unreadable])
    allowed = [name for name in every if judge(request.caller, Action.DESCRIBE, Resource(name))]
    names = [name for name in allowed if name > (after or "")]
    records = [(name, found.record) for name in names[:size] if (found := services.catalog.get(name))]
    page = TopicList([TopicSummary(n, r.state, r.config.format, moment(r.created_us)) for n, r in records])
    if left_out := sorted({*names[:size]} & {*unreadable}):
        page.unreadable = left_out
    if len(names) > size:
        page.next_page_token = names[size - 1]
    return json_answer(page)


@router.route(
    "PUT",
    TOPIC,
    Action.CREATE,
    "createTopic",
    "Create a topic",
    answers={201: TopicAnswer, 200: TopicAnswer},
    refuses=(*OF_BODIES, *OF_CREATION, TopicConflict),
    shows=_SHOWN,
    leads=(
        Lead(("getTopic", "updateTopic", "listSubscriptions", "listSegments", "listFiles", "findOffsets"), OF_TOPIC),
        Lead(("publishMessages",), OF_TOPIC, {"messages": [{"key": "ada", "value": {"n": 1}}]}),
        Lead(("createUpload", "flushTopic", "getHistory", "deleteTopic"), OF_TOPIC),
        Lead(("createSubscription",), {**OF_TOPIC, "subscription": "billing"}, {"start": "earliest"}),
    ),
)
async def create_topic(
    services: Services,
    request: RequestDep,
    topic: PathTopic,
    wanted: Annotated[TopicRequest, body(TopicRequest, _EXAMPLE, free_form=True)],
) -> Response:
    """Creates a topic (201). If the topic exists, compares it with the fields in the request: 200 if they match,
    otherwise 409.

    A `schema` matches if it is any version of the topic's schema. An empty `{}` therefore only ensures that the topic
    exists. In `flush`, `retention` and `scaling`, each field in the request is compared with the current value; in
    `scaling`, a field may also match the default. The answer is the same as for GET.
    """
    for _ in range(TRIES):
        with suppress(TopicNotFound, SegmentNotFound):  # it was deleted meanwhile
            answer = await _ensured(services, topic, wanted, request.caller.uid)
            if answer.status_code == 201:
                request.spend("changes", new_config(wanted).initial_segments - 1)
            return answer
    raise TopicBeingDeleted(
        f"topic {topic!r} was deleted by other requests while this request was creating it; "
        f"gave up after {TRIES} attempts",
        topic=topic,
    )


async def _ensured(services: TopicServices, topic: str, wanted: TopicRequest, creator: str | None) -> Response:
    created = False
    await services.catalog.refresh(topic)
    if services.catalog.get(topic) is None:
        created = await services.admin.create(topic, new_config(wanted), creator)
    found = services.catalog.topic(topic)
    if not created:
        version = await services.schemas.find(found, wanted.schema) if wanted.schema else None
        if version is not None:  # a program's, which is older than the topic's newest one
            key_field = (
                renamed(wanted.key_field, version, found.layout.values) if wanted.key_field else wanted.key_field
            )
            wanted = msgspec.structs.replace(wanted, schema=UNSET, key_field=key_field)
        compare(found, wanted)
        await services.admin.ensure(found)
    return json_answer(await _answer(services, found, fresh=created), 201 if created else 200)


@router.route(
    "GET",
    TOPIC,
    Action.DESCRIBE,
    "getTopic",
    "Get a topic",
    answers={200: TopicAnswer},
    refuses=(404, 409),
    shows=_SHOWN,
)
async def show_topic(services: Services, topic: PathTopic) -> Response:
    """Returns a topic with its configuration, counts, bytes and store path."""
    return json_answer(await _answer(services, await services.catalog.require(topic)))


@router.route(
    "PATCH",
    TOPIC,
    Action.ALTER,
    "updateTopic",
    "Change a topic",
    answers={200: {JSON: {"schema": {"anyOf": [TopicAnswer, PreviewAnswer, SchemaAnswer]}}}},
    refuses=(*OF_BODIES, 404, SchemaIncompatible),
    shows=_SHOWN,
)
async def change_topic(
    services: Services,
    topic: PathTopic,
    dry_run: Annotated[bool, _DRY_RUN],
    wanted: Annotated[PatchRequest, body(PatchRequest, {"flush": {"max_age_s": 60}}, free_form=True)],
) -> Response:
    """Changes `flush`, `retention`, `scaling`, `limits`, `max_payload_bytes`, `ndjson` or `compatibility`. Only the
    fields in the request change; null restores a default. All brokers apply the change immediately.

    A request may instead contain a `schema`, which becomes the next version of a typed topic's schema. Once the broker
    has answered, all brokers accept rows of this version. Brokers accept new optional fields, another order, wider
    types (int to long, float to double, a decimal with higher precision), required fields that become optional, and,
    with `if_schema_id`, renamed fields and dropped fields (except the key field). They answer any other change with 409
    `schema-incompatible` and all `differences`. `warnings` says how each renamed or dropped field affects publishers
    and readers of files. Repeating the request changes nothing.

    With `dry_run`, nothing changes, and the answer shows what the given `retention` would delete now, or the version
    that the given `schema` would make. The request may then contain no other field.
    """
    found = await services.catalog.require(topic)
    if wanted.schema is not UNSET or wanted.if_schema_id is not UNSET:
        return json_answer(await _change_schema(services, found, wanted, dry_run))
    if dry_run:
        named = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not UNSET]
        if others := [name for name in named if name != "retention"]:
            raise InvalidRequest(
                f"dry_run can preview only a change of retention; leave out {', '.join(others)}", field=others[0]
            )
        policy = changed_config(found.record.config, wanted).retention
        flushed = {number: one.flushed for number, one in (await services.positions.positions(found)).items()}
        taken = await services.files.preview(found, policy, flushed, services.reader.clock.now_us())
        return json_answer(preview_answer(taken))
    while True:
        config = changed_config(found.record.config, wanted)
        if await services.admin.change(found, config):
            return json_answer(await _answer(services, found))
        found = services.catalog.topic(topic)


async def _change_schema(
    services: TopicServices, topic: Topic, wanted: PatchRequest, dry_run: bool
) -> TopicAnswer | SchemaAnswer:
    named = {name for name in wanted.__struct_fields__ if getattr(wanted, name) is not UNSET}
    if others := sorted(named - {"schema", "if_schema_id"}):
        detail = f"a request that changes the schema must change nothing else; leave out {', '.join(others)}"
        raise InvalidRequest(detail, field=others[0])
    if wanted.schema is UNSET:
        raise InvalidRequest(
            "if_schema_id can be used only together with schema, but the request has no schema", field="if_schema_id"
        )
    if topic.name.startswith(OURS):
        detail = f"the schema of topic {topic.name!r} cannot change, because brokers write to this topic"
        raise InvalidRequest(detail, field="schema", value=topic.name)
    _check_size(wanted.schema)
    await services.catalog.refresh(topic.name)  # the answer is by the newest version
    topic = services.catalog.topic(topic.name)
    expected = None if wanted.if_schema_id is UNSET else wanted.if_schema_id
    if not dry_run:
        await services.schemas.change(topic, wanted.schema, expected)
        answer = await _answer(services, topic)
        newest, schema = topic.layout.schema_id, topic.record.config.schema or {}
        answer.warnings = await services.schemas.warnings(topic, newest, schema)
        return answer
    found = await services.schemas.next(topic, wanted.schema, expected)
    if found is None:
        return SchemaAnswer(topic.layout.schema_id, topic.record.config.schema or {}, [])
    return SchemaAnswer(int(found.schema["schema-id"]), found.schema, warnings(topic.layout.values, found.columns))


@router.route("DELETE", TOPIC, Action.DELETE, "deleteTopic", "Delete a topic", answers={204: None}, refuses=(404, 409))
async def delete_topic(services: Services, request: RequestDep, topic: PathTopic) -> Response:
    """Deletes a topic with its files, subscriptions and cursors. Answers once everything is deleted.

    Until then, the broker answers all other requests for this topic name with 409 `topic-being-deleted`. A second
    DELETE waits for the same deletion, or resumes a failed deletion. Segment ids are never reused, not even by a new
    topic with the same name.
    """
    found = services.catalog.get(topic) or await services.catalog.require(topic)
    request.spend("changes", max(0, len(services.catalog.segments(found)) - 1))
    await services.deletion.delete(found)
    return Response(status_code=204)


@router.route(
    "POST",
    f"{TOPIC}/flush",
    Action.ALTER,
    "flushTopic",
    "Write all of a topic's messages to files now",
    answers={200: FlushAnswer},
    refuses=(*OF_BODIES, 404, 409),
    shows={"flushed": True},
)
async def flush_topic(services: Services, request: RequestDep, topic: PathTopic) -> Response:
    """Writes all messages acknowledged before the request to files, and then answers."""
    await services.reader.nothing(request)
    found = await services.catalog.require(topic)
    await services.positions.positions(found, flush=True)
    services.catalog.check_whole(found)
    return json_answer(FlushAnswer(True))


async def _answer(services: TopicServices, topic: Topic, fresh: bool = False) -> TopicAnswer:
    """Returns the topic. For a `fresh` topic, owners are not asked, because each of them would send a request to the
    store to open a segment."""
    positions = () if fresh else (await services.positions.positions(topic, sizes=True)).values()
    config, settings = topic.record.config, services.reader.settings  # from here on nothing waits: of one version
    written = [position.file_us for position in positions if position.file_us is not None]
    return TopicAnswer(
        name=topic.name,
        state=topic.record.state,
        format=config.format,
        schema=config.schema,
        schema_id=topic.layout.schema_id if config.schema else None,
        key_field=config.key_field,
        initial_segments=config.initial_segments,
        scaling=policy_of(topic),
        flush=config.flush,
        retention=shown_retention(config.retention),
        max_payload_bytes=config.max_payload_bytes,
        ndjson=lines_of(config),
        limits=shown_topic_limits(config),
        compatibility=compatibility_of(config),
        bounds=TopicBounds(
            settings.max_message_bytes, config.payload_limit(settings.max_payload_bytes), settings.max_write_uploads
        ),
        created_at=moment(topic.record.created_us),
        segments=sum(record.state == "open" for record in services.catalog.segments(topic).values()),
        hot_segments=[position.segment for position in positions if position.observed and position.observed.hot_key],
        messages=sum(position.end for position in positions),
        bytes=sum(position.size_bytes for position in positions),
        tail_bytes=sum(position.tail_bytes for position in positions),
        start_offsets=services.catalog.start_offsets(topic),
        newest_file_at=moment(max(written)) if written else None,
        path=f"{settings.store_path}/topics/{topic.name}",
        store_endpoint=settings.s3_endpoints.partition(",")[0].strip() or None,
    )
