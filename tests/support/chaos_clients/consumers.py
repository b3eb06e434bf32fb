"""Consumers that are hard to serve: slower than their deadline, with holes in what they ack; and clients that go away
amid a request. They have a subscription of their own, so that their lost pulls excuse nothing elsewhere."""

import json
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.chaos_clients.roaming import Roaming
from tests.support.history.history import LEAVES, digest
from tests.support.history.load import TOPIC, Observer, Subscriber, message

HOLES = "h"
DEADLINE_S = 2
SLOW_S = 3.0
PART_SLOW = 0.1


class Holey(Roaming, Subscriber):
    """Acks a random half of what it got; now and then long after the deadline. Once it is `settling`, it acks all."""

    subscription = HOLES
    settling = False

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response | None:
        return super().ask(method, path, **{**more, "json": {**more["json"], "consumer": self.name}})

    def chosen(self, ids: list[str]) -> list[str]:
        if self.settling:
            return ids
        if self.rng.random() < PART_SLOW:
            self.stopped.wait(SLOW_S)
        return self.rng.sample(ids, len(ids) // 2)


class HoleyObserver(Roaming, Observer):
    """Looks at their cursors."""

    subscription = HOLES


class Leaver(Roaming):
    """Goes away amid a publish, before its answer, or amid a pull, by a reset."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._next = 0

    def step(self) -> None:
        if self.rng.random() < 0.7:
            self._publish()
        else:
            self._pull()
        self.stopped.wait(self.rng.uniform(0.1, 0.5))

    def _publish(self) -> None:
        one = message(self.name, self._next, self.rng)
        line = {"key": one.get("key"), "producer": self.name, "seq": self._next, "note": LEAVES}
        line["hash"] = digest(one.get("key"), one["value"])
        self._next += 1
        call = self.history.invoke(self.name, "publish", [line])
        sent, whole = self._leave(f"/v1/topics/{TOPIC}/messages", json.dumps(one).encode())
        self.history.told(self.name, "publish", "info" if sent == whole else "fail", call, [line])

    def _pull(self) -> None:
        asked = {"subscription": HOLES, "wait_s": 1.0}
        call = self.history.invoke(self.name, "deliver", [asked])
        body = json.dumps({"max_messages": 50, "wait_s": 1.0, "consumer": self.name}).encode()
        self._leave(f"/v1/topics/{TOPIC}/subscriptions/{HOLES}/pull", body)
        self.history.told(self.name, "deliver", "info", call, [asked])

    def _leave(self, path: str, body: bytes) -> tuple[int, int]:
        """Send a request, or a part of it, and go after a moment: how much was sent, and how much it is."""
        broker = urlsplit(self.rng.choice(self.urls))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        raw = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        part = raw[: self.rng.choice([len(raw), len(raw), self.rng.randrange(1, len(raw))])]
        with suppress(OSError), socket.create_connection((broker.hostname, broker.port or 0), timeout=5) as there:
            there.sendall(part)
            self.stopped.wait(self.rng.choice([0.0, 0.01, 0.1, 0.5]))
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return len(part), len(raw)


def settle(clients: Sequence[object]) -> None:
    """From now on all is acked."""
    for client in clients:
        if hasattr(client, "settling"):
            client.settling = True
