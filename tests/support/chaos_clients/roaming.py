"""A client of several brokers, that goes to another where one fails, and writes which one was asked."""

from collections.abc import Collection, Sequence
from typing import Any

import httpx

from tests.support.history.checker import Violation
from tests.support.history.history import History, Op, Type
from tests.support.history.load import TOPIC, Client

AWAY_S = 0.1  # before another broker is asked
WANDER = 0.02  # the part of calls before which a client goes to any broker
SHOWN = 300
DAMAGE = "/problems/chain-damaged"
SAID = "damage"
"""The rule of an answer that says that something is damaged, as it must while the store lies about it."""


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

    def ask(self, method: str, path: str, *, allowed: Collection[int] = (), **more: Any) -> httpx.Response | None:
        """As Client.ask; a strange answer is one that nobody knows the meaning of, and that is not `allowed`."""
        try:
            answer = self.http.request(method, f"/v1/topics/{TOPIC}{path}", **more)
        except httpx.TransportError as error:
            self.fail()
            if isinstance(error, httpx.ConnectError):
                raise
            return None
        if answer.status_code < 300 or answer.status_code in allowed:
            return answer
        if answer.status_code != 503:
            text = f"{answer.url}: {method} {answer.status_code} {answer.text[:SHOWN]}"
            is_damage = answer.status_code == 500 and DAMAGE in answer.text
            self.strange.append(Violation(SAID if is_damage else "answer", text))
        self.fail()
        return None

    def fail(self) -> None:
        """Leave this broker, after a moment."""
        self.failed = True
        self.stopped.wait(AWAY_S)
