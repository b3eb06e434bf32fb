"""Consumers of a simulated world: a crew that pulls under leases and acks with holes, streams, and seeks.

They are those of `tests/support/chaos_clients` in the simulation's time. Once they settle, they ack all that they get,
but what has to die.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from seaweedq.broker.rpc.client import Request
from tests.simulation.clients import TOPIC, Client, WrongAnswer
from tests.simulation.network import Channel, Refused, Reset
from tests.support.history.history import Op, digest
from tests.support.history.terms import Terms

ENDED = 410
POISON, FLAKY = 41, 17  # one in so many messages of a publisher
DELAY_S = 1.0
IN_FLIGHT = (1, 20, 500)
SILENT_S = 2.0
STREAMED = Terms("keyed", 3)
SOUGHT = Terms("ordered", 2, DELAY_S)


def failing(mode: str) -> Terms:
    """The terms of a subscription whose messages may die."""
    return Terms(mode, 2, DELAY_S, 5, f"dead-{mode}")


@dataclass
class Subscribed(Client):
    """A client of a subscription; `path` is below that."""

    subscription: str = ""

    def line(self, id: str) -> dict[str, Any]:
        """A message in the history."""
        segment, offset = map(int, id.split("-"))
        return {"segment": segment, "offset": offset, "subscription": self.subscription}

    async def said(self, what: str, body: dict[str, Any]) -> Any:
        """An answer's JSON; None for none, and `{}` where the lease has ended."""
        path = f"/subscriptions/{self.subscription}/{what}"
        try:
            return await self.ask("POST", path, json.dumps(body), allowed=(ENDED,))
        except Refused:
            return None


@dataclass
class Consumer(Subscribed):
    """Pulls by a named lease, which it repeats until it is answered; acks, nacks, rejects, forgets, pauses, dies."""

    terms: Terms = field(default_factory=Terms)
    wait_s: float = 2.0
    lives: int = 0
    lease: str = ""
    call: int = 0  # of the pull under way
    held: list[dict[str, Any]] = field(default_factory=list)

    @property
    def consumer(self) -> str:
        """Its name in this life of its own."""
        return f"{self.name}.{self.lives}"

    async def step(self) -> None:
        if self.held:
            await self._answer()
        else:
            await self.rest()
            await self._pull()
        if not self.settling and self.rng.random() < 0.01:
            if self.call:
                self.story.told(self.consumer, "deliver", "info", self.call, [self._asked])
            self.lives, self.call, self.held = self.lives + 1, 0, []

    @property
    def _asked(self) -> dict[str, Any]:
        return {"subscription": self.subscription, "wait_s": self.wait_s}

    async def _pull(self) -> None:
        if not self.call:
            self.wait_s = self.rng.choice([0.0, 0.1, 2.0])
            self.call = self.story.invoke(self.consumer, "deliver", [self._asked])
            self.lease = f"{self.rng.getrandbits(64):016x}"
        most = 500 if self.settling else self.rng.choice([1, 10, 100])
        body = {"max_messages": most, "wait_s": self.wait_s, "consumer": self.consumer, "lease": self.lease}
        sent_s = self.story.loop.time()
        found = await self.said("pull", body)
        if found is None:
            return
        call, self.call = self.call, 0
        if not found:
            self.story.told(self.consumer, "deliver", "info", call, [self._asked])
        elif messages := found["messages"]:
            told = [
                {**self.line(m["id"]), "hash": digest(m["key"], m["value"]), "attempt": m["attempt"]} for m in messages
            ]
            self.story.told(self.consumer, "deliver", "ok", call, told)
            self.held = messages
            if not self.settling and self.rng.random() < 0.05:
                await asyncio.sleep(self.rng.uniform(0.5, 5.0))
        else:
            self.story.told(
                self.consumer, "wait", "ok", call, [{**self._asked, "took_s": self.story.loop.time() - sent_s}]
            )

    async def _answer(self) -> None:
        kinds: dict[Op, list[str]] = {"ack": [], "nack": [], "reject": []}
        for one in self.held:
            if kind := self._kind(one):
                kinds[kind].append(one["id"])
        whole = len(kinds["ack"]) == len(self.held) and self.rng.random() < 0.3
        self.held = []
        for kind, ids in kinds.items():
            if ids:
                await self._tell(kind, ids, whole)

    def _kind(self, one: dict[str, Any]) -> Op | None:
        n = one["value"]["n"]
        if self.terms.max_attempts and n % POISON == 7:
            return "reject"
        if self.settling:
            return "ack"
        if n % FLAKY == 3 and one["attempt"] == 1:
            return "nack"
        return None if self.rng.random() < 0.03 else "ack"

    async def _tell(self, kind: Op, ids: list[str], whole: bool) -> None:
        lines = {id: self.line(id) for id in ids}
        call = self.story.invoke(self.consumer, kind, [*lines.values()])
        body: dict[str, Any] = {"ids": ids, **self.rng.choice([{}, {"consumer": self.consumer}, {"lease": self.lease}])}
        if whole and kind == "ack":
            body = {"lease": self.lease}
        elif kind == "reject":
            body |= {"reject": True, "reason": "poison"}
        elif kind == "nack":
            body |= {"delay_s": DELAY_S * self.rng.random()}
        found = await self.said("ack" if kind == "ack" else "nack", body)
        if found is None:
            return
        # What has ended may be done: a broker asks the next dispatcher once one is gone. Of a whole, nobody says which.
        if not found or ("lease" in body and "ids" not in body and found["acked"] < len(ids)):
            self.story.told(self.consumer, kind, "info", call, [*lines.values()])
        else:
            unknown = set(found["unknown"])
            self.story.told(self.consumer, kind, "ok", call, [line for id, line in lines.items() if id not in unknown])
            self.story.told(self.consumer, kind, "fail", call, [lines[id] for id in found["unknown"]])


@dataclass
class Seeker(Subscribed):
    """Moves one segment of a subscription back at a time, by a seek with an id, repeated until it is answered."""

    is_source: ClassVar[bool] = True
    call: int = 0
    wanted: dict[str, Any] = field(default_factory=dict)
    moved: dict[str, Any] = field(default_factory=dict)
    stood: int = 0  # where that segment was acked to, when it was chosen

    def finished(self) -> bool:
        return self.stopping and not self.call

    async def step(self) -> None:
        if not self.call:
            await self.rest()
            await self._choose()
        if self.call and (found := await self.said("seek", self.wanted)):
            ends = {one["segment"]: one["from"] for one in found.get("segments") or ()}  # of the first answer alone
            told = {**self.moved, "acked_to": ends.get(self.moved["segment"], self.stood)}
            self.story.told(self.name, "seek", "ok", self.call, [told])
            self.call = 0

    async def _choose(self) -> None:
        try:
            found = await self.ask("GET", f"/subscriptions/{self.subscription}")
        except Refused:
            return
        lag = [one for one in found["lag"] if one["acked_to"]] if found else []
        if lag and not self.stopping:
            at = self.rng.choice(lag)
            self.stood = at["acked_to"]
            to = max(self.stood - self.rng.choice([1, 20, 200]), 0)
            self.moved = {"segment": at["segment"], "offset": to, "subscription": self.subscription}
            self.call = self.story.invoke(self.name, "seek", [self.moved])
            self.wanted = {"to": {"offsets": {str(at["segment"]): to}}, "id": f"{self.rng.getrandbits(64):016x}"}


@dataclass
class Listener(Subscribed):
    """Listens to the stream of a subscription, by events or by a WebSocket, and acks; comes, goes, and goes on where it
    was, or before. A connection is a delivery in the history, and a pull that was lost."""

    is_socket: bool = False
    seen: list[str] = field(default_factory=list)  # ids of events
    waiting: list[tuple[int, list[str]]] = field(default_factory=list)  # acks by frames

    async def step(self) -> None:
        await self.rest()
        asked = {"subscription": self.subscription}
        lost = self.story.invoke(self.name, "deliver", [asked])
        call = self.story.invoke(self.name, "deliver", [asked])
        most = max(IN_FLIGHT) if self.settling else self.rng.choice(IN_FLIGHT)
        headers = {"Accept": "text/event-stream", "Seaweedq-Client": "simulation"}
        if self.seen and not self.is_socket and self.rng.random() < 0.8:
            headers["Last-Event-ID"] = self.rng.choice([self.rng.choice(self.seen), self.seen[-1]])
        self.seen, self.waiting = [], []
        path = f"/v1/topics/{TOPIC}/subscriptions/{self.subscription}/stream?consumer={self.name}&max_in_flight={most}"
        channel = await self.network.open(
            self.rng.choice(self.urls), Request("GET", path, headers, b"", 60), socket=self.is_socket
        )
        try:
            await self._listen(channel, call, self.rng.uniform(0.5, 8.0))
        except (Refused, Reset):
            await asyncio.sleep(0.1)
        finally:
            channel.leave()
            self.story.told(self.name, "deliver", "info", lost, [asked])

    async def _listen(self, channel: Channel, call: int, for_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        text = ""
        while (loop.time() < until_s or self.settling) and not self.stopping:
            try:
                part = await channel.read(SILENT_S)
            except TimeoutError:
                continue
            if part["type"] == "http.response.start" and part["status"] not in (200, 503):
                raise WrongAnswer(f"{self.name}: {part}")
            if part["type"] == "websocket.send":
                await self._frame(channel, call, json.loads(part["text"]))
            elif part["type"] == "http.response.body":
                events = (text + part["body"].decode()).split("\n\n")
                text = events.pop()
                await self._events(call, events)
                if not part.get("more_body"):
                    return
            elif part["type"] in ("websocket.close", "websocket.http.response.start"):
                return

    async def _events(self, call: int, events: list[str]) -> None:
        ids: list[str] = []
        for event in events:
            fields = dict(line.partition(": ")[::2] for line in event.split("\n"))
            if "data" in fields and "event" not in fields:
                one = json.loads(fields["data"])
                self._came(call, one)
                self.seen.append(fields["id"])
                ids.append(one["id"])
        if ids := self._chosen(ids):
            told = self.story.invoke(self.name, "ack", [self.line(id) for id in ids])
            if found := await self.said("ack", {"ids": ids}):
                self._acked(told, ids, found)

    async def _frame(self, channel: Channel, call: int, frame: dict[str, Any]) -> None:
        if "messages" in frame:
            for one in frame["messages"]:
                self._came(call, one)
            if ids := self._chosen([one["id"] for one in frame["messages"]]):
                self.waiting.append((self.story.invoke(self.name, "ack", [self.line(id) for id in ids]), ids))
                channel.say(json.dumps({"ack": {"ids": ids}}))
        elif "acked" in frame:
            self._acked(*self.waiting.pop(0), frame)
        elif "error" in frame:
            self.waiting.pop(0)

    def _chosen(self, ids: list[str]) -> list[str]:
        return [id for id in ids if self.settling or self.rng.random() > 0.03]

    def _came(self, call: int, one: dict[str, Any]) -> None:
        told = {**self.line(one["id"]), "hash": digest(one["key"], one["value"]), "attempt": one["attempt"]}
        self.story.told(self.name, "deliver", "ok", call, [told])

    def _acked(self, call: int, ids: list[str], found: dict[str, Any]) -> None:
        unknown = set(found["unknown"])
        self.story.told(self.name, "ack", "ok", call, [self.line(id) for id in ids if id not in unknown])
        self.story.told(self.name, "ack", "fail", call, [self.line(id) for id in ids if id in unknown])


@dataclass
class Tail(Client):
    """Reads the topic's stream by events, goes on where it was, and sees that nothing of a segment is left out."""

    last: str = ""
    next: dict[int, int] = field(default_factory=dict)  # by segment, at `last`
    seen: dict[int, int] = field(default_factory=dict)
    above: list[str] = field(default_factory=list)  # positions behind the ends of their segments: of lost messages

    async def step(self) -> None:
        await self.rest()
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self.last} if self.last else {})
        request = Request("GET", f"/v1/topics/{TOPIC}/stream?start=earliest", headers, b"", 60)
        channel = await self.network.open(self.rng.choice(self.urls), request)
        self.seen, text, until_s = dict(self.next), "", self.rng.uniform(1.0, 20.0) + asyncio.get_running_loop().time()
        try:
            while asyncio.get_running_loop().time() < until_s and not self.stopping:
                part = await channel.read(20.0)
                if part["type"] == "http.response.start" and part["status"] == 416:
                    self.above.append(self.last)
                    self.last, self.next = "", {}
                    break
                if part["type"] == "http.response.start" and part["status"] not in (200, 503):
                    raise WrongAnswer(f"{self.name}: {part}")
                events = (text + part.get("body", b"").decode()).split("\n\n")
                text = events.pop()
                for event in events:
                    self._event(dict(line.partition(": ")[::2] for line in event.split("\n")))
        except (Refused, Reset, TimeoutError):
            await asyncio.sleep(0.1)
        finally:
            channel.leave()

    def _event(self, fields: dict[str, str]) -> None:
        if "data" in fields and "event" not in fields:
            one = json.loads(fields["data"])
            segment, offset = map(int, one["id"].split("-"))
            if offset != self.seen.get(segment, 0):
                raise WrongAnswer(f"{self.name}: {one['id']} came, and {self.seen.get(segment, 0)} was to come")
            self.seen[segment] = offset + 1
            call = self.story.invoke(self.name, "read", [{"segment": segment, "offset": offset}])
            told = {"segment": segment, "offset": offset, "hash": digest(one["key"], one["value"])}
            self.story.told(self.name, "read", "ok", call, [told])
        if "id" in fields:  # the positions behind all so far
            self.last, self.next = fields["id"], dict(self.seen)
