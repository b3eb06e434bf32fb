"""Clients that publish, pull and ack for as long as they are let, whatever becomes of the broker, and write a history.

Raw HTTP, so that no client library mends what the broker breaks: a publisher has one request in flight; an idempotent
one repeats it until it is answered, a plain one never does.
"""

import json
import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import httpx

from tests.support.history.history import History, digest

TOPIC = "t"
SUBSCRIPTION = "s"
PAUSE_S = 0.02
JSON, NDJSON = "application/json", "application/x-ndjson"

Message = dict[str, Any]


def message(producer: str, n: int, rng: random.Random) -> Message:
    """A value like no other; one in five has no key."""
    value = {"p": producer, "n": n, "x": f"{rng.getrandbits(64):016x}" * rng.choice([1, 20])}
    return {"value": value} if n % 5 == 4 else {"value": value, "key": f"k{rng.randrange(12)}"}


class Client(threading.Thread):
    """A thread that takes one step after the other until it is told to stop."""

    def __init__(self, name: str, url: str, history: History, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.rng = random.Random(f"{name} {seed}")
        self.http = httpx.Client(base_url=url, timeout=10, trust_env=False, verify=False)
        self.error: BaseException | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self.finished():
                self.step()
        except BaseException as error:
            self.error = error
        finally:
            self.http.close()

    def steps(self, count: int) -> None:
        """In place of the thread: so many steps, here, and no more."""
        try:
            for _ in range(count):
                self.step()
        finally:
            self.http.close()

    def finished(self) -> bool:
        """Whether to stop before the next step."""
        return self.stopped.is_set()

    @abstractmethod
    def step(self) -> None:
        """One request."""

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """An answer; None for what may have happened or not. A refused connection raises ConnectError."""
        try:
            answer = self.http.request(method, f"/v1/topics/{TOPIC}{path}", **more)
        except httpx.ConnectError:
            self.stopped.wait(PAUSE_S)
            raise
        except httpx.TransportError:
            return None
        if answer.status_code >= 500:
            assert answer.status_code == 503, answer.text
            self.stopped.wait(PAUSE_S)
            return None
        assert answer.status_code < 300, answer.text
        return answer

    def wait(self, within_s: float = 30) -> None:
        """Stop it. Raises what it died of."""
        self.stopped.set()
        self.join(within_s)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error:
            raise self.error


class Publisher(Client):
    """Messages 0, 1, 2, … in batches; `idempotent` repeats a request until it is answered."""

    def __init__(self, name: str, url: str, history: History, seed: int, *, idempotent: bool) -> None:
        super().__init__(name, url, history, seed)
        self.idempotent = idempotent
        self.next = 0
        self.given_up = False  # what waits may stay without an answer
        self._waiting: tuple[int, list[Message]] | None = None
        self._answered: tuple[int, list[Message]] | None = None

    def finished(self) -> bool:
        return self.stopped.is_set() and (self._waiting is None or self.given_up)

    def step(self) -> None:
        if self._waiting is None:
            if self.idempotent and self._answered and self.rng.random() < 0.1:
                self._publish(*self._answered)  # as if its answer had been lost
            self._waiting = self.next, self._draw()
            self.next += len(self._waiting[1])
        if answered := self._publish(*self._waiting):
            self._answered = self._waiting
        if answered or not self.idempotent:
            self._waiting = None
            self.stopped.wait(PAUSE_S * self.rng.random())

    def go_on(self, before: "Publisher") -> None:
        """Go on where another one has stopped; if idempotent, by repeating what it was answered last."""
        self.next, self._waiting, self._answered = before.next, before._waiting, before._answered
        if self.idempotent and self._answered:
            assert self._publish(*self._answered)

    def _draw(self) -> list[Message]:
        count = self.rng.choice([1, 1, 5, 20, 40])
        return [message(self.name, self.next + n, self.rng) for n in range(count)]

    def _publish(self, first: int, messages: Sequence[Message]) -> bool:
        lines = [
            {"key": m.get("key"), "producer": self.name, "seq": first + n, "hash": digest(m.get("key"), m["value"])}
            for n, m in enumerate(messages)
        ]
        call = self.history.invoke(self.name, "publish", lines)
        try:
            answer = self.ask("POST", "/messages", **self._request(first, messages))
        except httpx.ConnectError:
            self.history.told(self.name, "publish", "fail", call, lines)
            return False
        if answer is None:
            self.history.told(self.name, "publish", "info", call, lines)
            return False
        for line, id in zip(lines, answer.json()["ids"], strict=True):
            line["segment"], line["offset"] = map(int, id.split("-"))
        self.history.told(self.name, "publish", "ok", call, lines)
        return True

    def _request(self, first: int, messages: Sequence[Message]) -> dict[str, Any]:
        headers = {"Producer-Id": self.name, "Producer-Sequence": str(first)} if self.idempotent else {}
        if len(messages) == 1:
            return {"content": json.dumps(messages[0]), "headers": {**headers, "Content-Type": JSON}}
        text = "\n".join(map(json.dumps, messages))
        return {"content": text, "headers": {**headers, "Content-Type": NDJSON}}


class Subscriber(Client):
    """Pulls, and acks what it got; now and then it forgets one, which comes again after its deadline."""

    subscription = SUBSCRIPTION
    wait_s = 0.5

    def step(self) -> None:
        asked = {"subscription": self.subscription, "wait_s": self.wait_s}
        call = self.history.invoke(self.name, "deliver", [asked])
        try:
            found = self.ask("POST", f"{self._path}/pull", json={"max_messages": 500, "wait_s": self.wait_s})
            if found is None:
                self.history.told(self.name, "deliver", "info", call, [asked])
                return
            messages = found.json()["messages"]
            if not messages:
                self.history.told(self.name, "wait", "ok", call, [asked])
                return
            lines = [{**self._line(m["id"]), "hash": digest(m["key"], m["value"])} for m in messages]
            self.history.told(self.name, "deliver", "ok", call, lines)
        except httpx.ConnectError:
            self.history.told(self.name, "deliver", "fail", call, [asked])
            return
        if ids := self.chosen([m["id"] for m in messages]):
            with suppress(httpx.ConnectError):
                self._ack(ids)

    def chosen(self, ids: list[str]) -> list[str]:
        """The ids that are acked."""
        if self.rng.random() < 0.1:
            del ids[self.rng.randrange(len(ids))]
        return ids

    @property
    def _path(self) -> str:
        return f"/subscriptions/{self.subscription}"

    def _line(self, id: str) -> dict[str, Any]:
        segment, offset = map(int, id.split("-"))
        return {"segment": segment, "offset": offset, "subscription": self.subscription}

    def _ack(self, ids: Sequence[str]) -> None:
        lines = {id: self._line(id) for id in ids}
        call = self.history.invoke(self.name, "ack", [*lines.values()])
        answer = self.ask("POST", f"{self._path}/ack", json={"ids": ids})
        if answer:
            unknown = set(answer.json()["unknown"])
            acked = [line for id, line in lines.items() if id not in unknown]
            assert answer.json()["acked"] == len(acked)
            self.history.told(self.name, "ack", "ok", call, acked)
            self.history.told(self.name, "ack", "fail", call, [lines[id] for id in unknown])


class Observer(Client):
    """Looks at the cursors of a subscription, again and again."""

    subscription = SUBSCRIPTION
    lag = -1  # as it was last seen

    def step(self) -> None:
        call = self.history.invoke(self.name, "cursor", [{"subscription": self.subscription}])
        try:
            answer = self.ask("GET", f"/subscriptions/{self.subscription}")
        except httpx.ConnectError:
            return
        if answer:
            lag = answer.json()["lag"]
            lines = [
                {"segment": one["segment"], "acked_to": one["acked_to"], "subscription": self.subscription}
                for one in lag
            ]
            self.history.told(self.name, "cursor", "ok", call, lines)
            self.lag = sum(one["messages"] for one in lag)
        self.stopped.wait(2 * PAUSE_S)


class Load:
    """All of them at once: an idempotent and a plain publisher, a subscriber and an observer.

    With `before`, the publishers go on where those of another run have stopped.
    """

    def __init__(self, url: str, history: History, seed: int, before: "Load | None" = None) -> None:
        self.publishers = [
            Publisher("sure", url, history, seed, idempotent=True),
            Publisher("plain", url, history, seed, idempotent=False),
        ]
        self.subscriber = Subscriber("subscriber", url, history, seed)
        self.observer = Observer("observer", url, history, seed)
        for publisher, other in zip(self.publishers, before.publishers if before else (), strict=False):
            publisher.go_on(other)
        self.clients: list[Client] = [*self.publishers, self.subscriber, self.observer]

    def __enter__(self) -> "Load":
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind:
            self.give_up()
        with ExitStack() as stack:
            for client in self.clients:
                client.stopped.set()
                stack.callback(client.wait)

    def give_up(self) -> None:
        """Publishers no longer insist on an answer."""
        for publisher in self.publishers:
            publisher.given_up = True

    def check(self) -> None:
        """Raises what one has died of."""
        for client in self.clients:
            if client.error:
                raise client.error

    def settle(self) -> None:
        """The publishers end, and the subscriber gets and acks what is left."""
        for publisher in self.publishers:
            publisher.wait()
        self.observer.lag = -1
        until(self._done, what="the end of the subscription")
        self.check()

    def _done(self) -> bool:
        return self.observer.lag == 0 or any(client.error for client in self.clients)


def create(url: str, segments: int = 3, flush: dict[str, Any] | None = None, **more: Any) -> None:
    """The topic and its subscription."""
    topic = f"{url}/v1/topics/{TOPIC}"
    flush = flush or {"max_age_s": 1, "max_bytes": 65_536}
    with httpx.Client(timeout=30, trust_env=False, verify=False) as http:
        _good(http.put(topic, json={"initial_segments": segments, "flush": flush, **more}))
    subscribe(url, SUBSCRIPTION, ack_deadline_s=1)


def subscribe(url: str, name: str, **settings: Any) -> None:
    """A subscription to the topic, from its beginning on."""
    subscription = {"start": "earliest", **settings}
    with httpx.Client(timeout=30, trust_env=False, verify=False) as http:
        _good(http.put(f"{url}/v1/topics/{TOPIC}/subscriptions/{name}", json=subscription))


def until(happened: Callable[[], bool], within_s: float = 30, what: str = "it") -> None:
    """Wait for something that other processes do."""
    waiting = threading.Event()
    for _ in range(int(within_s / PAUSE_S)):
        if happened():
            return
        waiting.wait(PAUSE_S)
    raise AssertionError(f"{what} did not happen within {within_s} s")


def _good(answer: httpx.Response) -> None:
    assert answer.status_code < 300, answer.text
