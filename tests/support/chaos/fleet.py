"""Clients of a cluster, that go to another broker where one fails, and write a history: they publish, pull and read.

They are those of `load`; what no broker may answer is noted as a violation, and they go on.
"""

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import httpx
from botocore.exceptions import HTTPClientError

from tests.support.chaos.store_read import StoreReader
from tests.support.history.checker import Violation
from tests.support.history.following import Follower
from tests.support.history.history import History, Op, Type, digest
from tests.support.history.load import TOPIC, Client, Load, Observer, Publisher, Subscriber

AWAY_S = 0.1  # before another broker is asked
LIST_S = 2.0
WANDER = 0.02  # the part of calls before which a client goes to any broker
SHOWN = 300


class Signed:
    """A history whose lines say which broker was asked; its client goes to another one between two calls only."""

    def __init__(self, history: History, client: "Roaming") -> None:
        self._history = history
        self._client = client

    def invoke(self, proc: str, op: Op, fields: Sequence[dict[str, Any]]) -> int:
        """As History.invoke."""
        if self._client.failed or self._client.rng.random() < WANDER:
            self._client.roam()
        return self._history.invoke(proc, op, self._signed(fields))

    def told(self, proc: str, op: Op, type: Type, call: int, fields: Sequence[dict[str, Any]]) -> None:
        """As History.told."""
        self._history.told(proc, op, type, call, self._signed(fields))

    def _signed(self, fields: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        broker = str(self._client.http.base_url.port)
        return [{**line, "broker": broker} for line in fields]


class Roaming(Client):
    """A client of several brokers, that leaves one which fails it, and others now and then."""

    def __init__(self, name: str, urls: Sequence[str], history: History, seed: int, **more: Any) -> None:
        super().__init__(name, urls[0], history, seed, **more)
        self.history = Signed(history, self)  # type: ignore[assignment]
        self.urls = urls
        self.strange: list[Violation] = []
        self.failed = True  # the broker that was asked last

    def roam(self) -> None:
        """Go to any broker."""
        self.failed = False
        self.http.base_url = httpx.URL(self.rng.choice(self.urls))

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        """As Client.ask; a strange answer is one that nobody knows the meaning of."""
        try:
            answer = self.http.request(method, f"/v1/topics/{TOPIC}{path}", **more)
        except httpx.TransportError as error:
            self.fail()
            if isinstance(error, httpx.ConnectError):
                raise
            return None
        if answer.status_code < 300:
            return answer
        if answer.status_code != 503:
            text = f"{answer.url}: {method} {answer.status_code} {answer.text[:SHOWN]}"
            self.strange.append(Violation("answer", text))
        self.fail()
        return None

    def fail(self) -> None:
        """Leave this broker, after a moment."""
        self.failed = True
        self.stopped.wait(AWAY_S)


class RoamingPublisher(Roaming, Publisher):
    """A Publisher at any broker."""


class RoamingObserver(Roaming, Observer):
    """An Observer at any broker."""


class RoamingSubscriber(Roaming, Subscriber):
    """A Subscriber at any broker, as a consumer of its own."""

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        return super().ask(method, path, **{**more, "json": {**more["json"], "consumer": self.name}})


class RoamingFollower(Roaming, Follower):
    """A Follower at any broker."""


class Reader(Roaming):
    """Reads all segments, each from where it stands; again and again one from the start, at any broker."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._next: dict[int, int] = {}

    def step(self) -> None:
        try:
            if not self._next:
                self.roam()
                answer = self.ask("GET", "/segments")
                self._next = {each["id"]: 0 for each in answer.json()["segments"]} if answer else {}
            for segment in list(self._next):
                self._read(segment)
        except httpx.ConnectError:
            return

    def _read(self, segment: int) -> None:
        start = self._next[segment] if self.rng.random() < 0.9 else 0
        call = self.history.invoke(self.name, "read", [{"segment": segment, "offset": start}])
        answer = self.ask("GET", f"/segments/{segment}/messages?offset={start}&limit=200&wait_s=0.2")
        if answer is None:
            return
        page = answer.json()
        lines = [
            {"segment": m["segment"], "offset": m["offset"], "hash": digest(m["key"], m["value"])}
            for m in page["messages"]
        ]
        self.history.told(self.name, "read", "ok", call, lines or [{"segment": segment, "offset": start}])
        self._next[segment] = max(self._next[segment], page["next_offset"])
        for successor in page["successors"]:
            self._next.setdefault(successor, 0)


class Lister(threading.Thread):
    """Looks at the files, again and again, as any reader of Parquet does."""

    def __init__(self, store: StoreReader, every_s: float = LIST_S) -> None:
        super().__init__(name="lister", daemon=True)
        self._every_s = every_s
        self.listings: list[Any] = []
        self.error: BaseException | None = None
        self._store = store
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.wait(self._every_s):
                with suppress(HTTPClientError):  # a busy server took too long: that is no listing
                    self.listings.append(self._store.listing())
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Stop it. Raises what it died of."""
        self._stopped.set()
        self.join()
        if self.error:
            raise self.error


class Fleet(Load):
    """Idempotent and plain publishers, two subscribers, a reader, a follower and an observer, each at any of the
    brokers `urls`."""

    def __init__(self, urls: Sequence[str], history: History, seed: int, each: int = 2) -> None:
        seeds = count(random.Random(seed).getrandbits(32))
        self.publishers = [
            RoamingPublisher(
                f"{'sure' if idempotent else 'plain'}-{n}", urls, history, next(seeds), idempotent=idempotent
            )
            for n in range(each)
            for idempotent in (True, False)
        ]
        self.subscribers = [RoamingSubscriber(f"subscriber-{n}", urls, history, next(seeds)) for n in range(2)]
        self.observer = RoamingObserver("observer", urls, history, next(seeds))
        self.reader = Reader("reader", urls, history, next(seeds))
        self.follower = RoamingFollower("follower", urls, history, next(seeds))
        self.clients = [*self.publishers, *self.subscribers, self.observer, self.reader, self.follower]

    @property
    def strange(self) -> list[Violation]:
        """What no broker may answer, and what the clients died of."""
        dead = [Violation("client", f"{c.name} died of {c.error!r}") for c in self.clients if c.error]
        return [*dead, *(v for c in self.clients if isinstance(c, Roaming) for v in c.strange)]

    def lag(self) -> int:
        """The subscription's, as it was last seen; -1 where nobody looked since `forget_lag`."""
        return self.observer.lag

    def forget_lag(self) -> None:
        """From now on the lag is unknown, until somebody looks."""
        self.observer.lag = -1
