"""The JSON of grants and limits, in requests and answers."""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from seaweedq.access.actions import OF_THE_CLUSTER, Action
from seaweedq.access.grants import ANY, OURS, Grant
from seaweedq.access.limits import Limits
from seaweedq.errors import InvalidRequest
from seaweedq.segments.names import NAME

MAX_GRANTS, MAX_PATTERNS, MAX_TEXT = 100, 100, 128
_PATTERN = re.compile(rf"(?:{NAME})\*?|\*")
Patterns = Annotated[list[Annotated[str, Meta(max_length=MAX_TEXT)]], Meta(max_length=MAX_PATTERNS)]
LEAST_RATE = 0.01  # a request in 100 s; what is lower is a mistake, or 0
Rate = Annotated[float, Meta(ge=LEAST_RATE, le=1e15)] | None
Count = Annotated[int, Meta(ge=1, le=10**9)] | None


class GrantRequest(Struct, forbid_unknown_fields=True):
    """Actions that are allowed on some topics, and some of their subscriptions. A name may have one `*` at its end."""

    actions: Annotated[list[Action], Meta(min_length=1, max_length=len(Action))]
    topics: Patterns = []
    subscriptions: Patterns = field(default_factory=lambda: [ANY])


class LimitsRequest(Struct, forbid_unknown_fields=True):
    """How much a principal may use, of the cluster: rates are each second; null is no bound."""

    requests: Rate = None
    messages: Rate = None
    bytes_in: Rate = None
    bytes_out: Rate = None
    changes: Rate = None
    connections: Count = None
    waiting_pulls: Count = None
    topics: Count = None
    segments: Count = None
    open_uploads: Count = None


Grants = Annotated[list[GrantRequest], Meta(max_length=MAX_GRANTS)]


def grants_of(wanted: Sequence[GrantRequest]) -> tuple[Grant, ...]:
    """Returns the grants of a request. Raises InvalidRequest for a pattern that is none, and for an action on topics
    that names none."""
    for grant in wanted:
        for pattern in [*grant.topics, *grant.subscriptions]:
            if not _PATTERN.fullmatch(pattern):
                raise _refused(f"{pattern!r} is neither a name nor one with a * at its end", pattern)
        for pattern in grant.topics:
            if pattern.startswith(OURS) and pattern.endswith(ANY):
                raise _refused(f"{pattern!r} matches nothing: topics {OURS}* are granted by their whole names", pattern)
        if not grant.topics and set(grant.actions) - OF_THE_CLUSTER:
            named = ", ".join(sorted(set(grant.actions) - OF_THE_CLUSTER))
            raise _refused(f"a grant of {named} names no topics; ['*'] is all", "")
    return tuple(Grant(tuple(one.actions), tuple(one.topics), tuple(one.subscriptions)) for one in wanted)


def shown_grants(grants: Sequence[Grant]) -> list[GrantRequest]:
    """Returns grants as answers show them."""
    return [GrantRequest(list(one.actions), list(one.topics), list(one.subscriptions)) for one in grants]


def limits_of(wanted: LimitsRequest) -> Limits:
    """Returns the limits of a request."""
    return Limits(**msgspec.structs.asdict(wanted))


def shown_limits(limits: Limits) -> LimitsRequest:
    """Returns limits as answers show them."""
    return LimitsRequest(**msgspec.structs.asdict(limits))


def _refused(why: str, value: str) -> InvalidRequest:
    return InvalidRequest(f"grants: {why}", field="grants", value=value)
