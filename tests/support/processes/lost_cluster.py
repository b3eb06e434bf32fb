"""Brokers over an etcd that goes back: saved, restored, emptied; and the ledger of what they
acknowledged."""

import json
import re
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.chaos.cluster import waited
from tests.support.chaos.store_server import client
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess, free_ports
from tests.support.processes.command import seaweedq
from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.s3_service import S3Service

LEASE_S = 2
WITHIN_S = 20.0
POLL_S = 0.05
PATIENCE_S = 10.0  # that an operator has with brokers that wait behind a rebuild
QUIET = ("--lease-s", str(LEASE_S), "--log-level", "info", "--checkpoint-s", "1", "--snapshot-s", "1")


class ReturningEtcd:
    """An etcd whose state can be saved, and brought back below the same address."""

    def __init__(self, server: EtcdServer) -> None:
        self.server = server
        self._folder = server.folder
        self._saved = 0
        self._saved_revision = 0

    def has_gone_on(self) -> bool:
        """Whether anything changed since the newest copy. If not, no broker can notice that the copy is back."""
        return self._revision() > self._saved_revision

    def _revision(self) -> int:
        (status,) = json.loads(self.server.control("endpoint", "status", "--write-out", "json"))
        return int(status["Status"]["header"]["revision"])

    def save(self) -> Path:
        """A snapshot of now, by etcdctl."""
        self._saved += 1
        self._saved_revision = self._revision()
        path = self._folder.with_name(f"{self._folder.name}-saved-{self._saved}")
        self.server.control("snapshot", "save", str(path))
        return path

    def restore(self, saved: Path) -> None:
        """Kill it, and start it with this state: leases, too, which end by themselves."""
        self.server.go_back(saved)
        self.server.start()

    def empty(self) -> None:
        """Kill it, and start it with nothing."""
        self.server.go_back(None)
        self.server.start()


@dataclass
class Ledger:
    """What was acknowledged, in order; and what of it came, once it was read."""

    told: list[tuple[str, str, str, str]] = field(default_factory=list)  # topic, key, value, id
    strange: list[str] = field(default_factory=list)
    drawn: int = 0  # values, of which each is sent once
    _contents: dict[tuple[str, str], str] = field(default_factory=dict)

    def acknowledge(self, topic: str, key: str, value: str, id: str) -> None:
        """A broker said that it has it, under this id."""
        self.told.append((topic, key, value, id))
        self._content(topic, id, value, "acknowledged")

    def complaints(self, topic: str, delivered: Sequence[dict[str, Any]]) -> list[str]:
        """What is wrong with the messages of a topic, in the order in which they came: some are lost, came under two
        ids, or out of the order of their key; or an id had two contents. A message may come again under its id."""
        first: dict[str, str] = {}
        order: dict[str, list[str]] = defaultdict(list)
        for message in delivered:
            value, id = message["value"], message["id"]
            self._content(topic, id, value, "delivered")
            if first.setdefault(value, id) != id:
                self.strange.append(f"{value} is {first[value]} and {id}")
            elif value not in order[message["key"]]:
                order[message["key"]].append(value)
        mine = [one for one in self.told if one[0] == topic]
        found = [f"{value} is {first[value]}, told as {id}" for _, _, value, id in mine if first.get(value, id) != id]
        if lost := [f"{value} {id}" for _, _, value, id in mine if value not in first]:
            found.append(f"{len(lost)} of {len(mine)} lost: {', '.join(lost[:5])}")
        for key in order:
            told = [value for _, k, value, _ in mine if k == key and value in first]
            came = [value for value in order[key] if value in set(told)]
            if told != came:
                found.append(f"{key} is out of order: {told[:10]}, came as {came[:10]}")
        return [*found, *self.strange]

    def _content(self, topic: str, id: str, value: str, how: str) -> None:
        if (known := self._contents.setdefault((topic, id), value)) != value:
            self.strange.append(f"{topic} {id} was {known}, and is {how} as {value}")


class LostDatabase:
    """The `coordination.db` of one machine, saved and brought back while no broker has it open."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "coordination.db"
        self._saved = 0

    def save(self) -> Path:
        """A copy of now."""
        self._saved += 1
        path = self._file.with_name(f"saved-{self._saved}.db")
        with closing(sqlite3.connect(self._file)) as there, closing(sqlite3.connect(path)) as copy:
            there.backup(copy)
        return path

    def restore(self, saved: Path) -> None:
        """The copy takes its place."""
        self.empty()
        shutil.copy(saved, self._file)

    def empty(self) -> None:
        """It is gone, with what SQLite has beside it."""
        for path in self._file.parent.glob("coordination.db*"):
            path.unlink()


class LostCluster:
    """Processes of brokers over a coordination that goes back; brokers and processes count from 0."""

    def __init__(
        self, lost: ReturningEtcd | LostDatabase, processes: Sequence[BrokerProcess], urls: Sequence[str], store: str
    ) -> None:
        self.lost = lost
        self.processes = processes
        self.urls = urls
        self.store = store
        self.ledger = Ledger()
        self.http = httpx.Client(timeout=30, trust_env=False, verify=False)
        self.rebuilt: list[dict[str, Any]] = []  # what rebuilds answered
        self.known: dict[str, str] = {}  # what a test keeps
        self.env: dict[str, str] = {}  # the same, of a start
        self.killed: set[int] = set()  # the same, brokers
        self._asks_s = 0.0

    def start(self, *which: int, wait: bool = True, **more: Any) -> None:
        """Starts these brokers, by default all, and waits until they are ready."""
        chosen = [self.processes[n] for n in which] or self.processes
        for broker in chosen:
            broker.start(wait=False, **more)
        for broker in chosen if wait else ():
            broker.wait_ready()

    def kill(self, *which: int) -> None:
        """SIGKILL, by default of all."""
        for broker in [self.processes[n] for n in which] or self.processes:
            broker.kill()

    def stop(self, *which: int) -> None:
        """SIGTERM, by default of all at once."""
        chosen = [self.processes[n] for n in which] or self.processes
        for broker in chosen:
            assert broker.process
            broker.process.terminate()
        for broker in chosen:
            assert broker.wait_gone(WITHIN_S) == 0

    def end(self, how: str) -> None:
        """The brokers are `killed`, have `stopped` in order, or stay `alive`."""
        if how != "alive":
            (self.kill if how == "killed" else self.stop)()

    def lose(self, how: str, saved: Path) -> None:
        """Coordination is `restored` as it was saved, or `emptied`. Brokers that live notice if it goes back."""
        alive = any(process.alive for process in self.processes)
        unchanged = how == "restored" and isinstance(self.lost, ReturningEtcd) and not self.lost.has_gone_on()
        if how == "restored":
            self.lost.restore(saved)
        else:
            self.lost.empty()
        if alive and not unchanged:
            assert waited(lambda: not all(map(self.is_ready, self.urls)), WITHIN_S), "nobody notices"

    def come_back(self, rebuild: Callable[[str], object] | None = None) -> None:
        """Starts what does not run; where brokers wait for a rebuild, one is asked for, as an operator would, or by
        this way."""
        end = time.monotonic() + 2 * WITHIN_S
        while not all(map(self.is_ready, self.urls)):
            assert time.monotonic() < end, f"not all brokers are ready; rebuilds: {self.rebuilt}"
            for process in self.processes:
                if not process.alive:  # as a supervisor does
                    process.start(wait=False)
            if time.monotonic() > self._asks_s and all(map(self.waits, self.urls)):
                (rebuild or self.rebuild)(self.urls[0])
                self._asks_s = time.monotonic() + PATIENCE_S
            time.sleep(POLL_S)

    def waits(self, url: str) -> bool:
        """Whether this broker waits for a rebuild."""
        try:
            answer = self.http.get(f"{url}/readyz")
        except httpx.TransportError:
            return False
        return answer.status_code == 503 and answer.json().get("type") == "/problems/restored"

    def rebuild(self, url: str, **more: Any) -> dict[str, Any]:
        """Asks a broker that waits; its answer. It may have begun to serve meanwhile."""
        answer = self.http.post(f"{url}/v1/cluster/rebuild", json=more, timeout=60)
        assert answer.status_code in (200, 409), answer.text
        found: dict[str, Any] = answer.json()
        self.rebuilt.append(found)
        return found

    def is_ready(self, url: str) -> bool:
        """Whether it takes work."""
        try:
            return self.http.get(f"{url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def ask(
        self,
        method: str,
        path: str,
        broker: int = 0,
        *,
        within_s: float = WITHIN_S,
        draw: Callable[[], Any] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """An answer that is not 503, of this broker or, if it has none, the next. `draw` makes the body of each try.
        Where somebody has noticed only now that coordination went back, it is rebuilt."""
        end = time.monotonic() + within_s
        while True:
            for step in range(len(self.urls)):
                url = self.urls[(broker + step) % len(self.urls)]
                try:
                    answer = self.http.request(
                        method, f"{url}/v1/topics/{path}", **({"json": draw()} if draw else {}), **more
                    )
                except httpx.TransportError:
                    continue
                if answer.status_code != 503:
                    return answer
                if answer.json()["type"] == "/problems/restored":
                    self.come_back()
                    break
            assert time.monotonic() < end, f"nobody does {method} {path}"
            time.sleep(POLL_S)

    def do(self, method: str, path: str, **more: Any) -> Any:
        """The same, which succeeds: its JSON."""
        answer = self.ask(method, path, **more)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def publish(self, topic: str, count: int, broker: int = 0, within_s: float = WITHIN_S) -> None:
        """So many messages over 40 keys, ten at a time, each of which is acknowledged; a new try is a new message."""
        for first in range(0, count, 10):
            self._publish(topic, [f"k{n % 40}" for n in range(first, min(first + 10, count))], broker, within_s)

    def _publish(self, topic: str, chosen: Sequence[str], broker: int, within_s: float) -> None:
        values: list[str] = []

        def draw() -> Any:
            values[:] = [f"v{self.ledger.drawn + n}" for n in range(len(chosen))]
            self.ledger.drawn += len(chosen)
            return {"messages": [{"key": key, "value": value} for key, value in zip(chosen, values, strict=True)]}

        answer = self.ask("POST", f"{topic}/messages", broker, within_s=within_s, draw=draw)
        assert answer.status_code == 200, answer.text
        for key, value, id in zip(chosen, values, answer.json()["ids"], strict=True):
            self.ledger.acknowledge(topic, key, value, id)

    def segments(self, topic: str) -> dict[int, dict[str, Any]]:
        """The topic's segments by id."""
        return {one["id"]: one for one in self.do("GET", f"{topic}/segments")["segments"]}

    def brokers(self) -> list[str]:
        """The ids of the brokers that are there."""
        answer = self.http.get(f"{self.urls[0]}/v1/cluster")
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["brokers"]]

    def leader(self) -> int:
        """The number of the broker that leads."""
        answer = self.http.get(f"{self.urls[0]}/v1/cluster")
        assert answer.status_code == 200, answer.text
        return int(answer.json()["leader"].split(".")[0][1:])

    def owner(self, topic: str, segment: int) -> int:
        """The number of the broker that owns it."""
        return int(self.segments(topic)[segment]["owner"].split(".")[0][1:])

    def read(self, topic: str, subscription: str, within_s: float = WITHIN_S) -> list[dict[str, Any]]:
        """What an ordered subscription, made here from the start on if it is not there, gives until all of the ledger
        has come, or nothing did for some seconds."""
        self.ask("PUT", f"{topic}/subscriptions/{subscription}", json={"start": "earliest"})
        path = f"{topic}/subscriptions/{subscription}"
        missing = {value for t, _, value, _ in self.ledger.told if t == topic}
        found: list[dict[str, Any]] = []
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            answer = self.ask("POST", f"{path}/pull", json={"max_messages": 1000, "wait_s": 1, "consumer": "c"})
            assert answer.status_code == 200, answer.text
            messages = answer.json()["messages"]
            found += messages
            missing -= {one["value"] for one in messages}
            if messages:
                ids = [one["id"] for one in messages]
                self.do("POST", f"{path}/ack", json={"ids": ids, "consumer": "c"})
            elif not missing:
                break
        return found

    def complaints(self, topic: str, subscription: str = "judge", within_s: float = 10.0) -> list[str]:
        """What is wrong with the topic's messages, read now."""
        return self.ledger.complaints(topic, self.read(topic, subscription, within_s))


Starter = Callable[..., BrokerProcess]


def over_etcd(
    etcd: EtcdServer, s3: S3Service, broker_process: Starter, *arguments: str, count: int = 3, store: str = ""
) -> LostCluster:
    """So many brokers, not started, each with a folder of its own. Without `store`, theirs is a new one."""
    store = store or f"s3://{s3.place()}/q"
    processes = [
        broker_process(
            *("--coordination", f"etcd://{etcd.endpoint}", "--store", store, "--s3-addressing", "path"),
            *("--name", f"b{n}", *QUIET, *arguments),
            env={**s3.env, "SEAWEEDQ_CLUSTER_SECRET": "a-secret-of-the-tests-of-a-few-more-characters"},
            start=False,
        )
        for n in range(count)
    ]
    return LostCluster(ReturningEtcd(etcd), processes, [process.url for process in processes], store)


def copied_store(s3: S3Service, store: str) -> str:
    """A copy of a store's objects below a prefix of its own: its URL."""
    bucket, _, prefix = store.removeprefix("s3://").partition("/")
    new = f"{s3.place()}/q"
    to_bucket, _, to_prefix = new.partition("/")
    s3_client = client(s3.endpoint)
    for page in s3_client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for found in page.get("Contents", ()):
            source = {"Bucket": bucket, "Key": found["Key"]}
            s3_client.copy(source, to_bucket, f"{to_prefix}{found['Key'].removeprefix(prefix)}")
    return f"s3://{new}"


def on_one_machine(broker_process: Starter, *arguments: str, count: int = 3) -> LostCluster:
    """So many brokers of one process, not started, over the files of its folder."""
    more = ("--brokers", str(count)) if count > 1 else ()
    process = broker_process(*more, *QUIET, *arguments, port=free_ports(count), start=False)
    urls = [f"http://127.0.0.1:{process.port + n}" for n in range(count)]
    return LostCluster(LostDatabase(process.data_dir), [process], urls, str(process.store))


def rebuild_as_the_page_has_it(url: str) -> None:
    """The commands of the page for operators, as they stand there."""
    page = (ROOT / "docs/operate/operations.md").read_text()
    found = re.search(r"^## Coordination was lost\n.*?^```(?:sh|text)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found, "the page has no such commands"
    for line in found[1].splitlines():
        ran = seaweedq(*line.split()[1:], env={"SEAWEEDQ_URL": url})
        assert ran.returncode == 0, f"{line}: {ran.stdout}{ran.stderr}"
    assert httpx.get(f"{url}/readyz", timeout=30).status_code == 200, "the command ended before the broker was ready"
