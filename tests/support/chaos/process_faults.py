"""What can be done to brokers as processes: killed, stopped, also at a chosen place of a protocol, restarted."""

from collections.abc import Sequence
from random import Random

from tests.support.chaos.cluster import Cluster, Member, waited
from tests.support.chaos.fault import Begun

PLACES = (
    *("slot.put", "slot.stored", "slot.delete", "commit.append", "commit.durable"),
    *("entry.append", "entry.appended", "flush.release", "checkpoint.write", "checkpoint.written"),
    *("dispatch.epoch", "dispatch.release", "move.flushed", "move.given"),
    *("open.first", "reshape.resume", "snapshot.number", "snapshot.numbered", "snapshot.made"),
)
TAKEOVER_PLACES = (
    *("leader.recover", "fence.put", "fence.check", "recover.append", "entry.append", "entry.appended"),
    *("recover.acks", "takeover.recovered", "takeover.remove", "fence.delete", "takeover.removed", "leader.give"),
)
TURNS = (1, 2, 5, 20)


def kill(cluster: Cluster, members: Sequence[Member]) -> Begun:
    owned = cluster.owned()
    for member in members:
        member.kill()
    orphans = [segment for segment, owner in owned.items() if owner in members]
    return Begun(lambda: [member.revive() for member in members], " ".join(m.name for m in members), orphans)


def any_one(cluster: Cluster, rng: Random, wanted: Member | None = None) -> list[Member]:
    """`wanted`, or any that works and that the cluster can spare."""
    if wanted and wanted.working and cluster.can_spare(wanted):
        return [wanted]
    able = [member for member in cluster.working if cluster.can_spare(member)]
    return [rng.choice(able)] if able else []


def any_owner(cluster: Cluster, rng: Random) -> list[Member]:
    owners = sorted({m.name: m for m in cluster.owned().values() if m}.items())
    return any_one(cluster, rng, rng.choice(owners)[1] if owners else None)


def kill_owner(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of one that owns a segment."""
    found = any_owner(cluster, rng)
    return kill(cluster, found) if found else None


def kill_leader(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of the leader."""
    found = any_one(cluster, rng, cluster.leader())
    return kill(cluster, found) if found else None


def kill_dispatcher(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of the dispatcher."""
    found = any_one(cluster, rng, cluster.dispatcher())
    return kill(cluster, found) if found else None


def kill_recoverer(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of an owner, and of the leader when it has begun to recover it."""
    found = any_owner(cluster, rng)
    if not found:
        return None
    begun = kill(cluster, found)
    leader = cluster.leader()
    waited(lambda: False, cluster.lease_s * rng.uniform(1, 1.4))
    second = kill(cluster, any_one(cluster, rng, leader if leader not in found else None))
    hit = f"{begun.hit} {second.hit}"
    return Begun(lambda: [begun.undo(), second.undo()], hit, [*begun.orphans, *second.orphans])


def kill_all(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of every broker."""
    return kill(cluster, cluster.members)


def pause_owner(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGSTOP of an owner past its lease, then SIGCONT."""
    found = any_owner(cluster, rng)
    if not found:
        return None
    found[0].pause()
    return Begun(found[0].resume, found[0].name)


def stop_at_a_place(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker that stops itself between two steps of a protocol, and goes on past its lease."""
    found = any_one(cluster, rng)
    if not found:
        return None
    place, member = f"{rng.choice(PLACES)}:{rng.choice(TURNS)}:stop", found[0]
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    stopped = waited(lambda: member.state() in ("T", ""), 5 + 2 * cluster.lease_s)
    return Begun(lambda: go_on(member), f"{member.name} at {place if stopped else 'no place'}")


def stop_in_a_takeover(cluster: Cluster, rng: Random) -> Begun | None:
    """All others are killed, and who is left stops itself amid the take-over; they come back, and it goes on later."""
    found = any_one(cluster, rng)
    if not found:
        return None
    place, member = f"{rng.choice(TAKEOVER_PLACES)}:{rng.choice(TURNS[:2])}:stop", found[0]
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    waited(lambda: member.state() in ("T", "") or member.process.ready(), 30)
    killed = kill(cluster, [other for other in cluster.working if other is not member])
    stopped = waited(lambda: member.state() in ("T", ""), 5 + 2 * cluster.lease_s)
    killed.undo()
    return Begun(lambda: go_on(member), f"{member.name} at {place if stopped else 'no place'}", killed.orphans)


def go_on(member: Member) -> None:
    """From the place where it stopped; one that has come to no place starts anew, and stops nowhere any more."""
    if member.state() not in ("T", ""):
        member.kill()
    member.revive()


def kill_while_draining(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGTERM, and SIGKILL or SIGSTOP while it hands over."""
    found = any_owner(cluster, rng)
    if not found:
        return None
    found[0].tell_to_stop()
    waited(lambda: not found[0].process.alive, rng.uniform(0, 1.5))
    if rng.random() < 0.5 or not found[0].process.alive:
        return kill(cluster, found)
    found[0].pause()
    return Begun(found[0].revive, f"{found[0].name}, stopped")
