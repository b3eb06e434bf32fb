"""Coordination goes back: etcd is restored from some seconds ago, or emptied, also below brokers that live; and an
operator who asks for a rebuild wherever a broker says that it waits for one.

The operator is there from the first such fault on: without one a broker that waits is a defect, and stays visible.
"""

import re
import threading
from random import Random
from typing import Any

import httpx

from tests.support.chaos.cluster import ETCD_S, Cluster, Member, waited
from tests.support.chaos.fault import Begun
from tests.support.chaos.process_faults import any_one, go_on

REBUILD_PLACES = (
    *("rebuild.generation", "rebuild.announced", "rebuild.saved", "rebuild.replacing"),
    *("rebuild.page", "rebuild.replaced", "rebuild.backed", "rebuild.done"),
)
LOOK_S = 0.5
CALL_S = 60.0  # a rebuild waits for leases
REACHED_S = 20.0
WAITS = re.compile(r"^seaweedq_restored\{[^}]*\} [1-9]", re.MULTILINE)


class Operator(threading.Thread):
    """Looks at all brokers, and asks one that waits for a rebuild; `first` before others. Ends with the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="operator", daemon=True)
        self.first: Member | None = None
        self.rebuilt = 0
        self._cluster = cluster
        self._stopped = threading.Event()
        self._http = httpx.Client(timeout=CALL_S, trust_env=False, verify=False)

    def run(self) -> None:
        with self._http:
            while not self._stopped.wait(LOOK_S):
                waiting = [member for member in self._cluster.members if self._waits(member)]
                waiting.sort(key=lambda member: member is not self.first)
                if waiting and (answer := self._ask(waiting[0], "POST", "/v1/cluster/rebuild", json={})):
                    self.rebuilt += answer.status_code == 200
                    if answer.status_code not in (200, 409, 503):
                        self._cluster.strange.append(f"a rebuild: {answer.status_code} {answer.text[:300]}")

    def stop(self) -> None:
        """Looks no more."""
        self._stopped.set()

    def _waits(self, member: Member) -> bool:
        """Whether it waits itself, or topics of it do."""
        if not member.working:
            return False
        answer = self._ask(member, "GET", "/metrics", timeout=ETCD_S)
        return answer is not None and bool(WAITS.search(answer.text))

    def _ask(self, member: Member, method: str, path: str, **more: Any) -> httpx.Response | None:
        try:
            return self._http.request(method, f"{member.process.url}{path}", **more)
        except httpx.TransportError:
            return None


def etcd_restored(cluster: Cluster, rng: Random) -> Begun | None:
    """What etcd has now is what it has again when this is over: whatever it did meanwhile is forgotten."""
    try:
        saved = cluster.etcd.save(ETCD_S)
    except AssertionError:  # etcd is dead, or stands still
        return None
    _operator(cluster)

    def undo() -> None:
        cluster.etcd.go_back(saved)
        cluster.etcd.start()

    return Begun(undo, "etcd")


def etcd_emptied(cluster: Cluster, rng: Random) -> Begun:
    """SIGKILL of etcd, and a start without any data."""
    _operator(cluster)
    cluster.etcd.go_back(None)
    return Begun(cluster.etcd.start, "etcd")


def amid_a_rebuild(how: str, cluster: Cluster, rng: Random) -> Begun | None:
    """Etcd is emptied, and the broker that rebuilds dies, or stops itself and goes on later, between two steps."""
    found = any_one(cluster, rng)
    if not found:
        return None
    place, member = f"{rng.choice(REBUILD_PLACES)}:1:{how}", found[0]
    operator = _operator(cluster)
    operator.first = member
    member.kill()
    cluster.etcd.go_back(None)
    cluster.etcd.start()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    reached = waited(lambda: member.state() in ("T", ""), REACHED_S)
    operator.first = None
    return Begun(lambda: go_on(member), f"{member.name} at {place if reached else 'no place'}")


def _operator(cluster: Cluster) -> Operator:
    """The cluster's, which begins now if there is none."""
    for one in cluster.operators:
        return one
    operator = Operator(cluster)
    cluster.operators.append(operator)
    operator.start()
    return operator
