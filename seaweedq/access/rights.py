"""Rights: the actions that grants give on topics and subscriptions, the callers that have them, and the one judge.

A pattern is a name, or has one `*` at its end. Topics whose names begin with `seaweedq.` are the queue's own: a grant
gives them by their whole name alone, so that `*` on topics of users gives none of them away.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import msgspec

from seaweedq.access.limits import NO_LIMITS, Limits

OURS = "seaweedq."
ANY = "*"
DEFAULT = "*"  # the name of no principal: its limits are those of all that have none of their own
NEVER_US = 2**63 - 1  # when a caller expires that has no end
SUBJECT = "oidc:"  # begins the name of a caller that stands for no principal; no principal's name has a colon
GRANT_FORM = "`actions:topics:subscriptions`, such as `describe,publish:flights*`; each part is a comma-separated list"
SUBJECT_UID = "oidc-"  # begins the uid of such a one
Identity = Literal["token", "jwt", "certificate"]  # the kinds of proof by which a caller is known


class Action(StrEnum):
    """The actions that a caller may be granted. docs/reference/http.md names that of each route."""

    DESCRIBE = "describe"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    PUBLISH = "publish"
    READ = "read"
    CONSUME = "consume"
    SUBSCRIBE = "subscribe"
    RESHAPE = "reshape"
    CLUSTER = "cluster"
    METRICS = "metrics"
    ACCESS = "access"

    __hash__ = str.__hash__  # that of enums is a function in Python, and each request asks


OF_THE_CLUSTER = frozenset({Action.CLUSTER, Action.METRICS, Action.ACCESS})  # they name no topic


class Resource(NamedTuple):
    """The object of an action: nothing narrower than the cluster, a topic, or a subscription of a topic."""

    topic: str | None = None
    subscription: str | None = None

    def __str__(self) -> str:
        if self.topic is None:
            return "cluster"
        return self.topic if self.subscription is None else f"{self.topic}/{self.subscription}"


CLUSTER = Resource()


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The right to some actions: on the topics that match one of `topics` and, if an action is about a
    subscription, on those of their subscriptions that match one of `subscriptions`."""

    actions: tuple[Action, ...]
    topics: tuple[str, ...] = ()
    subscriptions: tuple[str, ...] = (ANY,)


def grant_of(text: str) -> Grant:
    """Parses a grant of GRANT_FORM. Raises ValueError; the patterns are not checked."""
    parts = [tuple(one for one in part.split(",") if one) for part in text.split(":")]
    if not parts[0] or len(parts) > 3:
        raise ValueError(f"invalid grant {text!r}; expected {GRANT_FORM}")
    if unknown := [one for one in parts[0] if one not in list(Action)]:
        raise ValueError(f"{unknown[0]!r} is not an action; the actions are {', '.join(Action)}")
    return Grant(tuple(map(Action, parts[0])), *parts[1:])


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that match some patterns."""

    exact: frozenset[str]
    prefixes: tuple[str, ...]

    @staticmethod
    def of(patterns: Iterable[str]) -> "_Names":
        """Returns the names that match some patterns."""
        every = tuple(patterns)
        prefixes = tuple(one[:-1] for one in every if one.endswith(ANY))
        return _Names(frozenset(one for one in every if not one.endswith(ANY)), prefixes)

    def have(self, name: str) -> bool:
        """Returns whether a name matches."""
        return name in self.exact or name.startswith(self.prefixes)

    def have_topic(self, name: str) -> bool:
        """Returns whether a topic's name matches; one of the queue's own does by its whole name alone."""
        return name in self.exact or (name.startswith(self.prefixes) and not name.startswith(OURS))


class Rights:
    """The rights of some grants together. There is nothing that takes a right away."""

    __slots__ = ("_by_action", "grants")

    def __init__(self, grants: Sequence[Grant]) -> None:
        self.grants = tuple(grants)
        self._by_action: dict[Action, list[tuple[_Names, _Names]]] = {}
        for grant in self.grants:
            names = _Names.of(grant.topics), _Names.of(grant.subscriptions)
            for action in grant.actions:
                self._by_action.setdefault(action, []).append(names)

    def allow(self, action: Action, resource: Resource) -> bool:
        """Returns whether one of the grants allows an action on a resource."""
        scopes = self._by_action.get(action)
        if scopes is None:
            return False
        topic, subscription = resource
        if topic is None or action in OF_THE_CLUSTER:
            return action in OF_THE_CLUSTER
        for topics, subscriptions in scopes:  # a generator costs more than all the rest, for each request
            if topics.have_topic(topic) and (subscription is None or subscriptions.have(subscription)):
                return True
        return False

    def cover(self, grants: Iterable[Grant]) -> bool:
        """Returns whether these rights have all that the grants give: each pattern of each action lies within one
        grant. Grants that only together have a pattern do not count."""
        return all(
            any(_within(action, topic, subscription, one) for one in self.grants)
            for grant in grants
            for action in grant.actions
            for topic in (grant.topics or ("",))
            for subscription in (grant.subscriptions or ("",))
        )


class _Everything(Rights):
    """All rights, also those to the queue's own topics."""

    __slots__ = ()

    def allow(self, action: Action, resource: Resource) -> bool:
        """Returns True."""
        return True

    def cover(self, grants: Iterable[Grant]) -> bool:
        """Returns True."""
        return True


EVERYTHING: Rights = _Everything([Grant(tuple(Action), (ANY,))])


def _within(action: Action, topic: str, subscription: str, grant: Grant) -> bool:
    if action not in grant.actions:
        return False
    if action in OF_THE_CLUSTER:
        return True
    has_topic = any(_pattern_within(topic, one, topics=True) for one in grant.topics)
    return has_topic and any(_pattern_within(subscription, one, topics=False) for one in grant.subscriptions)


def _pattern_within(narrow: str, wide: str, topics: bool) -> bool:
    if narrow == wide:
        return True
    if not wide.endswith(ANY) or (topics and not narrow.endswith(ANY) and narrow.startswith(OURS)):
        return False
    return narrow.removesuffix(ANY).startswith(wide[:-1])


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `principal` is None for one that is anonymous; `token` is the id of its token.

    Each of `layers` must allow its actions: the principal's rights, those of its token, and those of the tokens from
    which that one was issued. Without any layer it may do nothing. It counts until `expires_us`.

    `uid` is that of the principal, by which it differs from each other one that ever had its name: whatever outlives a
    principal goes by it. It is None for an anonymous caller and for the admin, whose name no other principal can have.

    `identity` is the kind of its proof, None for an anonymous caller. Of a proof that is no token of this cluster,
    `proof` is what was verified, so that it can be judged again, and `handles` are the names beside `token` by which
    changes find it.
    """

    principal: str | None
    token: str | None = None
    layers: tuple[Rights, ...] = field(default=(), repr=False)
    expires_us: int = NEVER_US
    limits: Limits = NO_LIMITS
    uid: str | None = None
    identity: Identity | None = None
    proof: Any = field(default=None, repr=False)
    handles: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_subject(self) -> bool:
        """Whether it is a subject of another issuer that stands for no principal: its rights end with its proof."""
        return self.principal is not None and self.principal.startswith(SUBJECT)


NOBODY = Caller(None)  # anonymous, if tokens are required
ANONYMOUS = Caller(None, layers=(EVERYTHING,))  # anonymous, if none is
BROKER = Caller(None, layers=(EVERYTHING,))  # another broker, which has judged for itself


def judge(caller: Caller, action: Action, resource: Resource) -> bool:
    """Returns whether a caller may do an action on a resource, whether or not that exists."""
    layers = caller.layers
    if not layers:
        return False
    for layer in layers:  # noqa: SIM110 -- a generator costs more than all the rest, for each request
        if not layer.allow(action, resource):
            return False
    return True
