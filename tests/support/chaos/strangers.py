"""Strangers, who have no credential and are slow, silent or many: what they do costs others nothing.

Each kind is a plan, a number of connections and what is sent on each, and one thread that keeps them as they are.
"""

import socket
import threading
from contextlib import suppress
from random import Random
from typing import NamedTuple

import httpx

from tests.support.chaos.cluster import READY_S, Cluster, Member, waited
from tests.support.chaos.fault import Begun
from tests.support.chaos.process_faults import any_one
from tests.support.history.load import TOPIC

DRIP_S = 0.2
FILES = 400  # of which connections may be 104
OVER = 300  # connections, more than these
CONNECT_S = 5.0


class Stranger(NamedTuple):
    """So many connections; what each sends first, and then again and again. None reads anything."""

    count: int
    first: bytes
    again: bytes


def _head(method: str, path: str, *lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "")).encode()


def slow_bodies(rng: Random) -> Stranger:
    """Publishes that announce a megabyte or more, and bring a byte now and then."""
    size = rng.choice((1, 4, 16)) << 20
    lines = ("Content-Type: application/json", f"Content-Length: {size}")
    return Stranger(rng.randrange(20, 80), _head("POST", f"/v1/topics/{TOPIC}/messages", *lines), b" ")


def unread_answers(rng: Random) -> Stranger:
    """Reads of large pages, many on a connection, whose answers nobody takes."""
    page = _head("GET", f"/v1/topics/{TOPIC}/segments/{rng.randrange(4)}/messages?offset=0&limit=10000")
    return Stranger(rng.randrange(10, 40), page * 12, b"")


def silent(rng: Random) -> Stranger:
    """Connections on which nothing, or half of a head, ever comes."""
    return Stranger(rng.randrange(100, 400), rng.choice((b"", b"GET / HTTP/1.1\r\nHo")), b"")


STRANGERS = {"slow bodies": slow_bodies, "unread answers": unread_answers, "silent connections": silent}


class Crowd(threading.Thread):
    """The connections of a stranger, until `stopped`; the broker may end any of them."""

    def __init__(self, port: int, wanted: Stranger) -> None:
        super().__init__(name="strangers", daemon=True)
        self.stopped = threading.Event()
        self._wanted = wanted
        self._sockets = [found for _ in range(wanted.count) if (found := self._connect(port))]

    def run(self) -> None:
        while not self.stopped.wait(DRIP_S):
            for each in self._sockets if self._wanted.again else ():
                with suppress(OSError):
                    each.send(self._wanted.again)

    def close(self) -> None:
        """All connections are gone after it."""
        self.stopped.set()
        self.join()
        for each in self._sockets:
            each.close()

    def _connect(self, port: int) -> socket.socket | None:
        try:
            found = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S)
        except OSError:
            return None
        found.setblocking(False)
        with suppress(OSError):
            found.send(self._wanted.first)
        return found


def strangers(kind: str, cluster: Cluster, rng: Random) -> Begun | None:
    """They are there for as long as it lasts."""
    found = any_one(cluster, rng)
    if not found:
        return None
    wanted = STRANGERS[kind](rng)
    crowd = _begun(found[0], wanted)
    return Begun(crowd.close, f"{found[0].name}, {wanted.count} connections")


def few_descriptors(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker may open few files, and more connections come than it may have: probes are answered all the same."""
    found = any_one(cluster, rng)
    if not found:
        return None
    member = found[0]
    member.kill()
    member.process.files = FILES
    member.revive()
    member.process.files = None
    if not waited(member.process.ready, READY_S):  # a slow store: it serves nothing yet, probes neither
        member.kill()
        member.revive()
        return None
    crowd = _begun(member, Stranger(OVER, b"", b""))
    answered = waited(lambda: _is_healthy(member) or not member.working, 2 * CONNECT_S)
    assert answered, f"{member.name} answers no probe"

    def undo() -> None:
        crowd.close()
        member.kill()
        member.revive()

    return Begun(undo, member.name)


def _is_healthy(member: Member) -> bool:
    try:
        return httpx.get(f"{member.process.url}/healthz", timeout=CONNECT_S, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _begun(member: Member, wanted: Stranger) -> Crowd:
    crowd = Crowd(member.process.port, wanted)
    crowd.start()
    return crowd
