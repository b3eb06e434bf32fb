"""The settings of a subscription in requests that create or change one, and the records that they make. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from seaweedq.api.asgi.parameters import in_utc
from seaweedq.api.asgi.shown_values import told
from seaweedq.coordination.records.subscriptions import MessageFilter, SubscriptionRecord
from seaweedq.errors import InvalidRequest, SubscriptionConflict
from seaweedq.segments.names import NAME

LONGEST_S = 43_200  # of a lease or a delay: half a day
AckDeadline = Annotated[float, Meta(ge=1, le=LONGEST_S)]
MaxAttempts = Annotated[int, Meta(ge=0, le=100)]
DeadLetterTopic = Annotated[str, Meta(pattern=rf"^{NAME}(?!\n)$")]
Delay = Annotated[float, Meta(ge=0, le=LONGEST_S)]
Backoff = Annotated[list[Delay], Meta(max_length=100)]
MaxInFlight = Annotated[int, Meta(ge=1, le=1_000_000)]
ExpiresAfter = Annotated[float, Meta(ge=60, le=315_360_000)]


class StartAt(Struct, forbid_unknown_fields=True):
    """The first message whose timestamp reaches this (RFC 3339, with an offset)."""

    timestamp: Annotated[datetime, Meta(tz=True)]


class Filter(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The messages to deliver: the key begins with `key_prefix`, and each of `headers` is there with this value. All
    others count as acked."""

    key_prefix: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    headers: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=255)], Annotated[str, Meta(max_length=4096)]],
        Meta(max_length=16),
    ] = {}


class SubscriptionRequest(Struct, forbid_unknown_fields=True):
    """Every field may be left out. An existing subscription is compared only in the fields that are named."""

    mode: Literal["ordered", "shared", "keyed"] | UnsetType = UNSET
    start: Literal["latest", "earliest"] | StartAt | UnsetType = UNSET
    ack_deadline_s: AckDeadline | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET
    dead_letter_topic: DeadLetterTopic | UnsetType | None = UNSET
    backoff_s: Backoff | UnsetType = UNSET
    max_in_flight: MaxInFlight | UnsetType = UNSET
    filter: Filter | UnsetType | None = UNSET
    expires_after_s: ExpiresAfter | UnsetType | None = UNSET


class SubscriptionChange(Struct, forbid_unknown_fields=True):
    """The settings to change; those that are left out stay. Mode, start and filter cannot be changed."""

    ack_deadline_s: AckDeadline | UnsetType = UNSET
    max_attempts: MaxAttempts | UnsetType = UNSET
    dead_letter_topic: DeadLetterTopic | UnsetType | None = UNSET
    backoff_s: Backoff | UnsetType = UNSET
    max_in_flight: MaxInFlight | UnsetType = UNSET
    expires_after_s: ExpiresAfter | UnsetType | None = UNSET
    paused: bool | UnsetType = UNSET


def record_of(wanted: SubscriptionRequest, now_us: int) -> SubscriptionRecord:
    """Returns the record of a new subscription. Raises InvalidRequest."""
    # The epoch begins with the clock, so that acks of a deleted subscription of the same name never count for this one.
    plain = SubscriptionRecord("ordered", "latest", 30.0, 0, None, now_us, epoch=now_us)
    return structs.replace(plain, **changes_of(wanted)).in_its_form()


def changes_of(wanted: SubscriptionRequest | SubscriptionChange) -> dict[str, Any]:
    """Returns the members of the record that a request names, as the record has them. Raises InvalidRequest."""
    found = {name: value for name in wanted.__struct_fields__ if (value := getattr(wanted, name)) is not UNSET}
    if isinstance(start := found.get("start"), StartAt):
        found["start"] = {"timestamp": in_utc(start.timestamp, "start.timestamp").isoformat()}
    if "backoff_s" in found:
        found["backoff_s"] = tuple(found["backoff_s"])
    if (chosen := found.get("filter")) is not None:
        if not chosen.key_prefix and not chosen.headers:
            raise InvalidRequest("filter is {}; it needs key_prefix, headers or both", field="filter", value={})
        found["filter"] = MessageFilter(chosen.key_prefix, chosen.headers)
    return found


def compare(name: str, there: SubscriptionRecord, record: SubscriptionRecord, named: Iterable[str]) -> None:
    """Raises SubscriptionConflict where an existing subscription differs from a record in the `named` members."""
    pairs = {field: (getattr(there, field), getattr(record, field)) for field in named}
    differences = {field: {"current": old, "requested": new} for field, (old, new) in pairs.items() if old != new}
    if differences:
        raise SubscriptionConflict(f"subscription {name!r} exists: {told(differences)}", differences=differences)
