"""What can be done to etcd: killed, stopped, slow, compacted, its leases ended; of three members, its leader killed or
moved, and none left to lead."""

from functools import partial
from random import Random

from tests.support.chaos.cluster import ETCD_S, Cluster, waited
from tests.support.chaos.fault import Begun
from tests.support.processes.etcd_service import EtcdServer

SLOW_S = 0.6  # in each way


def etcd_killed(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of etcd, and a start on the same data."""
    if not cluster.etcd.working:
        return None
    cluster.etcd.kill()
    return Begun(partial(cluster.etcd.start, wait=False), "etcd")


def etcd_paused(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGSTOP of etcd."""
    if not cluster.etcd.working:
        return None
    cluster.etcd.pause()
    return Begun(cluster.etcd.resume, "etcd")


def slow_etcd(cluster: Cluster, rng: Random) -> Begun:
    """Each answer comes after 1.2 s."""
    for member in cluster.members:
        member.etcd.delay(SLOW_S)
    return Begun(lambda: [member.etcd.delay(0) for member in cluster.members], "all")


def leader_killed(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of the one of three that leads, while all work: two that are dead leave nobody to lead, which is another
    fault."""
    leader = _leader_of_several(cluster)
    if leader is None or len(cluster.etcd.working) < len(cluster.etcd.servers):
        return None
    cluster.etcd.kill(leader)
    return Begun(partial(cluster.etcd.start, wait=False), leader.name)


def leader_moved(cluster: Cluster, rng: Random) -> Begun | None:
    """Another one of three leads."""
    leader = _leader_of_several(cluster)
    others = [one for one in cluster.etcd.working if one is not leader]
    if leader is None or not others:
        return None
    try:
        other = cluster.etcd.status(rng.choice(others), ETCD_S)["header"]["member_id"]
        leader.control("move-leader", f"{other:x}", within_s=ETCD_S)
    except AssertionError:  # it has just lost them
        return None
    return Begun(lambda: None, leader.name)


def leaderless(cluster: Cluster, rng: Random) -> Begun | None:
    """Two of three stand still: the third one has nobody to follow."""
    working = cluster.etcd.working
    if len(working) < 3:
        return None
    cluster.etcd.pause(*rng.sample(working, 2))
    return Begun(cluster.etcd.resume, "two of three")


def lease_revoked(cluster: Cluster, rng: Random) -> Begun | None:
    """One of the leases ends at once."""
    try:
        cluster.revoke(rng.choice(cluster.leases()))
    except (AssertionError, IndexError):  # etcd is dead, or stands still; or there is no lease, or it has just ended
        return None
    return Begun(lambda: None, "a lease")


def compacted(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker is cut off, and etcd forgets its history before it is back."""
    member = rng.choice(cluster.members)
    member.etcd.cut("both")
    waited(lambda: False, cluster.lease_s / 2)
    try:
        cluster.compact()
    except AssertionError:  # etcd is dead, or stands still; or nothing has happened since it forgot all
        member.etcd.heal()
        return None
    return Begun(member.etcd.heal, member.name)


def _leader_of_several(cluster: Cluster) -> EtcdServer | None:
    return cluster.etcd.leader(ETCD_S) if len(cluster.etcd.working) > 1 else None
