"""A cluster for one run: etcd, an S3 server, brokers in processes of their own, a proxy in each link of each broker.

It knows how to hurt and to heal its members, and who leads, owns, dispatches; when to do what is the nemesis's.
"""

import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.support.chaos.etcd_links import EtcdLinks, Etcds
from tests.support.chaos.s3_proxy import S3Proxy
from tests.support.chaos.store_read import StoreReader
from tests.support.chaos.store_server import store_server
from tests.support.chaos.tmpfs import tmpfs
from tests.support.history.load import SUBSCRIPTION, TOPIC
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.proxy_process import Link, ProxyProcess
from tests.support.processes.tcp_proxy import LoopThread

PREFIX = "q"
KEYS = "seaweedq/"
POLL_S = 0.05
READY_S = 60.0
DISK_MIB = 160  # imports leave 64 of them free
ETCD_S = 5.0  # for a word with etcd, which may stand still
QUIET = (
    *("--log-level", "info", "--checkpoint-s", "1", "--snapshot-s", "2"),
    *("--journal-max-unreleased-bytes", "1048576"),
)


class Member:
    """A broker and its links: to etcd, to the store, and the one by which other brokers reach it."""

    def __init__(self, name: str, process: BrokerProcess, etcd: EtcdLinks, store: S3Proxy, peers: Link) -> None:
        self.name = name
        self.process = process
        self.etcd = etcd
        self.store = store
        self.peers = peers
        self.paused = False
        self.killed = False

    @property
    def id(self) -> str:
        """The id that it took last."""
        return re.findall(r"broker (\S+) is ready", self.process.log)[-1]

    @property
    def ids(self) -> list[str]:
        """All ids that its process has taken since its start."""
        return re.findall(r"broker (\S+) is ready", self.process.log.rpartition("--- start, ")[2])

    @property
    def links(self) -> Sequence[EtcdLinks | Link | S3Proxy]:
        """All three."""
        return self.etcd, self.store, self.peers

    @property
    def working(self) -> bool:
        """Whether it lives and is not stopped."""
        return self.process.alive and not self.paused and self.state() not in "Tt"

    def state(self) -> str:
        """The kernel's letter for the process: T is stopped; empty where it is gone."""
        if not self.process.alive:
            return ""
        assert self.process.process
        try:
            stat = Path(f"/proc/{self.process.process.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            return ""
        return stat.rsplit(")", 1)[1].split()[0]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.killed, self.paused = True, False

    def tell_to_stop(self) -> None:
        """SIGTERM, without waiting."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT, also where a fail point stopped it."""
        self.paused = False
        if self.process.alive:
            self._signal(signal.SIGCONT)

    def revive(self, **more: Any) -> None:
        """Whatever was done to the process: it runs, or starts to."""
        self.resume()
        self.killed = False
        if not self.process.alive:
            self.process.start(wait=False, **more)

    def _signal(self, number: int) -> None:
        assert self.process.process
        os.kill(self.process.process.pid, number)


class Cluster:
    """`count` brokers on a store of `s3_service.SERVERS`; what it starts is gone when it is closed. Logs and data are
    in `folder`. `tree`: the version with which they start, if it is another one. `etcds`: the members of etcd.
    `journal`: a kind of journals; those that are files are on a small disk of each broker."""

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        count: int = 3,
        lease_s: float = 3.0,
        store: str = "moto",
        *,
        tree: Path | None = None,
        etcds: int = 1,
        journal: str = "object",
    ) -> None:
        self.folder = folder
        self.tree = tree
        self.lease_s = lease_s
        self.members: list[Member] = []
        self.changes: list[Any] = []  # the threads that change segments; they end by themselves
        self.operators: list[Any] = []  # who asks for rebuilds, once a fault needs it
        self.strange: list[str] = []  # what they were told that no broker may answer
        self._rng = rng
        self._count = count
        self._store = store
        self._etcds = etcds
        self.journal = journal
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.etcd = Etcds(self.folder, self._etcds).start()
            stack.callback(lambda: self.etcd.kill())
            self.s3 = stack.enter_context(store_server(self._store, self.folder / "store"))
            self.thread = LoopThread()
            stack.callback(self.thread.close)
            self.proxies = ProxyProcess()
            stack.callback(self.proxies.close)
            for n in range(self._count):
                if self.journal == "file":
                    stack.enter_context(tmpfs(self.folder / f"b{n}", DISK_MIB))
                self.members.append(member := self._member(f"b{n}"))
                for end in (*(link.stop for link in member.links), member.kill):
                    stack.callback(end)
                member.process.start(wait=False)
            self.wait_healed()  # a start that loses an answer of the store ends, and begins again
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        for operator in self.operators:
            operator.stop()
        self._stack.close()

    @property
    def urls(self) -> list[str]:
        """Where clients reach the brokers."""
        return [member.process.url for member in self.members]

    @property
    def working(self) -> list[Member]:
        """The members that are not dead and not stopped."""
        return [member for member in self.members if member.working]

    def reader(self) -> StoreReader:
        """Reads the topic's files past all proxies."""
        return StoreReader(self.s3.service.endpoint, self.s3.bucket, PREFIX)

    def wait_healed(self) -> None:
        """Until every broker is ready. One that was paused while it stopped goes on stopping when all is healed, ends,
        and is started again."""
        end = time.monotonic() + READY_S
        while not all(member.process.ready() for member in self.members):
            assert time.monotonic() < end, "not all brokers are ready again"
            self.supervise()
            time.sleep(POLL_S)

    def leader(self) -> Member | None:
        """Who leads, as etcd has it; None where nobody can say."""
        found = self._values("leader")
        return self._of(found[0]["broker"]) if found else None

    def owned(self) -> dict[int, Member | None]:
        """Who owns each open segment of the topic."""
        return {n: self._of(record["owner"]) for n, record in self.records().items() if record["state"] == "open"}

    def records(self) -> dict[int, dict[str, Any]]:
        """The topic's segments, as etcd has them; none where it does not answer."""
        return {int(key.rsplit("/", 1)[1]): record for key, record in self._keys(f"segments/{TOPIC}/").items()}

    def named(self, prefix: str) -> frozenset[str]:
        """The last parts of the keys below a prefix, as etcd has them."""
        return frozenset(key.rsplit("/", 1)[1] for key in self._keys(prefix))

    def locked(self) -> list[int]:
        """The segments that a change has locked."""
        return [number for number, record in self.records().items() if record.get("intent")]

    def owns(self, member: Member) -> bool:
        """Whether it owns a segment under its last id."""
        return member.id in {record["owner"] for record in self.records().values()}

    def can_spare(self, member: Member) -> bool:
        """Whether no set of mirrors has its last holding in this member's process, as etcd has it: the owner and all of
        its mirrors must not be lost together. Of other journals nothing is lost with any broker."""
        if self.journal != "mirrored":
            return True
        living = {id: one for one in self.members if one.process.alive for id in one.ids}
        for owner, record in self._keys("mirrors/").items():
            mirrors = {living.get(one["broker"]) for one in record["members"]} - {None}
            is_needed = mirrors == {member} or (not mirrors and living.get(owner) is member)
            if record["members"] and is_needed and record["state"] != "decided":
                return False
        return True

    def supervise(self) -> None:
        """Start again whoever ended by itself, as every supervisor of processes does."""
        for member in self.members:
            if not member.killed and not member.process.alive:
                member.process.start(wait=False)

    def dispatcher(self) -> Member | None:
        """Who hands out the subscription's messages."""
        records = self._keys(f"subscriptions/{TOPIC}/").items()
        found = [record.get("dispatcher") for key, record in records if key.endswith(f"/{SUBSCRIPTION}")]
        return self._of(found[0]) if found else None

    def leases(self) -> list[str]:
        """The ids of etcd's leases."""
        return self.etcd.control("lease", "list", within_s=ETCD_S).split("\n")[1:-1]

    def revoke(self, lease: str) -> None:
        """End a lease before its time."""
        self.etcd.control("lease", "revoke", lease, within_s=ETCD_S)

    def compact(self) -> None:
        """Forget all of etcd's history."""
        assert self.etcd.working, "no member of etcd works"
        self.etcd.compact(self.etcd.status(self.etcd.working[0], ETCD_S)["header"]["revision"])

    def heal(self) -> None:
        """Everything works again: etcd, links, processes; what was held has happened. Not yet that all are ready."""
        self.etcd.resume()
        self.etcd.start()
        for member in self.members:
            for link in member.links:
                link.heal()
            member.store.deliver()
            member.revive()
        for change in self.changes:
            change.join()

    def logs(self) -> dict[str, str]:
        """What each broker printed."""
        return {member.name: member.process.log for member in self.members}

    def _member(self, name: str) -> Member:
        process = BrokerProcess(self.folder / name)
        process.tree = self.tree
        etcd = EtcdLinks(self.proxies, self.etcd).start()
        store = S3Proxy(self.thread, self.s3.service.endpoint, random.Random(self._rng.getrandbits(64))).start()
        peers = self.proxies.link(process.url).start()
        process.env = {**self.s3.service.env, "SEAWEEDQ_CLUSTER_SECRET": "a-secret-of-the-tests"}
        process.arguments = (
            *("--coordination", f"etcd://{','.join(f'127.0.0.1:{port}' for port in etcd.ports)}"),
            *("--etcd-prefix", KEYS),
            *("--store", f"s3://{self.s3.bucket}/{PREFIX}", "--s3-endpoints", store.url, "--s3-addressing", "path"),
            *("--advertise-url", peers.url, "--name", name, "--lease-s", str(self.lease_s), *QUIET),
            *("--journal", self.journal),
        )
        return Member(name, process, etcd, store, peers)

    def _of(self, broker: str | None) -> Member | None:
        """The member with a broker's id, which begins with its name."""
        return next((m for m in self.members if broker and broker.split(".")[0] == m.name), None)

    def _values(self, key: str) -> list[dict[str, Any]]:
        return [*self._keys(key).values()]

    def _keys(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Records by key; none where etcd does not answer."""
        try:
            lines = self.etcd.control("get", "--prefix", f"{KEYS}{prefix}", within_s=ETCD_S).split("\n")
        except AssertionError:
            return {}
        return {key: msgspec.json.decode(value) for key, value in zip(lines[::2], lines[1::2], strict=False)}


def waited(happened: Callable[[], bool], within_s: float) -> bool:
    """Whether it happened in time."""
    end = time.monotonic() + within_s
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
