"""Grants, and the rights that some grants make together.

A pattern is a name, or has one `*` at its end. Topics whose names begin with `seaweedq.` are the queue's own: a grant
gives them by their whole name alone, so that `*` on topics of users gives none of them away.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from seaweedq.access.actions import OF_THE_CLUSTER, Action, Resource

OURS = "seaweedq."
ANY = "*"


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The right to some actions: on the topics that match one of `topics` and, where an action is about a
    subscription, on those of their subscriptions that match one of `subscriptions`."""

    actions: tuple[Action, ...]
    topics: tuple[str, ...] = ()
    subscriptions: tuple[str, ...] = (ANY,)


@dataclass(frozen=True, slots=True)
class _Names:
    """The names that match some patterns."""

    exact: frozenset[str]
    prefixes: tuple[str, ...]

    @staticmethod
    def of(patterns: Iterable[str]) -> "_Names":
        """Takes patterns apart."""
        every = tuple(patterns)
        prefixes = tuple(one[:-1] for one in every if one.endswith(ANY))
        return _Names(frozenset(one for one in every if not one.endswith(ANY)), prefixes)

    def have(self, name: str) -> bool:
        """Tells whether a name matches."""
        return name in self.exact or name.startswith(self.prefixes)

    def have_topic(self, name: str) -> bool:
        """Tells whether a topic's name matches; one of the queue's own does by its whole name alone."""
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
