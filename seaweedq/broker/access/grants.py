"""Grants that come from outside, in requests and settings: the check of their patterns, and the roles of the settings.
Pure."""

import re
from collections.abc import Iterable, Mapping

from seaweedq.access.rights import ANY, OF_THE_CLUSTER, OURS, Grant, Rights, grant_of
from seaweedq.segments.entry import NAME

_PATTERN = re.compile(rf"(?:{NAME})\*?|\*")
MAX_ROLES = 1000


class InvalidGrant(ValueError):
    """A grant that is not valid; `value` is the pattern, empty if there is none."""

    def __init__(self, detail: str, value: str = "") -> None:
        super().__init__(detail)
        self.value = value


def check_grants(grants: Iterable[Grant]) -> None:
    """Raises InvalidGrant for an invalid pattern, and for an action on topics without topics."""
    for grant in grants:
        for pattern in (*grant.topics, *grant.subscriptions):
            if not _PATTERN.fullmatch(pattern):
                raise InvalidGrant(
                    f"{pattern!r} is not a valid pattern: use a name, or the beginning of a name followed by *", pattern
                )
        for pattern in grant.topics:
            if pattern.startswith(OURS) and pattern.endswith(ANY):
                raise InvalidGrant(
                    f"{pattern!r} matches no topic: for topics whose names begin with {OURS}, a grant must give the "
                    f"full name, without {ANY}",
                    pattern,
                )
        if not grant.topics and set(grant.actions) - OF_THE_CLUSTER:
            named = ", ".join(sorted(set(grant.actions) - OF_THE_CLUSTER))
            raise InvalidGrant(f"the grant {named} lists no topics; for all topics, list '*'")


def roles_of(text: str) -> Mapping[str, Rights]:
    """Parses roles of the form `role=grant grant; role=grant`. Raises ValueError."""
    roles: dict[str, Rights] = {}
    for line in filter(None, (one.strip() for one in text.split(";"))):
        name, equals, granted = (part.strip() for part in line.partition("="))
        if not name or not equals:
            raise ValueError(
                f"each role must have the form `role=grant grant ...`, with a space between grants, not {line!r}"
            )
        if name in roles:
            raise ValueError(f"the role {name!r} appears twice")
        grants = [grant_of(one) for one in granted.split()]
        check_grants(grants)
        roles[name] = Rights(grants)
    if len(roles) > MAX_ROLES:
        raise ValueError(f"there must be at most {MAX_ROLES} roles, not {len(roles)}")
    return roles
