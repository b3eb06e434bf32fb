"""The clients of a simulated world. They write a history in the form of `tests/support/history`, for its checker."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from seaweedq.broker.rpc.client import Relayed, Request
from tests.simulation.network import CLIENTS, Network, Refused, Reset
from tests.support.history.history import Event, Op, Type, digest
from tests.support.history.load import JSON, NDJSON, Message, message
from tests.support.history.terms import Terms

TOPIC = "t"
TIMEOUT_S = 20.0


class Story:
    """The lines of a history, at simulated times."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events: list[Event] = []
        self._loop = loop
        self._calls = 0

    def invoke(self, proc: str, op: Op, fields: Sequence[dict[str, Any]]) -> int:
        """A request about to be sent: its call."""
        self._calls += 1
        self.told(proc, op, "invoke", self._calls, fields)
        return self._calls

    def told(self, proc: str, op: Op, type: Type, call: int, fields: Sequence[dict[str, Any]]) -> None:
        """What became of it."""
        now = self._loop.time()
        self.events += [Event(now, proc, op, type, call, **each) for each in fields]


class WrongAnswer(AssertionError):
    """An answer that no client may get."""


@dataclass
class Client:
    """A client that takes one step after the other. `stopping`: it begins nothing new."""

    name: str
    network: Network
    story: Story
    seed: int
    urls: Sequence[str]
    pause_s: float
    stopping: bool = False
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.name} {self.seed}")

    async def run(self) -> None:
        """Steps until it is to stop and has nothing left to do."""
        while not self.finished():
            await self.step()

    def finished(self) -> bool:
        return self.stopping

    async def step(self) -> None:
        """One request."""
        raise NotImplementedError

    async def rest(self) -> None:
        """The time between two requests."""
        await asyncio.sleep(self.rng.expovariate(1 / self.pause_s))

    async def ask(self, method: str, path: str, content: str = "", headers: dict[str, str] | None = None) -> Any:
        """An answer's JSON; None for what may have happened or not. Raises Refused if nothing has."""
        found = await self.answer(method, f"/v1/topics/{TOPIC}{path}", content, headers)
        if found is None or found.status >= 500:
            if found and found.status != 503:
                raise WrongAnswer(f"{method} {path}: {found.status} {found.body[:500]!r}")
            await asyncio.sleep(0.1)
            return None
        if found.status >= 300:
            raise WrongAnswer(f"{method} {path}: {found.status} {found.body[:500]!r}")
        return json.loads(found.body)

    async def answer(
        self, method: str, path: str, content: str = "", headers: dict[str, str] | None = None
    ) -> Relayed | None:
        """An answer as it is, of any broker; None for none. Raises Refused."""
        request = Request(method, path, {"Content-Type": JSON, **(headers or {})}, content.encode(), TIMEOUT_S)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self.network.send(CLIENTS, self.rng.choice(self.urls), request)
        except Refused:
            await asyncio.sleep(0.1)
            raise
        except (Reset, TimeoutError):
            return None


@dataclass
class Publisher(Client):
    """Messages 0, 1, 2, … in batches; an idempotent one repeats a request until it is answered."""

    idempotent: bool = True
    next: int = 0
    waiting: tuple[int, list[Message]] | None = None
    answered: tuple[int, list[Message]] | None = None

    def finished(self) -> bool:
        return self.stopping and self.waiting is None

    async def step(self) -> None:
        if self.waiting is None:
            await self.rest()
            if self.stopping:
                return
            if self.idempotent and self.answered and self.rng.random() < 0.1:
                await self._publish(*self.answered)  # as if its answer had been lost
            count = self.rng.choice([1, 1, 1, 3, 10])
            self.waiting = self.next, [message(self.name, self.next + n, self.rng) for n in range(count)]
            self.next += count
        if await self._publish(*self.waiting):
            self.answered, self.waiting = self.waiting, None
        elif not self.idempotent:
            self.waiting = None

    async def _publish(self, first: int, messages: Sequence[Message]) -> bool:
        lines: list[dict[str, Any]] = [
            {"key": m.get("key"), "producer": self.name, "seq": first + n, "hash": digest(m.get("key"), m["value"])}
            for n, m in enumerate(messages)
        ]
        call = self.story.invoke(self.name, "publish", lines)
        headers = {"Producer-Id": self.name, "Producer-Sequence": str(first)} if self.idempotent else {}
        many = len(messages) > 1
        content = "\n".join(map(json.dumps, messages)) if many else json.dumps(messages[0])
        try:
            found = await self.ask("POST", "/messages", content, {**headers, "Content-Type": NDJSON if many else JSON})
        except Refused:
            self.story.told(self.name, "publish", "fail", call, lines)
            return False
        if found is None:
            self.story.told(self.name, "publish", "info", call, lines)
            return False
        for line, id in zip(lines, found["ids"], strict=True):
            line["segment"], line["offset"] = map(int, id.split("-"))
        self.story.told(self.name, "publish", "ok", call, lines)
        return True


@dataclass
class Consumer(Client):
    """Pulls, and acks; now and then it forgets a message, which comes again after its deadline."""

    terms: Terms = field(default_factory=Terms)
    wait_s: float = 2.0

    @property
    def subscription(self) -> str:
        return self.terms.mode

    async def step(self) -> None:
        await self.rest()
        asked = {"subscription": self.subscription, "wait_s": self.wait_s}
        call = self.story.invoke(self.name, "deliver", [asked])
        path = f"/subscriptions/{self.subscription}"
        more = {} if self.subscription == "ordered" else {"consumer": self.name}
        try:
            found = await self.ask(
                "POST", f"{path}/pull", json.dumps({"max_messages": 100, "wait_s": self.wait_s, **more})
            )
        except Refused:
            self.story.told(self.name, "deliver", "fail", call, [asked])
            return
        if found is None:
            self.story.told(self.name, "deliver", "info", call, [asked])
            return
        messages = found["messages"]
        if not messages:
            self.story.told(self.name, "wait", "ok", call, [asked])
            return
        lines = [
            {**self._line(m["id"]), "hash": digest(m["key"], m["value"]), "attempt": m.get("attempt", 1)}
            for m in messages
        ]
        self.story.told(self.name, "deliver", "ok", call, lines)
        ids = [m["id"] for m in messages]
        if self.rng.random() < 0.1:
            del ids[self.rng.randrange(len(ids))]
        if ids:
            await self._ack(path, ids, more)

    async def _ack(self, path: str, ids: Sequence[str], more: dict[str, str]) -> None:
        lines = {id: self._line(id) for id in ids}
        call = self.story.invoke(self.name, "ack", [*lines.values()])
        try:
            found = await self.ask("POST", f"{path}/ack", json.dumps({"ids": ids, **more}))
        except Refused:
            return
        if found:
            unknown = set(found["unknown"])
            self.story.told(self.name, "ack", "ok", call, [line for id, line in lines.items() if id not in unknown])
            self.story.told(self.name, "ack", "fail", call, [lines[id] for id in found["unknown"]])

    def _line(self, id: str) -> dict[str, Any]:
        segment, offset = map(int, id.split("-"))
        return {"segment": segment, "offset": offset, "subscription": self.subscription}


@dataclass
class Observer(Client):
    """Looks at the cursors of a subscription, again and again. `lag` is as it was last seen."""

    subscription: str = ""
    lag: int = -1

    async def step(self) -> None:
        await self.rest()
        call = self.story.invoke(self.name, "cursor", [{"subscription": self.subscription}])
        try:
            found = await self.ask("GET", f"/subscriptions/{self.subscription}")
        except Refused:
            return
        if found:
            lag = found["lag"]
            lines = [
                {"segment": one["segment"], "acked_to": one["acked_to"], "subscription": self.subscription}
                for one in lag
            ]
            self.story.told(self.name, "cursor", "ok", call, lines)
            self.lag = sum(one["messages"] for one in lag)


@dataclass
class Reader(Client):
    """Reads segments from an offset, again and again."""

    async def step(self) -> None:
        await self.rest()
        try:
            segments = await self.ask("GET", "/segments")
            if not segments:
                return
            one = self.rng.choice(segments["segments"])
            offset = self.rng.randint(0, max(0, one["end_offset"] or 0))
            asked = {"segment": one["id"], "offset": offset, "broker": "any"}
            call = self.story.invoke(self.name, "read", [asked])
            found = await self.ask("GET", f"/segments/{one['id']}/messages?offset={offset}&limit=50")
        except Refused:
            return
        if found is None:
            self.story.told(self.name, "read", "info", call, [asked])
            return
        lines = []
        for m in found["messages"]:
            segment, offset = map(int, m["id"].split("-"))
            lines.append({"segment": segment, "offset": offset, "hash": digest(m["key"], m["value"]), "broker": "any"})
        self.story.told(self.name, "read", "ok", call, lines or [asked])


@dataclass
class Reshaper(Client):
    """Splits, merges and moves segments, by hand."""

    brokers: Sequence[str] = ()

    async def step(self) -> None:
        await self.rest()
        try:
            found = await self.ask("GET", "/segments")
            if not found:
                return
            open_ones = [one for one in found["segments"] if one["state"] == "open"]
            one = self.rng.choice(open_ones)
            act = self.rng.choice(["split", "merge"] if len(open_ones) > 2 else ["split"])
            body: dict[str, Any] = {}
            if act == "merge":
                beside = [other for other in open_ones if other["low"] == one["high"] + 1]
                if not beside:
                    return
                body = {"with": beside[0]["id"]}
            elif len(open_ones) > 8:
                return
            await self.answer("POST", f"/v1/topics/{TOPIC}/segments/{one['id']}/{act}", json.dumps(body))
        except Refused:
            return
