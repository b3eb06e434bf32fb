"""Producers of a topic in the test's own loop, and the ledger of what they were told: one request in flight for each,
which may be at any broker; idempotent ones repeat it until it is answered."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from seaweedq.broker.broker import Broker
from seaweedq.errors import Unavailable
from tests.support.reshape.lives import Lives

PATH = "/v1/topics/t/messages"
KEYS = 12
Id = tuple[int, int]


@dataclass(frozen=True)
class Message:
    """A message: its value is like no other's. `begun` is when it was first sent, `told` when it was answered."""

    value: str
    key: str | None


@dataclass
class Ledger:
    """What was sent, and what was said of it; times count the events."""

    sent: dict[str, Message] = field(default_factory=dict)
    ids: dict[str, Id] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)  # answers that nobody may give
    refused: list[str] = field(default_factory=list)  # those that may be tried again
    clock: count = field(default_factory=count)  # type: ignore[type-arg]

    def begin(self, messages: Sequence[Message]) -> None:
        """They are about to be sent, perhaps again."""
        now = next(self.clock)
        for message in messages:
            self.sent[message.value] = message
            self.begun.setdefault(message.value, now)

    def acknowledge(self, messages: Sequence[Message], ids: Sequence[Id]) -> None:
        """They were answered so; a value has one id for ever."""
        now = next(self.clock)
        for message, id in zip(messages, ids, strict=True):
            known = self.ids.setdefault(message.value, id)
            if known != id:
                self.strange.append(f"{message} was {known}, and is {id} now")
            self.told.setdefault(message.value, now)


@dataclass
class Producer:
    """`name` is None for a plain one."""

    name: str | None
    ledger: Ledger
    label: str
    sequence: int = 0
    waiting: tuple[int, list[Message]] | None = None
    answered: list[tuple[int, list[Message]]] = field(default_factory=list)
    flight: asyncio.Task[None] | None = None
    _values: count = field(default_factory=count)  # type: ignore[type-arg]

    @property
    def free(self) -> bool:
        """Whether it has nothing under way."""
        return self.flight is None or self.flight.done()

    def draw(self, size: int, rng: random.Random, keyed: bool) -> list[Message]:
        """New messages."""
        return [
            Message(f"{self.label}.{next(self._values)}", f"k{rng.randrange(KEYS)}" if keyed else None)
            for _ in range(size)
        ]

    def send(self, cluster: Lives, broker: Broker, messages: list[Message]) -> None:
        """The next request; an idempotent one sends what still waits instead, if anything does."""
        if self.waiting is None:
            self.waiting = self.sequence, messages
            self.sequence += len(messages)
        self.flight = asyncio.create_task(self._send(cluster, broker, *self.waiting))

    def repeat(self, cluster: Lives, broker: Broker, back: int) -> None:
        """One of the last requests that were answered, again."""
        self.flight = asyncio.create_task(self._again(cluster, broker, *self.answered[-back]))

    async def _send(self, cluster: Lives, broker: Broker, first: int, messages: list[Message]) -> None:
        answer = None
        if broker.process.url in cluster.apps:  # it may have left since it was chosen: then nothing is sent
            self.ledger.begin(messages)
            answer = await self._ask(cluster, broker, first, messages)
        if answer:
            self.ledger.acknowledge(messages, _ids(answer))
            self.answered.append((first, messages))
        if answer or self.name is None:
            self.waiting = None

    async def _again(self, cluster: Lives, broker: Broker, first: int, messages: list[Message]) -> None:
        if answer := await self._ask(cluster, broker, first, messages):
            self.ledger.acknowledge(messages, _ids(answer))  # `duplicate` may be missing where an owner has died of it

    async def _ask(self, cluster: Lives, broker: Broker, first: int, messages: list[Message]) -> dict[str, Any] | None:
        """The answer; None where nobody knows."""
        headers = {"Producer-Id": self.name, "Producer-Sequence": str(first)} if self.name else {}
        bodies = [{"key": m.key, "value": m.value} for m in messages]
        body = bodies[0] if len(bodies) == 1 else {"messages": bodies}
        if broker.process.url not in cluster.apps:
            return None
        try:
            async with cluster.client(broker) as http:
                answer = await http.post(PATH, json=body, headers=headers)
        except (Unavailable, httpx.TransportError) as error:
            self.ledger.refused.append(f"{self.label} {first}: {error!r}")
            return None
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        kind = self.ledger.refused if answer.status_code == 503 else self.ledger.strange
        kind.append(f"{self.label} {first} {messages}: {answer.status_code} {answer.text}")
        return None


def _ids(answer: dict[str, Any]) -> list[Id]:
    ids = answer["ids"] if "ids" in answer else [answer["id"]]
    return [(int(segment), int(offset)) for segment, offset in (id.split("-") for id in ids)]
