"""Producers that go on whatever becomes of brokers: how many of their publishes failed, and how long they took."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from seaweedq import Client
from seaweedq.errors import SeaweedqError

PAUSE_S, SLOW_S = 0.02, 0.5
Kind = Literal["plain", "idempotent"]


class Slow(NamedTuple):
    """A publish that took over SLOW_S, or failed. It began at `at_s`, in Unix seconds."""

    at_s: float
    took_s: float
    text: str
    has_failed: bool


class Load:
    """A thread for each (kind, URLs), each with one message under way at a time, with the keys given in turn.

    `plain` is `Client.publish`, once; `idempotent` is a producer of the Python client.
    """

    def __init__(self, topic: str, keys: Sequence[str], producers: Sequence[tuple[Kind, Sequence[str]]]) -> None:
        self.errors: Counter[Kind] = Counter()
        self.said: list[str] = []
        self.slow: list[Slow] = []
        self.took_s: dict[Kind, list[float]] = {kind: [] for kind, _ in producers}
        self._topic, self._keys = topic, keys
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n, *one)) for n, one in enumerate(producers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def worst_s(self, kind: Kind) -> float:
        """The longest that one took, failed ones too."""
        return max(self.took_s[kind], default=0.0)

    def _run(self, number: int, kind: Kind, urls: Sequence[str]) -> None:
        with ExitStack() as stack:
            client = stack.enter_context(Client(urls))
            send = self._sender(client, kind, stack)
            at = number * 7919  # so that not all begin with the same key
            while not self._stopped.is_set():
                at_s, began, said = time.time(), time.perf_counter(), ""
                try:
                    send(self._keys[at % len(self._keys)])
                except SeaweedqError as error:
                    self.errors[kind] += 1
                    self.said.append(said := f"{kind}: {error}")
                took_s = time.perf_counter() - began
                self.took_s[kind].append(took_s)
                if said or took_s > SLOW_S:
                    text = f"{kind}, first at {urls[0]}, took {took_s:.2f} s. {said}"
                    self.slow.append(Slow(at_s, took_s, text, bool(said)))
                at += 1
                self._stopped.wait(PAUSE_S)

    def _sender(self, client: Client, kind: Kind, stack: ExitStack) -> Callable[[str], Any]:
        if kind == "plain":
            return lambda key: client.publish(self._topic, {"key": key, "value": {"n": 1}})
        producer = stack.enter_context(client.producer(self._topic, linger_ms=0))
        return lambda key: producer.send({"n": 1}, key=key).result()
