"""Listeners to the stream of a subscription, by server-sent events and by a WebSocket, that come and go: they reconnect
where they were, or somewhere before, or anew, and leave without a word.

Once they are settling they stay, with much in flight: what one of them holds as it leaves comes again behind its
deadline only, so a lag that they shall end would be their own."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from tests.support.chaos_clients.roaming import Roaming
from tests.support.history.checker import Violation
from tests.support.history.history import digest
from tests.support.history.load import TOPIC
from tests.support.history.terms import Terms

SUBSCRIPTION = "e"
TERMS = Terms("keyed", 3)
LIFE_S = (0.5, 8.0)
SILENT_S = 2.0  # after which it looks whether to go
GOES_ON, GOES_BACK, FORGOTTEN = 0.8, 0.3, 0.02
IN_FLIGHT = (1, 20, 500)
BATCH = 50
DIGITS = 10**18  # of an offset in the id of an event
ACKED = 0.2  # behind an event, what came by then


class Listener(Roaming):
    """One connection after the other. The history has each as a delivery, and a pull that was lost: nobody knows what
    was on its way at the end."""

    settling = False
    most = 0  # in flight

    def step(self) -> None:
        asked = {"subscription": SUBSCRIPTION}
        lost = self.history.invoke(self.name, "deliver", [asked])
        call = self.history.invoke(self.name, "deliver", [asked])
        self.listen(call, time.monotonic() + (math.inf if self.settling else self.rng.uniform(*LIFE_S)))
        self.history.told(self.name, "deliver", "info", lost, [asked])

    def listen(self, call: int, until_s: float) -> None:
        """A connection, until then or until it ends."""
        raise NotImplementedError

    @property
    def path(self) -> str:
        """The stream's, with its parameters."""
        self.most = max(IN_FLIGHT) if self.settling else self.rng.choice(IN_FLIGHT)
        asked = f"consumer={self.name}&max_in_flight={self.most}"
        return f"/v1/topics/{TOPIC}/subscriptions/{SUBSCRIPTION}/stream?{asked}"

    def came(self, call: int, message: dict[str, Any]) -> None:
        """Note a message."""
        line = {**_line(message["id"]), "hash": digest(message["key"], message["value"]), "attempt": message["attempt"]}
        self.history.told(self.name, "deliver", "ok", call, [line])

    def chosen(self, ids: list[str]) -> list[str]:
        """Those that are acked; the others come again."""
        return [id for id in ids if self.settling or self.rng.random() >= FORGOTTEN]

    def begin_acks(self, ids: list[str]) -> int:
        """Note that they are about to be acked."""
        return self.history.invoke(self.name, "ack", [_line(id) for id in ids])

    def end_acks(self, call: int, ids: list[str], answer: dict[str, Any]) -> None:
        """Note the answer."""
        unknown = set(answer["unknown"])
        self.history.told(self.name, "ack", "ok", call, [_line(id) for id in ids if id not in unknown])
        self.history.told(self.name, "ack", "fail", call, [_line(id) for id in ids if id in unknown])

    def wrong(self, text: str) -> None:
        """Note a violation."""
        self.strange.append(Violation("stream", f"{self.name}: {text}"))


class SseListener(Listener):
    """Reads events, and acks them by requests."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._seen: list[str] = []  # ids of events
        self._ids: list[str] = []  # of messages, not acked yet

    def listen(self, call: int, until_s: float) -> None:
        headers = {"Accept": "text/event-stream", "Seaweedq-Client": "chaos"}
        if self._seen and self.rng.random() < GOES_ON:
            headers["Last-Event-ID"] = self.rng.choice(self._seen) if self.rng.random() < GOES_BACK else self._seen[-1]
        self._seen, self._ids = [], []
        if self.failed:
            self.roam()
        try:
            with self.http.stream(
                "GET", self.path, headers=headers, timeout=httpx.Timeout(10, read=SILENT_S)
            ) as answer:
                if answer.status_code == 200:
                    self._read(call, answer.iter_lines(), until_s)
                elif answer.status_code != 503:
                    self.wrong(f"{answer.status_code} {answer.read()[:300]!r} to {headers}")
                self.failed = answer.status_code != 200 or self.failed
        except httpx.ReadTimeout:
            self._ack()
        except httpx.TransportError:
            self.fail()

    def _read(self, call: int, lines: Iterator[str], until_s: float) -> None:
        event, id = "", ""
        for line in lines:
            name, _, value = line.partition(": ")
            if name == "id":
                id = value
            elif name == "event":
                event = value
            elif name == "data" and not event:
                self.came(call, message := json.loads(value))
                self._note(id)  # not before: what it has not read is not behind it
                self._ids.append(message["id"])
                if divmod(int(self._seen[-1].rpartition(".")[2]), DIGITS) != (message["segment"], message["offset"]):
                    self.wrong(f"the event of {message['id']} is {self._seen[-1]}")
            if event == "bye":
                self.failed = True
                break
            if len(self._ids) >= min(self.most, BATCH) or (not line and self.rng.random() < ACKED):
                self._ack()
            if time.monotonic() > until_s or self.stopped.is_set():
                break

    def _note(self, id: str) -> None:
        lease, _, n = id.rpartition(".")
        before, _, m = (self._seen or [""])[-1].rpartition(".")
        if lease == before and int(m) >= int(n):
            self.wrong(f"event {id} came behind {self._seen[-1]}")
        self._seen.append(id)

    def _ack(self) -> None:
        ids, self._ids = self._ids, []
        if chosen := self.chosen(ids):
            call = self.begin_acks(chosen)
            try:
                answer = self.ask("POST", f"/subscriptions/{SUBSCRIPTION}/ack", json={"ids": chosen})
            except httpx.ConnectError:
                return
            if answer:
                self.end_acks(call, chosen, answer.json())


class SocketListener(Listener):
    """Reads frames, and acks by frames, whose answers come between them."""

    def listen(self, call: int, until_s: float) -> None:
        if self.failed:
            self.roam()
        there = urlsplit(str(self.http.base_url))
        try:
            with connect(f"ws://{there.netloc}{self.path}", proxy=None, open_timeout=5, close_timeout=1) as socket:
                self._talk(call, socket, until_s)
        except InvalidStatus as refused:
            if refused.response.status_code != 503:
                self.wrong(f"{refused.response.status_code} {refused.response.body!r}")
            self.fail()
        except (OSError, TimeoutError, WebSocketException, InvalidHandshake):
            self.fail()

    def _talk(self, call: int, socket: ClientConnection, until_s: float) -> None:
        acks: list[tuple[int, list[str]]] = []  # not answered yet
        while time.monotonic() < until_s and not self.stopped.is_set():
            try:
                frame = json.loads(socket.recv(timeout=SILENT_S))
            except TimeoutError:
                return
            if "bye" in frame:
                self.failed = True
                return
            if "messages" in frame:
                for message in frame["messages"]:
                    self.came(call, message)
                if chosen := self.chosen([message["id"] for message in frame["messages"]]):
                    acks.append((self.begin_acks(chosen), chosen))
                    socket.send(json.dumps({"ack": {"ids": chosen}}))
            elif not acks:
                self.wrong(f"nobody asked for {frame}")
            else:
                told, ids = acks.pop(0)
                if "acked" in frame:
                    self.end_acks(told, ids, frame)


def _line(id: str) -> dict[str, Any]:
    segment, offset = map(int, id.split("-"))
    return {"segment": segment, "offset": offset, "subscription": SUBSCRIPTION}
