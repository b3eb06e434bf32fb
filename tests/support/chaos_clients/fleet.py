"""Clients of a cluster, that go to another broker where one fails, and write a history: they publish, pull and read.

They are those of `load`; what no broker may answer is noted as a violation, and they go on.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import httpx
from botocore.exceptions import HTTPClientError

from tests.support.chaos.store_read import StoreReader
from tests.support.chaos_clients import crews, listeners
from tests.support.chaos_clients.consumers import DEADLINE_S, HOLES, Holey, HoleyObserver, Leaver, settle
from tests.support.chaos_clients.crews import Crowd, KeyedCrew, OrderedCrew, Passers, SharedCrew, SoughtCrew
from tests.support.chaos_clients.listeners import SocketListener, SseListener
from tests.support.chaos_clients.python_client import SUBSCRIPTION as PYTHON_CLIENT
from tests.support.chaos_clients.python_client import PythonObserver, PythonProducer, PythonSubscriber, PythonWorker
from tests.support.chaos_clients.roaming import Roaming
from tests.support.chaos_clients.seeker import Seeker
from tests.support.chaos_clients.self_checking import Deletions, Imports, Payloads, SelfChecking
from tests.support.history.checker import Violation
from tests.support.history.following import Follower
from tests.support.history.history import History, digest
from tests.support.history.load import Client, Load, Observer, Publisher, Subscriber, subscribe
from tests.support.history.terms import Terms

LIST_S = 2.0
LOOK_S = 0.3
BACKLOG = 4000  # of a subscription: beyond it publishers wait, so that the lag can go in the time that it has
BACKLOG_S = 0.5
TERMS: Mapping[str, Terms] = {
    HOLES: Terms(ack_deadline_s=DEADLINE_S),
    PYTHON_CLIENT: Terms(ack_deadline_s=5),
    PythonWorker.subscription: crews.failing(PythonWorker.subscription, "keyed", 3),
    listeners.SUBSCRIPTION: listeners.TERMS,
    **crews.TERMS,
}
"""Of the subscriptions of the clients beside the usual ones."""
SUBSCRIBED: Mapping[str, str] = {
    "holes": HOLES,
    "leaver": HOLES,
    "python-client": PYTHON_CLIENT,
    "streams": listeners.SUBSCRIPTION,
    "work": PythonWorker.subscription,
    "ordered": "o",
    "keyed": "k",
    "shared": "m",
    "crowd": "c",
    "passers": "q",
    "seek": "z",
}


class Watcher(Roaming, Observer):
    """Looks at a subscription, less often."""

    def __init__(self, subscription: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.subscription = subscription

    def step(self) -> None:
        super().step()
        self.stopped.wait(LOOK_S)


OTHERS: Mapping[str, Sequence[Callable[[str, Sequence[str], History, int], Client]]] = {
    "holes": (Holey, Holey, HoleyObserver),
    "leaver": (Holey, HoleyObserver, Leaver),
    "python-client": (PythonProducer, PythonSubscriber, PythonObserver),
    "work": (PythonWorker, partial(Watcher, PythonWorker.subscription)),
    "payloads": (Payloads,),
    "imports": (Imports,),
    "deletions": (Deletions,),
    "ordered": (OrderedCrew, partial(Watcher, "o")),
    "keyed": (KeyedCrew, partial(Watcher, "k")),
    "shared": (SharedCrew, partial(Watcher, "m")),
    "crowd": (Crowd, partial(Watcher, "c")),
    "passers": (Passers, partial(Watcher, "q")),
    "seek": (SoughtCrew, Seeker, partial(Watcher, "z")),
    "streams": (SseListener, SocketListener, SseListener, partial(Watcher, "e")),
}


class RoamingPublisher(Roaming, Publisher):
    """A Publisher at any broker, that waits where a subscription is far behind."""

    backlog: Callable[[], int] = staticmethod(lambda: 0)

    def step(self) -> None:
        super().step()
        if self.backlog() > BACKLOG:
            self.stopped.wait(BACKLOG_S)


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


def subscriptions_of(others: Sequence[str]) -> dict[str, Terms]:
    """The subscriptions that those clients have."""
    return {name: TERMS[name] for name in sorted({SUBSCRIBED[each] for each in others if each in SUBSCRIBED})}


def subscribe_all(url: str, others: Sequence[str]) -> None:
    """Create the subscriptions that those clients have."""
    for name, terms in subscriptions_of(others).items():
        subscribe(url, name, **terms.settings)


class Fleet(Load):
    """Idempotent and plain publishers, two subscribers, a reader, a follower and an observer, each at any of the
    brokers `urls`; with `others`, of OTHERS, the clients of those names too."""

    def __init__(
        self, urls: Sequence[str], history: History, seed: int, each: int = 2, others: Sequence[str] = ()
    ) -> None:
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
        self.others: list[Client] = [
            kind(f"{name}-{n}", urls, history, next(seeds)) for name in others for n, kind in enumerate(OTHERS[name])
        ]
        main = [*self.publishers, *self.subscribers, self.observer, self.reader, self.follower]
        self.clients = [*main, *self.others]
        for publisher in self.publishers:
            publisher.backlog = self.backlog

    @property
    def observers(self) -> list[Observer]:
        """One for each subscription."""
        return [self.observer, *(each for each in self.others if isinstance(each, Observer))]

    @property
    def sources(self) -> list[Client]:
        """All that publish, or move subscriptions."""
        return [*self.publishers, *(each for each in self.others if isinstance(each, Leaver | PythonProducer | Seeker))]

    @property
    def strange(self) -> list[Violation]:
        """What no broker may answer, what clients found to be wrong, and what they died of."""
        dead = [Violation("client", f"{c.name} died of {c.error!r}") for c in self.clients if c.error]
        return [*dead, *(v for c in self.clients if isinstance(c, Roaming | SelfChecking) for v in c.strange)]

    def settle_down(self) -> None:
        """From now on consumers ack all that they get, and nobody publishes to the topic any more."""
        settle(self.others)
        for each in self.sources:
            each.stopped.set()

    def lag(self) -> int:
        """The subscriptions', as they were last seen; -1 where nobody looked since `forget_lag`."""
        lags = [each.lag for each in self.observers]
        return -1 if min(lags) < 0 else sum(lags)

    def backlog(self) -> int:
        """The lag of the subscription that is furthest behind, as it was last seen."""
        return max(each.lag for each in self.observers)

    def forget_lag(self) -> None:
        """From now on the lag is unknown, until somebody looks."""
        for each in self.observers:
            each.lag = -1

    def look_at_last(self) -> None:
        """Once all is healed: what clients know must be there is. What cannot be asked is a violation, too."""
        for each in self.others:
            if isinstance(each, SelfChecking):
                each.look()
