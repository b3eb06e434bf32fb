"""The clients of a simulated world. They write a history in the form of `tests/support/history`, for its checker."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from seaweedq.broker.rpc.peer_connections import Relayed, Request
from tests.simulation.network import CLIENTS, Network, Refused, Reset
from tests.support.brokers.simulated_loop import SimulatedLoop
from tests.support.history.history import Event, Op, Type, digest
from tests.support.history.load import JSON, NDJSON, Message, message

TOPIC = "t"
ARROW = "application/vnd.apache.arrow.stream"
TIMEOUT_S = 20.0
RESTS_S = 30.0  # at the most: whoever rests must have ended a minute after all was healed
SETTLING_S = 0.2


class Story:
    """The lines of a history, at simulated times."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.events: list[Event] = []
        self.loop = loop
        self._calls = 0

    def invoke(self, proc: str, op: Op, fields: Sequence[dict[str, Any]]) -> int:
        """A request about to be sent: its call."""
        self._calls += 1
        self.told(proc, op, "invoke", self._calls, fields)
        return self._calls

    def told(self, proc: str, op: Op, type: Type, call: int, fields: Sequence[dict[str, Any]]) -> None:
        """What became of it."""
        now = self.loop.time()
        self.events += [Event(now, proc, op, type, call, **each) for each in fields]


class WrongAnswer(AssertionError):
    """An answer that no client may get."""


@dataclass
class Client:
    """A client that takes one step after the other. `stopping`: it begins nothing new. `settling`: it gives back
    nothing. One that is a source has an answer to all that it began before others may stop."""

    is_source: ClassVar[bool] = False
    name: str
    network: Network
    story: Story
    seed: int
    urls: Sequence[str]
    pause_s: float
    stopping: bool = False
    settling: bool = False
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
        await asyncio.sleep(min(self.rng.expovariate(1 / self.pause_s), SETTLING_S if self.settling else RESTS_S))

    async def ask(
        self,
        method: str,
        path: str,
        content: str | bytes = "",
        headers: dict[str, str] | None = None,
        allowed: Sequence[int] = (),
        topic: str = TOPIC,
    ) -> Any:
        """An answer's JSON, none of an `allowed` status; None for what may have happened or not. Raises Refused if
        nothing has."""
        found = await self.answer(method, f"/v1/topics/{topic}{path}", content, headers)
        if found and found.status in allowed:
            return {}
        if found is None or found.status >= 500:
            if found and found.status != 503:
                raise WrongAnswer(f"{method} {path}: {found.status} {found.body[:500]!r}")
            await asyncio.sleep(0.1)
            return None
        if found.status >= 300:
            raise WrongAnswer(f"{method} {path}: {found.status} {found.body[:500]!r}")
        return json.loads(found.body)

    async def answer(
        self, method: str, path: str, content: str | bytes = "", headers: dict[str, str] | None = None
    ) -> Relayed | None:
        """An answer as it is, of any broker; None for none. Raises Refused."""
        body = content.encode() if isinstance(content, str) else content
        request = Request(method, path, {"Content-Type": JSON, **(headers or {})}, body, TIMEOUT_S)
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
    """Messages 0, 1, 2, … in batches, as JSON, lines or Arrow; an idempotent one repeats a request until it is
    answered."""

    is_source: ClassVar[bool] = True
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
        kind, content = self._body(first, messages)
        try:
            found = await self.ask("POST", "/messages?ids=true", content, {**headers, "Content-Type": kind})
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

    def _body(self, first: int, messages: Sequence[Message]) -> tuple[str, str | bytes]:
        """The same for each try of a batch."""
        if len(messages) == 1:
            return JSON, json.dumps(messages[0])
        if first % 2:
            return NDJSON, "\n".join(map(json.dumps, messages))
        keys, values = [m.get("key") for m in messages], [json.dumps(m["value"]) for m in messages]
        rows = pa.table({"_key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return ARROW, sink.getvalue().to_pybytes()


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
    """Splits, merges, moves and rolls segments, by hand."""

    topic: str = TOPIC

    async def step(self) -> None:
        await self.rest()
        try:
            found = await self.ask("GET", "/segments", topic=self.topic, allowed=(404,))
            if not found:
                return
            open_ones = [one for one in found["segments"] if one["state"] == "open"]
            one = self.rng.choice(open_ones)
            act, body = self.rng.choice(["split", "split", "merge", "merge", "move", "move", "roll"]), dict[str, Any]()
            beside = [other for other in open_ones if other["low"] == one["high"] + 1]
            if (act == "split" and len(open_ones) > 8) or (act == "merge" and not beside):
                return
            if act == "merge":
                body = {"with": beside[0]["id"]}
            elif act == "move":
                owners = sorted({other["owner"] for other in open_ones if other.get("owner")})
                body = {"to": self.rng.choice(owners)} if owners else {}
            await self.answer("POST", f"/v1/topics/{self.topic}/segments/{one['id']}/{act}", json.dumps(body))
        except Refused:
            return
