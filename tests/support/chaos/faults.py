"""What can be done to a cluster: each fault begins, lasts, and is undone. `ALL` names them.

A beginning takes the cluster and a seeded rng, and returns what undoes it, with the segments whose owner it took away;
None where it can not be done now.
"""

from collections.abc import Sequence
from functools import partial
from random import Random

from tests.support.chaos.clocks import AHEAD, HOW, SLOW, Clock, library
from tests.support.chaos.cluster import Cluster, waited
from tests.support.chaos.disks import disk_full
from tests.support.chaos.ends import drain, end_in_a_phase
from tests.support.chaos.etcd_faults import (
    compacted,
    etcd_killed,
    etcd_paused,
    leader_killed,
    leader_moved,
    leaderless,
    lease_revoked,
    slow_etcd,
)
from tests.support.chaos.fault import Begun, Fault
from tests.support.chaos.process_faults import (
    any_one,
    any_owner,
    kill,
    kill_all,
    kill_dispatcher,
    kill_leader,
    kill_owner,
    kill_recoverer,
    kill_while_draining,
    pause_owner,
    stop_at_a_place,
    stop_in_a_takeover,
)
from tests.support.chaos.return_faults import amid_a_rebuild, etcd_emptied, etcd_restored
from tests.support.chaos.s3_proxy import Action, Rule
from tests.support.chaos.segment_faults import KINDS, amid_a_change, change
from tests.support.chaos.store_faults import lost_slot
from tests.support.chaos.strangers import STRANGERS, few_descriptors, strangers
from tests.support.history.judged import RETURNS

JOURNALS, ENTRIES, ANY = "/_journals/", r"\.parquet", ""


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
    found = any_owner(cluster, rng)
    if not found:
        return None
    found[0].store.add(Rule("late", path=path, seconds=60))
    waited(lambda: found[0].store.log[-1:] != [] and found[0].store.log[-1].action == "late", 2 * cluster.lease_s)
    begun = kill(cluster, found)

    def undo() -> None:
        found[0].store.heal()
        found[0].store.deliver()
        begun.undo()

    return Begun(undo, found[0].name, begun.orphans)


def clock_jump(jumps: Sequence[str], cluster: Cluster, rng: Random) -> Begun | None:
    """A broker's wall clock jumps, or runs fast or slow, and jumps back; it was started anew for that."""
    found = any_one(cluster, rng)
    if not found:
        return None
    clock, how, member = Clock(cluster.folder / f"{found[0].name}.clock"), rng.choice(jumps), found[0]
    member.kill()
    member.process.start(wait=False, env=clock.env)
    waited(member.process.ready, 5 + 2 * cluster.lease_s)
    clock.set(how)
    return Begun(lambda: clock.set("+0"), f"{member.name} {how}")


def slow_clocks(cluster: Cluster, rng: Random) -> Begun | None:
    """All clocks of an owner are slow, and it is cut off from etcd: it believes in its lease when that is over.

    Nothing but the fence keeps it from acknowledging then.
    """
    found = any_one(cluster, rng)
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


LIES = ("bad reads", "wrong 404s of entries")
"""The faults in which the store says what is not so: brokers say that it is damaged, and guess nothing."""
ALL_AT_ONCE = ("kill all", "stop in a take-over", *RETURNS)
"""The faults that lose the memory of all brokers, or the sets of mirrors: a mirrored journal is unknown behind them."""
CLOCKS = (
    Fault("clock jump", partial(clock_jump, HOW), (0.5, 1.5)),
    Fault("clock three days ahead", partial(clock_jump, (AHEAD,)), (0.5, 3)),
    Fault("slow clocks", slow_clocks, (2, 3)),
)
ALL = (
    Fault("kill owner", kill_owner, (0.5, 2)),
    Fault("kill leader", kill_leader, (0.5, 2)),
    Fault("kill dispatcher", kill_dispatcher, (0.5, 2)),
    Fault("kill recoverer", kill_recoverer, (0.5, 2)),
    Fault("kill all", kill_all, (0.1, 1.5)),
    Fault("pause owner", pause_owner, (1.3, 2.5)),
    Fault("kill while draining", kill_while_draining, (0.5, 2)),
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
    Fault("slow etcd", slow_etcd, (1, 4), harmless=True),
    Fault("kill leader of etcd", leader_killed, (0.3, 2)),
    Fault("move leader of etcd", leader_moved, (0, 0)),
    Fault("leaderless etcd", leaderless, (0.3, 1.5)),
    *(CLOCKS if library() else ()),
    *(Fault(f"{kind}s", partial(change, [kind]), (1, 4), beside=True) for kind in KINDS),
    Fault("changes", partial(change, KINDS), (3, 10), beside=True),
    Fault("end in any phase", end_in_a_phase, (0, 1)),
    Fault("lost slot of a dead one", lost_slot, (1, 3)),
    _store("wrong 404s of slots", Rule("error", "GET", rf"^[^?]*{JOURNALS}.+/\d", probability=0.3, status=404)),
    _store("wrong 404s of entries", Rule("error", "GET", rf"^[^?]*{ENTRIES}", probability=0.05, status=404)),
    Fault("disk full", disk_full, (0.3, 2)),
    *(Fault(kind, partial(strangers, kind), (1, 5), harmless=True) for kind in STRANGERS),
    Fault("few descriptors", few_descriptors, (0.5, 2)),
    Fault("kill amid a change", partial(amid_a_change, "kill"), (0.5, 2)),
    Fault("stop amid a change", partial(amid_a_change, "stop"), (1.3, 2.5)),
    Fault("restore etcd", etcd_restored, (0.1, 3)),
    Fault("empty etcd", etcd_emptied, (0.1, 1)),
    Fault("kill amid a rebuild", partial(amid_a_rebuild, "kill"), (0, 2)),
    Fault("stop amid a rebuild", partial(amid_a_rebuild, "stop"), (0.3, 2.5)),
)
