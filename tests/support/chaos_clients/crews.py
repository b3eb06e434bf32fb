"""Consumers as teams of workers are: they pull under names of leases, which they repeat until they are answered; they
ack, nack, reject, and go away.

A crew is a thread that plays any number of consumers, one after the other: some are killed, with what they hold and
with a pull under way, and others come in their place; some pause beyond their deadline, and ack then.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.chaos_clients.roaming import Roaming
from tests.support.history.history import digest
from tests.support.history.terms import Terms

ENDED = 410
PAUSE_S = (0.5, 5.0)
PAUSED, KILLED, NACKED, FORGOTTEN, BY_LEASE = 0.02, 0.01, 0.02, 0.05, 0.3
AGAIN_S = 0.1
DELAY_S = 1.0
POISON, HOPELESS, FLAKY = 101, 211, 29  # one in so many messages of a publisher
MOST_ATTEMPTS = 5


def failing(name: str, mode: str, ack_deadline_s: int = 2) -> Terms:
    """The terms of a subscription whose messages may die."""
    return Terms(mode, ack_deadline_s, DELAY_S, MOST_ATTEMPTS, f"dead-{name}")


@dataclass
class Consumer:
    """One of them: its pull under way, if there is any, and what it holds."""

    name: str
    call: int = 0
    lease: str = ""
    held: list[dict[str, Any]] = field(default_factory=list)
    wakes_s: float = 0.0


class Crew(Roaming):
    """`size` consumers of `subscription`. Once it is `settling`, they ack all but poison."""

    subscription = ""
    size = 4
    dies = True  # its subscription has a topic for dead letters
    leaves = 0.0  # how likely one that has nothing goes after a step, and another one comes
    settling = False

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._made = 0
        self.consumers = [self._new() for _ in range(self.size)]

    def step(self) -> None:
        ready = self._ready()
        if not ready:
            self.stopped.wait(0.02)
            return
        at = self.rng.choice(ready)
        consumer = self.consumers[at]
        if consumer.held:
            self._answer(consumer)
        else:
            self._pull(consumer)
        if self.settling:
            return
        if self.rng.random() < KILLED:
            self._kill(at)
        elif self.leaves and not consumer.held and not consumer.call and self.rng.random() < self.leaves:
            self.consumers[at] = self._new()

    def _ready(self) -> list[int]:
        """Once it is settling, those that hold messages come first: the turns of fifty consumers in one thread take
        longer than the deadline, and what nobody acks in time keeps its lag for ever, whatever brokers do."""
        if self.settling:
            return [at for at, one in enumerate(self.consumers) if one.held] or [*range(self.size)]
        now_s = time.monotonic()
        return [at for at, one in enumerate(self.consumers) if one.wakes_s <= now_s]

    def _new(self) -> Consumer:
        self._made += 1
        return Consumer(f"{self.name}.{self._made}")

    def _kill(self, at: int) -> None:
        dead = self.consumers[at]
        if dead.call:
            self.history.told(dead.name, "deliver", "info", dead.call, [self._asked(0.0)])
        self.consumers[at] = self._new()

    def _asked(self, wait_s: float) -> dict[str, Any]:
        return {"subscription": self.subscription, "wait_s": wait_s}

    def _pull(self, one: Consumer) -> None:
        wait_s = self.rng.choice([0.0, 0.0, 0.1])
        if not one.call:
            one.call = self.history.invoke(one.name, "deliver", [self._asked(wait_s)])
            one.lease = f"{self.rng.getrandbits(64):016x}"
        most = 500 if self.settling else self.rng.choice([1, 10, 100])
        body = {"max_messages": most, "wait_s": wait_s, "consumer": one.name, "lease": one.lease}
        sent_s = time.monotonic()
        answer = self._said("pull", body)
        if answer is None:
            one.wakes_s = time.monotonic() + AGAIN_S
        elif answer.status_code == ENDED:
            self.history.told(one.name, "deliver", "info", one.call, [self._asked(wait_s)])
            one.call = 0
        else:
            asked = {**self._asked(wait_s), "took_s": time.monotonic() - sent_s}
            self._got(one, answer.json()["messages"], asked)

    def _got(self, one: Consumer, messages: list[dict[str, Any]], asked: dict[str, Any]) -> None:
        call, one.call = one.call, 0
        now_s = time.monotonic()
        if not messages:
            self.history.told(one.name, "wait", "ok", call, [asked])
            one.wakes_s = now_s + 2 * AGAIN_S * self.rng.random()
            return
        lines = [
            {**self._line(m["id"]), "hash": digest(m["key"], m["value"]), "attempt": m["attempt"]} for m in messages
        ]
        self.history.told(one.name, "deliver", "ok", call, lines)
        one.held = messages
        if self.rng.random() < PAUSED:
            one.wakes_s = now_s + self.rng.uniform(*PAUSE_S)

    def _answer(self, one: Consumer) -> None:
        messages, one.held = one.held, []
        kinds: dict[str, list[str]] = {"ack": [], "nack": [], "reject": [], "forget": []}
        for message in messages:
            kinds[self._kind(message)].append(message["id"])
        for kind in self.rng.sample(["ack", "nack", "reject"], 3):
            if kinds[kind]:
                whole = kind == "ack" and len(kinds["ack"]) == len(messages) and self.rng.random() < BY_LEASE
                self._tell(one, kind, kinds[kind], whole=whole)

    def _kind(self, message: dict[str, Any]) -> str:
        n = message["value"]["n"]
        if self.dies and n % POISON == 7:
            return "reject"
        if self.settling:
            return "ack"
        if (self.dies and n % HOPELESS == 5) or (n % FLAKY == 3 and message["attempt"] == 1):
            return "nack"
        if self.rng.random() < NACKED / 10:
            return "nack"
        return "forget" if self.rng.random() < FORGOTTEN / 100 else "ack"

    def _tell(self, one: Consumer, kind: str, ids: list[str], *, whole: bool) -> None:
        lines = {id: self._line(id) for id in ids}
        call = self.history.invoke(one.name, kind, [*lines.values()])  # type: ignore[arg-type]
        answer = self._said("ack" if kind == "ack" else "nack", self._body(one, kind, ids, whole=whole))
        if answer is None:
            return
        found = answer.json()
        # What has ended may be done: a broker asks the next dispatcher once one is gone. Of a whole, nobody says which.
        if answer.status_code == ENDED or (whole and found["acked"] < len(ids)):
            self.history.told(one.name, kind, "info", call, [*lines.values()])  # type: ignore[arg-type]
        else:
            unknown = set(found["unknown"])
            done = [line for id, line in lines.items() if id not in unknown]
            assert found["acked" if kind == "ack" else "nacked"] == len(done), found
            self.history.told(one.name, kind, "ok", call, done)  # type: ignore[arg-type]
            self.history.told(one.name, kind, "fail", call, [lines[id] for id in unknown])  # type: ignore[arg-type]

    def _body(self, one: Consumer, kind: str, ids: list[str], *, whole: bool) -> dict[str, Any]:
        if whole:
            return {"lease": one.lease}
        by = self.rng.choice([{}, {"consumer": one.name}, {"lease": one.lease}])
        if kind == "reject":
            return {"ids": ids, "reject": True, "reason": "poison", **by}
        return {"ids": ids, **({"delay_s": DELAY_S * self.rng.random()} if kind == "nack" else {}), **by}

    def _said(self, what: str, body: dict[str, Any]) -> httpx.Response | None:
        if self.failed:
            self.roam()
        try:
            return self.ask("POST", f"/subscriptions/{self.subscription}/{what}", allowed=(ENDED,), json=body)
        except httpx.ConnectError:
            return None

    def _line(self, id: str) -> dict[str, Any]:
        segment, offset = map(int, id.split("-"))
        return {"segment": segment, "offset": offset, "subscription": self.subscription}


class OrderedCrew(Crew):
    """Shares segments out."""

    subscription = "o"


class KeyedCrew(Crew):
    """Shares keys out."""

    subscription = "k"


class SharedCrew(Crew):
    """Has no order."""

    subscription = "m"


class Crowd(Crew):
    """Fifty, of whom one in a hundred is another one after each step."""

    subscription = "c"
    size = 50


class Passers(Crew):
    """Twenty in order, of whom most go as soon as they have nothing: each pulls a few times at most."""

    subscription = "q"
    size = 20
    leaves = 0.5


class SoughtCrew(Crew):
    """Consumers of a subscription that is moved back now and then."""

    subscription = "z"
    size = 3
    dies = False


TERMS = {
    "o": failing("o", "ordered"),
    "k": failing("k", "keyed"),
    "m": failing("m", "shared"),
    "c": failing("c", "keyed"),
    "q": failing("q", "ordered"),
    "z": Terms("ordered", 2, DELAY_S),
}
