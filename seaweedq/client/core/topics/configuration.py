"""The configuration of topics and subscriptions as keywords name it. Durations and sizes may be texts with units."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict

Seconds: TypeAlias = float | str
Bytes: TypeAlias = int | str
Start: TypeAlias = str | Mapping[str, Any]
TopicFormat: TypeAlias = Literal["json", "bytes", "typed"]
Lines: TypeAlias = Literal["envelope", "bare"]


class Scaling(TypedDict, total=False):
    """When a topic's segments split and merge; None is the default."""

    target_messages_per_s: int | None
    target_bytes_per_s: Bytes | None
    min_segments: int | None
    max_segments: int | None
    cool_down_s: Seconds | None
    enabled: bool | None


class Flush(TypedDict, total=False):
    """When buffered messages become a file; None is the broker's own setting."""

    max_bytes: Bytes | None
    min_bytes: Bytes | None
    max_age_s: Seconds | None


class Retention(TypedDict, total=False):
    """Which messages a topic keeps; None is no bound."""

    max_age_s: Seconds | None
    max_bytes: Bytes | None
    keep_unread: bool
    delete_read: bool
    grace_s: Seconds | None


class Filter(TypedDict, total=False):
    """Which messages a subscription delivers."""

    key_prefix: str
    headers: Mapping[str, str]


def named(**fields: Any) -> dict[str, Any]:
    """Returns the fields that have a value: those that a caller has named."""
    return {name: value for name, value in fields.items() if value is not None}
