"""A consumer's answers to what it got: acks, nacks, extensions. They are collected, and sent together.

A plain ack is the message's id alone, since there are many of them; every other answer is an `Answer`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias

from seaweedq.errors import ClientError

Verb: TypeAlias = Literal["ack", "nack", "extend"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to one message of a lease; to all of the lease where `id` is None. `more` are the request's further
    members: delay_s, reject, reason, attempted, ack_deadline_s."""

    verb: Verb
    id: str | None
    lease: str | None
    more: tuple[tuple[str, Any], ...] = ()


Item: TypeAlias = str | Answer


@dataclass(frozen=True, slots=True)
class Origin:
    """The pull that messages came with: the name of its lease, and where their answers go."""

    answer: Callable[[Item], None]
    lease: str | None = None


def _not_delivered(item: Item) -> None:
    id = item if isinstance(item, str) else item.id
    raise ClientError(f"message {id} cannot be acked: it was fetched, not delivered by a subscription", id=id)


FETCHED = Origin(_not_delivered)


def nack_of(
    id: str | None, lease: str | None, delay_s: float | None = None, reject: bool = False, reason: str | None = None
) -> Answer:
    """Returns the nack of a message, or of a lease. Members that are None are left out."""
    more = {"delay_s": delay_s, "reject": reject or None, "reason": reason}
    return Answer("nack", id, lease, tuple((name, value) for name, value in more.items() if value is not None))


def return_of(id: str | None, lease: str | None) -> Answer:
    """Returns the nack of a message, or of a lease, that nobody has tried to handle: the delivery does not count."""
    return Answer("nack", id, lease, (("attempted", False),))


def extension_of(id: str | None, lease: str | None, ack_deadline_s: float | None) -> Answer:
    """Returns the extension of a message's lease, or of a whole lease; None is the subscription's deadline."""
    return Answer("extend", id, lease, () if ack_deadline_s is None else (("ack_deadline_s", ack_deadline_s),))


def bodies(items: Iterable[Item], consumer: str) -> Iterator[tuple[Verb, dict[str, Any]]]:
    """Yields the requests that say all of this: one for the plain acks, one for each other kind of answer."""
    items = list(items)
    if acks := [item for item in items if isinstance(item, str)]:
        yield "ack", {"ids": acks, "consumer": consumer}
    others = [item for item in items if isinstance(item, Answer)]
    for (verb, lease, more, whole), group in groupby(others, lambda one: (one.verb, one.lease, one.more, not one.id)):
        about = {} if whole else {"ids": [one.id for one in group]}
        yield verb, {**about, "consumer": consumer, **({"lease": lease} if lease else {}), **dict(more)}
