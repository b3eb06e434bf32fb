"""Three brokers of one parent, as consumers of a subscription see them."""

import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from seaweedq.broker.subscriptions.subscribing import SETTLED_S, TICK_S
from seaweedq.coordination import keys
from tests.support.brokers.stored import record_of
from tests.support.history.load import until as until
from tests.support.processes.broker_process import BrokerProcess, free_ports

BROKERS = 3
LEASE_S = 4
TOPIC = "/v1/topics/t"
NAME = f"{TOPIC}/subscriptions/s"


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except FileNotFoundError:
        return True


class Together:
    """The brokers, and what was published, delivered and acked through them. Brokers count from 0."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.urls = [f"http://127.0.0.1:{process.port + number}" for number in range(BROKERS)]
        self.http = httpx.Client(timeout=40, trust_env=False)
        self.begin()

    def begin(self) -> None:
        """Forgets what was published, delivered and acked."""
        self.sent = 0
        self.delivered: Counter[int] = Counter()
        self.acked: set[int] = set()

    def wait_ready(self) -> None:
        """Until every one takes work, and all see all."""
        until(lambda: all(map(self.ready, self.urls)))
        until(lambda: all(len(self.get(n, "/v1/cluster")["brokers"]) == BROKERS for n in range(BROKERS)))

    def ready(self, url: str) -> bool:
        """Whether this one can take work."""
        try:
            return self.http.get(f"{url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, method: str, broker: int, path: str, **more: Any) -> httpx.Response:
        """A request to one broker."""
        return self.http.request(method, f"{self.urls[broker]}{path}", **more)

    def get(self, broker: int, path: str) -> Any:
        """What is there; fails unless it answers 200."""
        answer = self.ask("GET", broker, path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def make(self, segments: int = 2 * BROKERS) -> None:
        """The topic."""
        assert self.ask("PUT", 0, TOPIC, json={"initial_segments": segments}).status_code == 201

    def first_segment(self) -> int:
        """The lowest id of the topic's segments."""
        return min(segment["id"] for segment in self.get(0, f"{TOPIC}/segments")["segments"])

    def subscribe(self, broker: int, **more: Any) -> None:
        """The subscription, from the start on."""
        answer = self.ask("PUT", broker, NAME, json={"start": "earliest", **more})
        assert answer.status_code == 201, answer.text

    def publish(self, broker: int, count: int) -> None:
        """Messages with values that go on counting, over all segments."""
        values = range(self.sent, self.sent + count)
        messages = [{"key": f"k{value}", "value": value} for value in values]
        answer = self.ask("POST", broker, f"{TOPIC}/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text
        self.sent += count

    def pull(self, broker: int, wait_s: float = 0, **more: Any) -> list[dict[str, Any]]:
        """Messages; fails unless it answers 200."""
        answer = self.ask("POST", broker, f"{NAME}/pull", json={"wait_s": wait_s, **more})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["messages"]
        self.delivered.update(message["value"] for message in found)
        return found

    def ack(self, broker: int, messages: Sequence[dict[str, Any]]) -> list[str]:
        """Ack messages: the ids that are unknown."""
        answer = self.ask("POST", broker, f"{NAME}/ack", json={"ids": [message["id"] for message in messages]})
        assert answer.status_code == 200, answer.text
        unknown: list[str] = answer.json()["unknown"]
        self.acked |= {message["value"] for message in messages if message["id"] not in unknown}
        return unknown

    def dispatcher(self) -> int | None:
        """Who dispatches, as coordination says; None where it is nobody, or one that is gone."""
        living = {keys.BROKERS.parse(key)[0]: record_of(keys.BROKERS, value) for key, value in self.rows(keys.BROKERS)}
        ((_, value),) = self.rows(keys.SUBSCRIPTIONS)
        found = living.get(record_of(keys.SUBSCRIPTIONS, value).dispatcher or "")
        return self.urls.index(found.url) if found else None

    def settled(self) -> int:
        """The dispatcher, once it has been the same for longer than a hand-over for balance takes.

        One that handed the subscription over names nobody, until somebody asks: so each look asks for it.
        """
        seen, since_s = None, time.monotonic()

        def same() -> bool:
            nonlocal seen, since_s
            for broker in range(BROKERS):
                with suppress(httpx.TransportError):  # it was killed
                    self.ask("GET", broker, NAME)
                    break
            if seen != (now := self.dispatcher()):
                seen, since_s = now, time.monotonic()
            return seen is not None and time.monotonic() - since_s > TICK_S + SETTLED_S

        until(same)
        assert seen is not None
        return seen

    def pid(self, broker: int) -> int:
        """A broker's process."""
        return int((self.process.data_dir / "members" / str(broker + 1) / "lock").read_text())

    def signal(self, broker: int, number: int = signal.SIGKILL) -> None:
        """Send a broker a signal."""
        os.kill(self.pid(broker), number)

    @contextmanager
    def stopped(self, broker: int) -> Iterator[None]:
        """A broker that stands still meanwhile, and not with SQLite's write lock in its hand: all would wait for it."""
        self.signal(broker, signal.SIGSTOP)
        while self._locked():
            self.signal(broker, signal.SIGCONT)
            time.sleep(0.01)
            self.signal(broker, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(broker, signal.SIGCONT)

    def _locked(self) -> bool:
        """Whether nobody can write to coordination for longer than a transaction takes."""
        with closing(sqlite3.connect(self.process.data_dir / "coordination.db", timeout=1)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            database.rollback()
            return False

    def rows(self, kind: Any) -> list[tuple[str, bytes]]:
        with closing(sqlite3.connect(self.process.data_dir / "coordination.db")) as database:
            prefix = f"{kind.prefix()}%"
            return database.execute("SELECT key, value FROM entries WHERE key LIKE ? ORDER BY key", [prefix]).fetchall()


@contextmanager
def publishing(brokers: Together, count: int) -> Iterator[list[str]]:
    """Publishes so many messages at a time while the block runs, through a broker that lives; yields what was refused.

    A connection that a restart ends is no failure: the next broker is asked.
    """
    stopped, failed = threading.Event(), list[str]()

    def publish() -> None:
        while not stopped.wait(0.02):
            for n in range(BROKERS):
                try:
                    brokers.publish(n, count)
                    break
                except httpx.TransportError:
                    continue  # it restarts
                except AssertionError as error:
                    failed.append(str(error))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield failed
    finally:
        stopped.set()
        publisher.join()


@contextmanager
def started(broker_process: Callable[..., BrokerProcess], lease_s: float = LEASE_S) -> Iterator[Together]:
    """Brokers on a fresh folder, ready; gone afterwards."""
    process = broker_process("--brokers", str(BROKERS), "--lease-s", str(lease_s), port=free_ports(BROKERS))
    brokers = Together(process)
    brokers.wait_ready()
    yield brokers
    pids = [brokers.pid(n) for n in range(BROKERS)]
    process.kill()
    until(lambda: all(map(gone, pids)))
    brokers.http.close()
