"""The scaling policy of a topic: the user's values, checked, and the defaults."""

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from seaweedq.errors import InvalidRequest
from seaweedq.json_reasons import of_field, reword, split_path

DEFAULT_MAX_SEGMENTS = 256
_UNKNOWN = re.compile(r".*unknown field `(?P<field>.*)`", re.DOTALL)
_SHOWN = 100

Target = Annotated[int, Meta(ge=1, le=2**53)]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[float, Meta(ge=1, le=86_400)]


class ScalingPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The maximum long-term load of one segment, the bounds on the number of segments, and the idle time before a
    merge.

    A topic has at least `min_segments` unless it began with fewer: the bound only prevents merges. `enabled` is true if
    the topic's segments split and merge automatically.
    """

    target_messages_per_s: Target = 200_000
    target_bytes_per_s: Target = 32 * 1024 * 1024
    min_segments: Count = 1
    max_segments: Count = DEFAULT_MAX_SEGMENTS
    cool_down_s: Seconds = 600.0
    enabled: bool = True


def scaling_policy(config: dict[str, Any], initial_segments: int) -> ScalingPolicy:
    """Returns the policy of a topic whose `scaling` is `config`. Without bounds, a topic keeps at least as many
    segments as it began with, and has at most `DEFAULT_MAX_SEGMENTS`, or as many as the other bound requires.

    Raises InvalidRequest; fields: field, value, bound.
    """
    try:
        policy = msgspec.convert({name: value for name, value in config.items() if value is not None}, ScalingPolicy)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), config) from None
    least, most = config.get("min_segments"), config.get("max_segments")
    if least is None:
        least = min(initial_segments, most or initial_segments)
    most = most or max(DEFAULT_MAX_SEGMENTS, least)
    if least > most:
        raise _refused("min_segments", least, f"must be at most max_segments={most}")
    return msgspec.structs.replace(policy, min_segments=least, max_segments=most)


def _invalid(reason: str, config: dict[str, Any]) -> InvalidRequest:
    """Adds the value to the decoder's reason, which has the bound and the field."""
    if found := _UNKNOWN.match(reason):
        fields = ", ".join(ScalingPolicy.__struct_fields__)
        detail = f"scaling has no field {found['field']!r}; the fields are {fields}"
        shown = msgspec.json.encode(config.get(found["field"])).decode()[:_SHOWN]
        return InvalidRequest(detail, field=f"scaling.{found['field']}", value=shown, bound=fields)
    what, field = split_path(reason)
    return _refused(field, config.get(field), reword(what))


def _refused(field: str, value: Any, bound: str) -> InvalidRequest:
    shown, field = msgspec.json.encode(value).decode()[:_SHOWN], f"scaling.{field}".rstrip(".")
    return InvalidRequest(of_field(field, bound, shown), field=field, value=shown, bound=bound)
