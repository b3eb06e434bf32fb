"""A topic's configuration as requests state it: a new one, a change, a comparison."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.access.limits import NO_LIMITS, OF_TOPICS, Limits
from seaweedq.api.asgi.shown_values import told
from seaweedq.api.routes.access.grants_and_limits import Count, Rate
from seaweedq.api.routes.topics.retention_policy import RetentionRequest, changed_retention, shown_retention
from seaweedq.api.routes.topics.scaling_policy import ScalingRequest, changed_scaling, wanted_scaling
from seaweedq.broker.load.meters import policy_of
from seaweedq.broker.topics.catalog import Topic
from seaweedq.codec.key_field import check_key_field
from seaweedq.coordination.records.topics import TopicConfig
from seaweedq.errors import InvalidRequest, TopicConflict
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import encode_fields, parse_schema

MAX_SEGMENTS = 1024
MAX_SCHEMA_BYTES = 256 * 1024
FieldName = Annotated[str, Meta(min_length=1, max_length=255)]


class FlushRequest(Struct, forbid_unknown_fields=True):
    """When buffered messages become a file; null is the broker's own setting."""

    max_bytes: Annotated[int, Meta(ge=65_536, le=64 * 1024 * 1024)] | UnsetType | None = UNSET
    min_bytes: Annotated[int, Meta(ge=0, le=64 * 1024 * 1024)] | UnsetType | None = UNSET
    max_age_s: Annotated[float, Meta(ge=1, le=86_400)] | UnsetType | None = UNSET


class TopicLimitsRequest(Struct, forbid_unknown_fields=True):
    """How much all who use a topic may do together, in the whole cluster: rates are each second; null is no bound."""

    requests: Rate | UnsetType = UNSET
    messages: Rate | UnsetType = UNSET
    bytes_in: Rate | UnsetType = UNSET
    bytes_out: Rate | UnsetType = UNSET
    changes: Rate | UnsetType = UNSET
    waiting_pulls: Count | UnsetType = UNSET
    open_uploads: Count | UnsetType = UNSET


class ChangeRequest(Struct, forbid_unknown_fields=True):
    """The fields of a topic that can be changed."""

    scaling: ScalingRequest | UnsetType = UNSET
    flush: FlushRequest | UnsetType = UNSET
    retention: RetentionRequest | UnsetType = UNSET
    max_payload_bytes: Annotated[int, Meta(ge=1, le=5 * 1024**4)] | UnsetType | None = UNSET
    ndjson: Literal["envelope", "bare"] | UnsetType | None = UNSET
    limits: TopicLimitsRequest | UnsetType = UNSET


class TopicRequest(ChangeRequest, forbid_unknown_fields=True):
    """A topic's configuration. Every field may be left out; an existing topic is compared only in the named ones."""

    format: Literal["json", "bytes", "typed"] | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType | None = UNSET
    key_field: FieldName | UnsetType | None = UNSET
    initial_segments: Annotated[int, Meta(ge=1, le=MAX_SEGMENTS)] | UnsetType = UNSET


def new_config(wanted: TopicRequest) -> TopicConfig:
    """Returns the whole configuration of a new topic. Raises InvalidRequest."""
    format = Format(wanted.format or Format.JSON)
    if (format is Format.TYPED) != bool(wanted.schema):
        raise InvalidRequest(
            "a typed topic needs a schema; other topics must not have one", field="schema", value=format
        )
    if wanted.schema and (size := len(msgspec.json.encode(wanted.schema))) > MAX_SCHEMA_BYTES:
        detail = f"the schema has {size} bytes, over the limit of {MAX_SCHEMA_BYTES}"
        raise InvalidRequest(detail, field="schema", value=size, bound=MAX_SCHEMA_BYTES)
    columns = parse_schema(wanted.schema) if wanted.schema else None
    if wanted.key_field:
        check_key_field(Layout.of(format, columns), wanted.key_field)
    base = TopicConfig(
        format=format.value,
        schema=wanted.schema or None,
        key_field=wanted.key_field or None,
        initial_segments=wanted.initial_segments or 1,
        columns=encode_fields(columns) if columns else None,
    )
    return changed_config(base, wanted)


def changed_config(config: TopicConfig, wanted: ChangeRequest) -> TopicConfig:
    """Returns the configuration with the changes that the request names. Raises InvalidRequest."""
    replace = msgspec.structs.replace
    if wanted.ndjson == "bare" and config.format == "bytes":
        raise InvalidRequest(
            "ndjson is bare, but bare lines are JSON values, and a bytes topic has none", field="ndjson", value="bare"
        )
    ndjson: Literal["bare"] | UnsetType = "bare" if wanted.ndjson == "bare" else UNSET
    return replace(
        config,
        scaling=changed_scaling(config, wanted.scaling) if wanted.scaling else config.scaling,
        flush=replace(config.flush, **msgspec.to_builtins(wanted.flush or FlushRequest())),
        retention=changed_retention(config.retention, wanted.retention or RetentionRequest()),
        max_payload_bytes=config.max_payload_bytes if wanted.max_payload_bytes is UNSET else wanted.max_payload_bytes,
        ndjson=config.ndjson if wanted.ndjson is UNSET else ndjson,
        limits=config.limits if wanted.limits is UNSET else _changed_limits(config, wanted.limits),
    )


def _changed_limits(config: TopicConfig, wanted: TopicLimitsRequest) -> Limits | UnsetType:
    limits = msgspec.structs.replace(config.limits or NO_LIMITS, **msgspec.to_builtins(wanted))
    return UNSET if limits == NO_LIMITS else limits


def shown_topic_limits(config: TopicConfig) -> dict[str, float | None]:
    """Returns a topic's limits as answers show them."""
    return {name: getattr(config.limits or NO_LIMITS, name) for name in OF_TOPICS}


def lines_of(config: TopicConfig) -> Literal["envelope", "bare"]:
    """Returns the meaning of a line of NDJSON, as answers state it."""
    return "bare" if config.lines_are_bare else "envelope"


def compare(topic: Topic, wanted: TopicRequest) -> None:
    """Raises TopicConflict where a field that the request names differs."""
    current = msgspec.to_builtins(topic.record.config)
    current["ndjson"] = lines_of(topic.record.config)
    current["retention"] = msgspec.to_builtins(shown_retention(topic.record.config.retention))
    current["limits"] = shown_topic_limits(topic.record.config)
    named = msgspec.to_builtins(wanted)
    if wanted.ndjson is None:
        named["ndjson"] = "envelope"
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
        raise TopicConflict(f"topic {topic.name!r} exists: {told(differences)}", differences=differences)
