"""The memory of a broker while strangers attack it, and after they have gone; others publish without error."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from socket import socket
from typing import NamedTuple

import httpx
import psutil
import pytest

from tests.support.http.asking import NDJSON
from tests.support.http.raw import connection, head
from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

MIB = 1 << 20
BUDGET, CACHE, BESIDE = 512 * MIB, 16 * MIB, 300 * MIB  # the first is the default
KEPT = 48 * MIB  # what the process's first requests take for good, and what the allocator may keep
LASTS_S, GONE_S, PAUSE_S = 2.0, 60.0, 0.05
OTHERS = 10  # publishes of somebody else, at least
SETTINGS = ("--memory-cache-bytes", str(CACHE))
PUBLISH, PAGE = "/v1/topics/t/messages", "/v1/topics/full/segments/0/messages?offset=0&limit=10000"


class Attack(NamedTuple):
    """So many connections; what each sends at first, and then again and again. None reads anything."""

    count: int
    first: bytes
    again: bytes = b""


def _body(size: int) -> bytes:
    return head("POST", PUBLISH, f"Content-Type: {NDJSON}", f"Content-Length: {size}")


TINY = b'{"value":1}\n' * (16 * MIB // 12 - 1) + b'{"v":1}\n'  # more than a request may have
ATTACKS = {
    "stated lengths": Attack(300, _body(16 * MIB)),
    "slow bodies": Attack(60, _body(16 * MIB) + bytes(512 * 1024), b" "),
    "tiny lines": Attack(2, _body(len(TINY)) + TINY),
    "unread answers": Attack(80, head("GET", PAGE)),
    "pipelined answers": Attack(40, 12 * head("GET", PAGE)),
    "many connections": Attack(1000, b"GET / HTTP/1.1\r\nHo"),
}


class Watch(threading.Thread):
    """The highest memory of a process, and what publishes of somebody else were answered."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__()
        assert broker.process
        self.peak = 0
        self.failed: list[str] = []
        self.taken = 0
        self._process = psutil.Process(broker.process.pid)
        self._url = broker.url
        self._ended = threading.Event()

    @property
    def now(self) -> int:
        """The process's memory."""
        return int(self._process.memory_info().rss)

    def run(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=30) as http:
            while not self._ended.wait(PAUSE_S):
                self.peak = max(self.peak, self.now)
                answer = http.post(PUBLISH, json={"value": "other"})
                if answer.status_code == 200:
                    self.taken += 1
                else:
                    self.failed.append(answer.text)

    def stop(self) -> None:
        """Returns once the last publish is answered."""
        self._ended.set()
        self.join()


@pytest.mark.parametrize(
    "attack",
    [later(attack) if n % 2 else soaked(attack) for n, attack in enumerate(ATTACKS.values())],
    ids=ATTACKS,
)
def test_memory_is_bounded_and_given_back(broker_process: Callable[..., BrokerProcess], attack: Attack) -> None:
    broker = broker_process(*SETTINGS, forks=False)
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=60) as http:
        _fill(http)
        watch = Watch(broker)
        before = watch.now
        watch.start()
        with _under(broker, attack):
            time.sleep(LASTS_S)
        end_s = time.monotonic() + GONE_S
        while (watch.now > before + CACHE + KEPT or watch.taken <= OTHERS) and time.monotonic() < end_s:
            time.sleep(0.2)
        watch.stop()
    after = watch.now
    assert not watch.failed
    assert watch.taken > OTHERS
    assert watch.peak < before + BUDGET + CACHE + BESIDE
    assert after < before + CACHE + KEPT


def _fill(http: httpx.Client) -> None:
    """A topic whose pages are large, and noise, so that no encoding makes them small."""
    for name in ("t", "full"):
        assert http.put(f"/v1/topics/{name}").status_code == 201
    for _ in range(5):
        noise = Random(0).randbytes(2 * MIB).hex()
        lines = b"\n".join(b'{"value":"%s"}' % noise[at : at + 1000].encode() for at in range(0, len(noise), 1000))
        assert http.post("/v1/topics/full/messages", content=lines, headers={"content-type": NDJSON}).is_success
    assert http.post("/v1/topics/full/flush").is_success


@contextmanager
def _under(broker: BrokerProcess, attack: Attack) -> Iterator[None]:
    """While it lasts; the broker may end any of the connections."""
    with ExitStack() as stack:
        socks = [stack.enter_context(connection(broker)) for _ in range(attack.count)]
        ended = threading.Event()
        sender = threading.Thread(target=_send, args=(socks, attack, ended))
        sender.start()
        yield
        ended.set()
        sender.join()


def _send(socks: list[socket], attack: Attack, ended: threading.Event) -> None:
    left = dict.fromkeys(socks, attack.first)
    for sock in socks:
        sock.setblocking(False)
    while not ended.wait(0.01):
        for sock in socks:
            with suppress(OSError):
                left[sock] = left[sock][sock.send(left[sock] or attack.again) :]
