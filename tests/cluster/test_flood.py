"""A flood comes to three brokers, and goes: the topic makes room by itself, and folds up again. No publisher sees an
error; subscribers and readers that follow segments get every message once, each key's in order."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.history.checker import check
from tests.support.history.final_read import flush, in_files, over_http, segments
from tests.support.history.following import Follower
from tests.support.history.history import History
from tests.support.history.judged import Run
from tests.support.history.load import Load, Message, Observer, Publisher, Subscriber, create, message, until
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.together import started

pytestmark = pytest.mark.process

POLICY = {"target_messages_per_s": 30, "max_segments": 8, "cool_down_s": 3}
TRICKLE_PER_S, TIMES = 20.0, 20
LEAD_S, FLOOD_S = 4.0, 4.0  # the trickle before the flood, and the flood after the first split
WITHIN_S, LEASE_S = 120.0, 10.0  # whatever else the machine does, nobody loses a lease
KEYS = 64


class Pace:
    """How many messages a second each publisher sends."""

    per_s = TRICKLE_PER_S


class PacedPublisher(Publisher):
    """A Publisher of many keys that keeps a pace, and does not make up for what it was late."""

    def __init__(self, name: str, url: str, history: History, pace: Pace, *, idempotent: bool) -> None:
        super().__init__(name, url, history, 1, idempotent=idempotent)
        self._pace = pace

    def step(self) -> None:
        before = self.next
        super().step()
        self.stopped.wait((self.next - before) / self._pace.per_s)

    def _draw(self) -> list[Message]:
        drawn = [message(self.name, self.next + n, self.rng) for n in range(self.rng.choice([1, 1, 2, 5, 10]))]
        return [each | {"key": f"k{self.rng.randrange(KEYS)}"} if "key" in each else each for each in drawn]


class Flood(Load):
    """Publishers, subscribers and followers at each broker; every consumer is one of its own."""

    def __init__(self, urls: Sequence[str], history: History, pace: Pace) -> None:
        kinds = [("sure", urls[0]), ("plain", urls[1]), ("sure", urls[2]), ("plain", urls[0])]
        self.publishers = [
            PacedPublisher(f"{kind}-{n}", url, history, pace, idempotent=kind == "sure")
            for n, (kind, url) in enumerate(kinds)
        ]
        pace.per_s = TRICKLE_PER_S / len(kinds)
        self.subscribers = [Consumer(f"subscriber-{n}", url, history, n) for n, url in enumerate(urls[:2])]
        self.followers = [Follower(f"follower-{n}", url, history, n) for n, url in enumerate(urls[1:])]
        self.observer = Observer("observer", urls[1], history, 1)
        self.clients = [*self.publishers, *self.subscribers, *self.followers, self.observer]

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for it while all go on. Raises what one of them has died of."""

        def seen() -> bool:
            self.check()
            return happened()

        until(seen, WITHIN_S, what)

    def settle(self) -> None:
        """The publishers end, the subscription comes to its end, and so do those who follow."""
        for publisher in self.publishers:
            publisher.wait()
        self.observer.lag = -1
        self.until(lambda: self.observer.lag == 0, "the end of the subscription")
        sent = sum(publisher.next for publisher in self.publishers)
        self.until(lambda: all(len(each.rows) >= sent for each in self.followers), "the end of all segments")


class Consumer(Subscriber):
    """A Subscriber as a consumer of its own."""

    def ask(self, method: str, path: str, **more: Any) -> Any:
        return super().ask(method, path, **{**more, "json": {**more["json"], "consumer": self.name}})


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.jsonl") as history:
        yield history


@pytest.mark.long
def test_nobody_sees_more_of_a_flood_than_messages(
    broker_process: Callable[..., BrokerProcess], history: History
) -> None:
    with started(broker_process, LEASE_S) as brokers:
        first = brokers.urls[0]
        create(first, segments=1, scaling=POLICY)
        pace = Pace()
        with Flood(brokers.urls, history, pace) as flood:
            time.sleep(LEAD_S)
            assert len(segments(first)) == 1, "the trickle alone is no reason for a split"
            pace.per_s *= TIMES
            flood.until(lambda: any(len(one.successors) > 1 for one in segments(first).values()), "a split")
            time.sleep(FLOOD_S)
            pace.per_s /= TIMES
            flood.until(lambda: any(len(one.predecessors) > 1 for one in segments(first).values()), "a merge")
            flood.settle()
        flush(first)
        read, *others = (over_http(url) for url in brokers.urls)
        files, shown = in_files(brokers.process.store), segments(first)
    at_others = dict(zip(brokers.urls[1:], others, strict=True))
    assert check(Run(history.events, read, files, others=at_others, segments=shown)) == []
    assert {event.type for event in history.events if event.op == "publish"} == {"invoke", "ok"}
    for follower in flood.followers:
        assert sorted(follower.rows) == sorted(read)
