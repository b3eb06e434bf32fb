"""A stream of Spark whose query, and whose brokers, are killed again and again, while the topic is written, flushed,
split and merged. In the end its sink, files or another topic, has what was acknowledged, each message once, each key
in its order."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from seaweedq import Client
from seaweedq.errors import SeaweedqError
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.together import BROKERS, TOPIC, Together, started
from tests.support.spark import jvm

KEYS, ROWS, PAUSE_S, CHANGE_S, SETTLE_S = 23, 40, 0.05, 2.0, 240.0


class Query:
    """The process of the query, and the batches that it has written, as files or `into` a topic."""

    def __init__(self, urls: list[str], folder: Path, into: str | None = None) -> None:
        folder.mkdir()
        self._command = [sys.executable, "-W", "ignore", "-m", "tests.support.spark.endless_query"]
        self._command += [",".join(urls), "t", str(folder), *([into] if into else [])]
        self._urls, self._into = urls, into
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it in a session of its own: its JVM dies with it."""
        given = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        given["SPARK_SUBMIT_OPTS"] = jvm.options()
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env={**os.environ, **given}, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL of the driver and of its JVM."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def batches(self) -> list[list[tuple[int, int, str, str]]]:
        """The rows of each batch, by its number; those of a topic as one."""
        if self._into:
            with Client(self._urls) as client:
                table = client.read_table(self._into, columns=["segment", "_offset", "_key", "value"], live=True)
            return [[(row["segment"], row["_offset"], row["_key"], row["value"]) for row in table.to_pylist()]]
        files = sorted(self._folder.glob("batches/*.json"), key=lambda file: int(file.stem))
        return [json.loads(file.read_text()) for file in files]

    def rows(self) -> int:
        """How many rows its batches have. Fails if the query has ended by itself."""
        log = (self._folder / "log").read_text(errors="replace")
        assert self._process is not None
        assert self._process.poll() is None, f"the query has ended: {log[-6000:]}"
        if not self._into:
            return sum(map(len, self.batches()))
        with Client(self._urls) as client:
            return sum(one["end_offset"] for one in client.segments(self._into))


class Upheaval:
    """A producer of numbers with keys, and splits, merges and flushes, each in a thread."""

    def __init__(self, brokers: Together, seed: int) -> None:
        self.sent = 0
        self.changes = 0
        self._brokers, self._rng = brokers, random.Random(seed)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._change)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs both meanwhile; at its end all that was sent is acknowledged."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()

    def _publish(self) -> None:
        with Client(self._brokers.urls) as client, client.producer("t", linger_ms=1) as producer:
            while not self._over.wait(PAUSE_S):
                receipts = [producer.send(n, key=str(n % KEYS)) for n in range(self.sent, self.sent + ROWS)]
                producer.flush()
                assert all(receipt.result(0) for receipt in receipts)
                self.sent += ROWS

    def _change(self) -> None:
        with Client(self._brokers.urls) as client:
            while not self._over.wait(CHANGE_S):
                with suppress(SeaweedqError, httpx.TransportError):  # a broker is dead: the next time
                    self._once(client)
                    client.flush("t")

    def _once(self, client: Client) -> None:
        opened = sorted((one for one in client.segments("t") if one["state"] == "open"), key=lambda one: one["low"])
        at = self._rng.randrange(len(opened))
        path = f"{TOPIC}/segments/{opened[at]['id']}"
        body: dict[str, Any] = {}
        if len(opened) > 3 and at + 1 < len(opened):
            path, body = f"{path}/merge", {"with": opened[at + 1]["id"]}
        else:
            path = f"{path}/split"
        answer = self._brokers.ask("POST", self._rng.randrange(BROKERS), path, json=body)
        self.changes += answer.status_code == 200


def run(folder: Path, queries: int, brokers: int, seed: int, into: str | None = None) -> str:
    """Kills the query and brokers so often, and checks the sink: files, or a topic. Returns what has happened."""
    made: list[BrokerProcess] = []

    def process(*arguments: str, **more: Any) -> BrokerProcess:
        made.append(BrokerProcess(folder / "brokers", *arguments, **more))
        made[-1].start()
        return made[-1]

    with started(process) as together:
        together.make(3)
        if into:
            assert together.ask("PUT", 0, f"/v1/topics/{into}", json={"initial_segments": 3}).status_code == 201
        query, upheaval = Query(together.urls, folder / "query", into), Upheaval(together, seed)
        try:
            with upheaval.running():
                _kill(query, together, random.Random(seed), ["query"] * queries + ["broker"] * brokers)
            _until(lambda: query.rows() >= upheaval.sent)
        finally:
            query.kill()
        batches = query.batches()
    check(batches, upheaval.sent)
    return (
        f"{queries} queries and {brokers} brokers killed, {upheaval.changes} splits and merges, {upheaval.sent:,} "
        f"messages" + ("" if into else f", {len(batches)} batches")
    )


def _kill(query: Query, brokers: Together, rng: random.Random, victims: list[str]) -> None:
    rng.shuffle(victims)
    query.start()
    for victim in victims:
        before = query.rows()
        _until(lambda before=before: query.rows() > before)
        time.sleep(rng.random())
        if victim == "broker":
            brokers.signal(rng.randrange(BROKERS))
            continue
        query.kill()
        query.start()


def check(batches: list[list[tuple[int, int, str, str]]], count: int) -> None:
    """The numbers of each key come in their order: in that of batches, and within one in that of offsets."""
    found: dict[str, list[int]] = {}
    for batch in batches:
        for _, _, key, value in sorted(batch):
            found.setdefault(key, []).append(int(value))
    wrong = {key: numbers for key, numbers in found.items() if numbers != [*range(int(key), count, KEYS)]}
    assert not wrong, wrong
    assert sum(map(len, found.values())) == count


def _until(true: Any) -> None:
    end = time.monotonic() + SETTLE_S
    while not true():
        assert time.monotonic() < end, f"not within {SETTLE_S:g} s"
        time.sleep(0.2)
