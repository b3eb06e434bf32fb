"""The actions that can be granted, and what each is about."""

from enum import StrEnum
from typing import NamedTuple


class Action(StrEnum):
    """The deeds that a caller may be allowed. docs/operate/security.md lists the routes of each."""

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
