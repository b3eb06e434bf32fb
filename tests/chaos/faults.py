"""What can be done to a cluster: each fault begins, lasts, and is undone. `ALL` names them.

A beginning takes the cluster and a seeded rng, and returns what undoes it, with the segments whose owner it took away;
None where it can not be done now.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from clocks import HOW, SLOW, Clock, library
from cluster import Cluster, Member, waited
from s3_proxy import Action, Rule

JOURNALS, ENTRIES, ANY = "/_journals/", r"\.parquet", ""
PLACES = (
    *("slot.put", "slot.stored", "slot.delete", "commit.append", "commit.durable"),
    *("entry.append", "entry.appended", "flush.release", "checkpoint.write", "checkpoint.written"),
    *("dispatch.epoch", "dispatch.release", "move.flushed", "move.given"),
)
TAKEOVER_PLACES = (
    *("leader.recover", "fence.put", "fence.check", "recover.append", "entry.append", "entry.appended"),
    *("recover.acks", "takeover.recovered", "takeover.remove", "fence.delete", "takeover.removed", "leader.give"),
)
TURNS = (1, 2, 5, 20)


@dataclass(frozen=True)
class Begun:
    """A fault that has begun: how it ends, whom it hit, which segments lost their owner by SIGKILL."""

    undo: Callable[[], object]
    hit: str
    orphans: Sequence[int] = ()


@dataclass(frozen=True)
class Fault:
    """A kind of fault. `lasts` in leases: the least and the most."""

    name: str
    begin: Callable[[Cluster, Random], Begun | None]
    lasts: tuple[float, float]


def _kill(cluster: Cluster, members: Sequence[Member]) -> Begun:
    owned = cluster.owned()
    for member in members:
        member.kill()
    orphans = [segment for segment, owner in owned.items() if owner in members]
    return Begun(lambda: [member.revive() for member in members], " ".join(m.name for m in members), orphans)


def _one(cluster: Cluster, rng: Random, wanted: Member | None = None) -> list[Member]:
    """`wanted`, or any that works."""
    if wanted and wanted.working:
        return [wanted]
    return [rng.choice(cluster.working)] if cluster.working else []


def _owner(cluster: Cluster, rng: Random) -> list[Member]:
    owners = sorted({m.name: m for m in cluster.owned().values() if m}.items())
    return _one(cluster, rng, rng.choice(owners)[1] if owners else None)


def kill_owner(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of one that owns a segment."""
    found = _owner(cluster, rng)
    return _kill(cluster, found) if found else None


def kill_leader(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of the leader."""
    found = _one(cluster, rng, cluster.leader())
    return _kill(cluster, found) if found else None


def kill_dispatcher(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of the dispatcher."""
    found = _one(cluster, rng, cluster.dispatcher())
    return _kill(cluster, found) if found else None


def kill_recoverer(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of an owner, and of the leader when it has begun to recover it."""
    found = _owner(cluster, rng)
    if not found:
        return None
    begun = _kill(cluster, found)
    leader = cluster.leader()
    waited(lambda: False, cluster.lease_s * rng.uniform(1, 1.4))
    second = _kill(cluster, _one(cluster, rng, leader if leader not in found else None))
    hit = f"{begun.hit} {second.hit}"
    return Begun(lambda: [begun.undo(), second.undo()], hit, [*begun.orphans, *second.orphans])


def kill_all(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of every broker."""
    return _kill(cluster, cluster.members)


def pause_owner(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGSTOP of an owner past its lease, then SIGCONT."""
    found = _owner(cluster, rng)
    if not found:
        return None
    found[0].pause()
    return Begun(found[0].resume, found[0].name)


def stop_at_a_place(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker that stops itself between two steps of a protocol, and goes on past its lease."""
    found = _one(cluster, rng)
    if not found:
        return None
    place, member = f"{rng.choice(PLACES)}:{rng.choice(TURNS)}:stop", found[0]
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    stopped = waited(lambda: member.state() in ("T", ""), 5 + 2 * cluster.lease_s)
    return Begun(member.revive, f"{member.name} at {place if stopped else 'no place'}")


def stop_in_a_takeover(cluster: Cluster, rng: Random) -> Begun | None:
    """All others are killed, and who is left stops itself amid the take-over; they come back, and it goes on later."""
    found = _one(cluster, rng)
    if not found:
        return None
    place, member = f"{rng.choice(TAKEOVER_PLACES)}:{rng.choice(TURNS[:2])}:stop", found[0]
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    waited(lambda: member.state() in ("T", "") or member.process.ready(), 30)
    killed = _kill(cluster, [other for other in cluster.working if other is not member])
    stopped = waited(lambda: member.state() in ("T", ""), 5 + 2 * cluster.lease_s)
    killed.undo()
    return Begun(member.revive, f"{member.name} at {place if stopped else 'no place'}", killed.orphans)


def drain(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGTERM, one broker after the other; each is back before the next goes."""
    members = cluster.working
    for member in members:
        member.process.terminate(within_s=30)
        member.revive()
        waited(member.process.ready, 30)
    return Begun(lambda: None, " ".join(member.name for member in members)) if members else None


def cut(link: str, how: str, cluster: Cluster, rng: Random) -> Begun:
    """One of a broker's links carries nothing."""
    member = rng.choice(cluster.members)
    proxy = getattr(member, link)
    proxy.cut(how)
    return Begun(proxy.heal, member.name)


def store_rules(rules: Sequence[Rule], cluster: Cluster, rng: Random) -> Begun | None:
    """All requests to the store follow these rules."""
    for member in cluster.members:
        for rule in rules:
            member.store.add(Rule(**{name: getattr(rule, name) for name in Rule.__dataclass_fields__}))
    return Begun(lambda: [member.store.heal() for member in cluster.members], "all")


def late_put_of_a_dead_one(path: str, cluster: Cluster, rng: Random) -> Begun | None:
    """An owner's puts are on their way when it is killed, and arrive after the take-over."""
    found = _owner(cluster, rng)
    if not found:
        return None
    found[0].store.add(Rule("late", path=path, seconds=60))
    waited(lambda: found[0].store.log[-1:] != [] and found[0].store.log[-1].action == "late", 2 * cluster.lease_s)
    begun = _kill(cluster, found)

    def undo() -> None:
        found[0].store.heal()
        found[0].store.deliver()
        begun.undo()

    return Begun(undo, found[0].name, begun.orphans)


def etcd_killed(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGKILL of etcd, and a start on the same data."""
    if cluster.etcd.process is None:
        return None
    cluster.etcd.kill()
    return Begun(lambda: cluster.etcd.process or cluster.etcd.start(), "etcd")


def etcd_paused(cluster: Cluster, rng: Random) -> Begun | None:
    """SIGSTOP of etcd."""
    if cluster.etcd.process is None:
        return None
    cluster.etcd.pause()
    return Begun(lambda: cluster.etcd.process and cluster.etcd.resume(), "etcd")


def lease_revoked(cluster: Cluster, rng: Random) -> Begun | None:
    """One of the leases ends at once."""
    try:
        cluster.revoke(rng.choice(cluster.leases()))
    except (AssertionError, IndexError):  # etcd is dead, or stands still; or there is no lease, or it has just ended
        return None
    return Begun(lambda: None, "a lease")


def compacted(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker is cut off, and etcd forgets its history before it is back."""
    begun = cut("etcd", "both", cluster, rng)
    waited(lambda: False, cluster.lease_s / 2)
    try:
        cluster.compact()
    except AssertionError:  # etcd is dead, or stands still; or nothing has happened since it forgot all
        begun.undo()
        return None
    return begun


def clock_jump(cluster: Cluster, rng: Random) -> Begun | None:
    """A broker's wall clock jumps, or runs fast or slow, and jumps back; it was started anew for that."""
    found = _one(cluster, rng)
    if not found:
        return None
    clock, how, member = Clock(cluster.folder / f"{found[0].name}.clock"), rng.choice(HOW), found[0]
    member.kill()
    member.process.start(wait=False, env=clock.env)
    waited(member.process.ready, 5 + 2 * cluster.lease_s)
    clock.set(how)
    return Begun(lambda: clock.set("+0"), f"{member.name} {how}")


def slow_clocks(cluster: Cluster, rng: Random) -> Begun | None:
    """All clocks of an owner are slow, and it is cut off from etcd: it believes in its lease when that is over.

    Nothing but the fence keeps it from acknowledging then.
    """
    found = _one(cluster, rng)
    if not found:
        return None
    member = found[0]
    member.kill()
    clock = Clock(cluster.folder / f"{member.name}.clock", SLOW, monotonic=True)
    member.process.start(wait=False, env=clock.env)
    owns = waited(member.process.ready, 30) and waited(lambda: cluster.owns(member), 4 * cluster.lease_s)
    member.etcd.cut("both")

    def undo() -> None:
        member.etcd.heal()
        member.kill()
        member.revive()

    return Begun(undo, f"{member.name}, {'an owner' if owns else 'no owner'}")


def _store(name: str, *rules: Rule, lasts: tuple[float, float] = (0.5, 2)) -> Fault:
    return Fault(name, partial(store_rules, rules), lasts)


def _errors() -> list[Rule]:
    chances: Sequence[tuple[str, int]] = [("PUT", 500), ("PUT", 503), ("PUT", 409), ("GET", 500), ("GET", 503)]
    return [Rule("error", method, probability=0.15, status=status) for method, status in chances]


def _puts(action: Action, probability: float, seconds: float = 0.0) -> Rule:
    return Rule(action, probability=probability, seconds=seconds)


CLOCKS = (Fault("clock jump", clock_jump, (0.5, 1.5)), Fault("slow clocks", slow_clocks, (2, 3)))
ALL = (
    Fault("kill owner", kill_owner, (0.5, 2)),
    Fault("kill leader", kill_leader, (0.5, 2)),
    Fault("kill dispatcher", kill_dispatcher, (0.5, 2)),
    Fault("kill recoverer", kill_recoverer, (0.5, 2)),
    Fault("kill all", kill_all, (0.1, 1.5)),
    Fault("pause owner", pause_owner, (1.3, 2.5)),
    Fault("stop at a place", stop_at_a_place, (1.3, 2.5)),
    Fault("stop in a take-over", stop_in_a_takeover, (1.3, 3)),
    Fault("rolling restart", drain, (0, 0)),
    *(
        Fault(f"cut {link} {how}", partial(cut, link, how), (0.3, 2.5))
        for link in ("etcd", "store", "peers")
        for how in ("refuse", "both", "to", "from")
    ),
    _store("slow store", Rule("delay", "PUT", seconds=0.5), Rule("delay", "GET", seconds=0.2)),
    _store("store errors", *_errors()),
    _store("dropped answers", _puts("drop_answer", 0.25)),
    _store("puts made twice", _puts("twice", 0.4)),
    _store("late puts", _puts("late", 0.2, 1.0)),
    _store("puts late past the lease", _puts("late", 0.2, 8.0)),
    _store(
        "bad reads",
        Rule("cut_read", "GET", ENTRIES, probability=0.2),
        Rule("flip_read", "GET", ENTRIES, probability=0.2),
    ),
    Fault("late journal put of a dead one", partial(late_put_of_a_dead_one, JOURNALS), (1.5, 3)),
    Fault("late entry of a dead one", partial(late_put_of_a_dead_one, ENTRIES), (1.5, 3)),
    Fault("kill etcd", etcd_killed, (0.2, 2)),
    Fault("pause etcd", etcd_paused, (0.3, 2)),
    Fault("revoke a lease", lease_revoked, (0, 0)),
    Fault("compact etcd", compacted, (0.1, 0.5)),
    *(CLOCKS if library() else ()),
)
