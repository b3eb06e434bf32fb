"""What can be done, one after the other and under load, to a cluster whose journals are mirrored; and the judgement."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from benchmarks.metrics import metrics_of
from tests.support.chaos.chaos import complaints, heal, judge
from tests.support.chaos.cluster import Cluster, Member, waited
from tests.support.chaos_clients.fleet import Fleet, Lister
from tests.support.history.checker import Violation
from tests.support.history.history import History
from tests.support.history.load import create

OWNER = ("mirrors.append:9", "mirror.hold:9", "mirrors.change", "mirrors.changed")
MIRROR = ("mirror.held:20", "mirror.fenced")
RECOVERER = ("mirrors.closed", "mirrors.fenced", "mirrors.copied", "mirrors.decided")
LEASE_S = 2.0
REACHED_S, STOP_S = 20.0, 20.0
READY_S = 90.0  # of a start, and of mirrors, which are asked again ever later if they are late, on a busy machine
Step = Callable[[Cluster], None]


def done_under_load(folder: Path, steps: Sequence[Step], seconds: float = 1.0) -> tuple[list[Violation], int]:
    """Does each step while clients publish and pull, and `seconds` after each nothing. Returns what is wrong, and the
    number of publishes that were answered."""
    with (
        History(folder / "history.jsonl") as history,
        Cluster(folder, random.Random(1), lease_s=LEASE_S, journal="mirrored") as cluster,
    ):
        create(cluster.urls[0], segments=6)
        lister = Lister(cluster.reader())
        fleet = Fleet(cluster.urls, history, 1)
        lister.start()
        with fleet:
            for step in steps:
                time.sleep(seconds)
                step(cluster)
            heal(cluster, fleet, history)
            fleet.give_up()
        lister.wait()
        found = [*judge(cluster, history, lister, harmless=()), *fleet.strange, *complaints(cluster)]
        return found, sum(event.op == "publish" and event.type == "ok" for event in history.events)


def killed_at(place: str, cluster: Cluster) -> None:
    """A broker is killed at a fail point: one that owns, or mirrors, or is the first to recover another one's."""
    member, victim, _ = cluster.members
    again(member, fail_at=place)
    while place in RECOVERER and (leader := cluster.leader()) is not member:
        if leader:
            again(leader)
    if place in (*RECOVERER, "mirror.fenced"):
        assert waited(lambda: cluster.owns(victim) and cluster.can_spare(victim), REACHED_S)
        victim.kill()
    assert waited(lambda: not member.process.alive, REACHED_S), f"nobody came to {place}"
    for other in cluster.members:
        other.revive()
    cluster.wait_healed()


def stopped_past_its_lease(cluster: Cluster) -> None:
    """SIGSTOP of an owner, until others have what it had, and SIGCONT."""
    member = cluster.members[2]
    assert waited(lambda: cluster.owns(member), REACHED_S)
    id = member.id
    member.pause()
    assert waited(lambda: id not in cluster.named("journals/"), REACHED_S), "its journal was not recovered"
    member.resume()
    cluster.wait_healed()


def left_with_a_mirror(cluster: Cluster) -> None:
    """Proxies leave an owner and one of its mirrors together, apart from etcd and from the third broker, until that has
    what both had."""
    apart, third = cluster.members[:2], cluster.members[2]
    assert waited(lambda: all(_mirrors_of(member) == 2 for member in apart), READY_S), "they have no two mirrors"
    ids = {member.id for member in apart}
    third.peers.cut("both")
    for member in apart:
        member.etcd.cut("both")
    assert waited(lambda: not ids & cluster.named("journals/"), REACHED_S), "their journals were not recovered"
    for member in cluster.members:
        member.etcd.heal()
        member.peers.heal()
    cluster.wait_healed()


def _mirrors_of(member: Member) -> float:
    """How many mirrors its journal has."""
    try:
        return metrics_of(member.process.url).get("seaweedq_journal_mirrors", 0)
    except httpx.HTTPError:  # between two lives
        return 0


def rolled_to(journal: str, cluster: Cluster) -> None:
    """A rolling restart, from which on journals are of this kind."""
    for member in cluster.members:
        again(member, journal=journal)


def again(member: Member, journal: str = "", fail_at: str = "") -> None:
    """SIGTERM, and another start; it may come to the fail point before it is ready."""
    member.process.terminate(STOP_S)
    if journal:
        at = member.process.arguments.index("--journal") + 1
        member.process.arguments = (*member.process.arguments[:at], journal, *member.process.arguments[at + 1 :])
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": fail_at})
    assert waited(lambda: member.process.ready() or bool(fail_at and not member.process.alive), READY_S)
