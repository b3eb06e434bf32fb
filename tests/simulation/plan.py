"""The plan of a simulated run, as data: its seed, its knobs, its clients, and its faults with their times.

A plan follows from a seed. One that has failed is shrunk (`shrunk`): fewer faults, fewer clients, shorter. It is JSON,
so that it can be kept as a test.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from tests.simulation import knobs
from tests.support.history.judged import LOST_JOURNAL, RETURNS

BROKERS = 3
SHORTEST_S = 10.0
REJOINS_S = 3.0  # between two steps of a rolling restart
AIMS = (
    *("fence.put", "fence.check", "leader.give", "leader.recover", "leader.look", "recover.append", "recover.acks"),
    *("recover.mark", "takeover.revoke", "takeover.recovered", "takeover.remove", "takeover.removed", "open.first"),
    *("slot.put", "slot.stored", "slot.delete", "commit.append", "commit.durable", "commit.first", "write.batch"),
    *("entry.append", "entry.appended", "entry.encode", "flush.release", "journal.release", "mark.durable"),
    *("move.flushed", "move.given", "reshape.commit", "reshape.committed", "reshape.flushed", "reshape.held"),
    *("reshape.replaced", "reshape.resume", "reshape.sealed", "plan.write", "checkpoint.write", "checkpoint.written"),
    *("dispatch.epoch", "dispatch.release", "suspicion.marked", "suspicion.revoked", "change.put", "done.put"),
    *("letter.record", "letter.publish", "letter.published"),
    *("disk.write", "disk.sync", "disk.synced", "disk.rename", "disk.remove"),  # the simulation's own
)
"""The fail points that a broker comes to while it serves, recovers, or changes segments."""
KINDS = (
    *("kill", "kill", "pause", "stall", "mute", "cut", "cut one way", "loss", "late calls", "repeats"),
    *("slow store", "late puts", "lost puts", "store away", "coordination away", "late transactions"),
    *("lost transactions", "slow coordination", "watches", "lease", "clock"),
    *("cut from coordination", "outlawed", "outlawed", *RETURNS[:2]),
    *("power", "disk errors", "disk full", "slow disk", "restart", "restart"),
    *("double puts", "late watches", "compaction", "cut partly"),
)
AMONG = {"late change": "late transactions"}
"""Kinds that a choice of kinds has with others."""
OF_DISKS = ("disk errors", "disk full", "slow disk")
"""Kinds that strike file journals alone."""
UNPROMISED = ("late listings", "wrong 404", "lost object", "early end")
"""Kinds that no broker promises to survive (docs/operate/store.md): what goes wrong then must not be silent."""
EVERY = (*dict.fromkeys(KINDS), LOST_JOURNAL)
"""All kinds, and the one that is drawn for mirrored journals alone."""
KNOWN = {*EVERY, *UNPROMISED, *AMONG}
WORK = ("producer", "streams", "tail", "worker", "seeks", "payloads", "imports", "deletions", "retention")
"""The clients beside the usual ones. What all but the first three have done may be lost with coordination."""
AIMED = ("kill", "kill", "power", "pause", "cut", "lease", "outlawed", "outlawed")
SHARP = (
    *(("pause", place) for place in ("checkpoint.write", "slot.put", "entry.append", "move.flushed")),
    *(("pause", place) for place in ("commit.durable", "reshape.held", "reshape.sealed")),
    *(("kill", place) for place in ("slot.stored", "slot.delete", "journal.release", "flush.release", "move.given")),
    *(("kill", place) for place in ("checkpoint.written", "entry.appended")),
    *(("outlawed", place) for place in ("slot.put", "commit.append")),
)
"""Where mutants were not found by other faults (docs/internals/simulation.md)."""
TAKEN_OVER = ("kill", "power", "pause", "cut from coordination", "lease", "outlawed")
"""The kinds behind which others may take a broker's segments over. Some are followed by one that strikes there."""
FOLLOWING = (
    *(("pause", place) for place in ("fence.put", "fence.put", "fence.check", "leader.give", "recover.append")),
    *(("pause", place) for place in ("dispatch.epoch", "open.first", "takeover.recovered")),
    *(("kill", place) for place in ("recover.append", "recover.acks", "takeover.recovered", "takeover.remove")),
    *(("kill", place) for place in ("fence.check", "leader.give")),
    *(("outlawed", place) for place in ("recover.append", "leader.recover")),
)

REBUILDING = tuple(
    (kind, f"rebuild.{place}")
    for kind in ("kill", "pause", "outlawed")
    for place in ("generation", "announced", "saved", "replacing", "page", "replaced", "backed", "done")
)

MIRRORED = (
    *(("kill", place) for place in ("mirror.hold", "mirror.held", "mirrors.append", "mirrors.changed")),
    *(("kill", place) for place in ("mirrors.stored", "mirrors.closed", "mirrors.copied", "mirrors.decided")),
    *(("pause", place) for place in ("mirrors.append", "mirror.hold", "mirrors.change", "mirrors.closed")),
    *(("pause", place) for place in ("mirrors.fenced", "mirrors.copied", "mirror.held")),
    *(("cut from coordination", "mirrors.change"), ("outlawed", "mirror.hold"), ("outlawed", "mirrors.change")),
    *(("lost transactions", "mirrors.change"), ("late transactions", "mirrors.change")),
    *(("late change", "mirrors.change"), ("late change", "mirrors.change"), ("store away", "mirrors.copy")),
)
"""Further faults of a mirrored journal. In a late change its owner dies, or goes on."""
ACCEPTING = tuple(f"loss.{place}" for place in ("accept", "planned", "lower", "lowered", "renew", "ended"))
"""The fail points of an accepted loss."""

VERSIONS = (
    *(("kill", f"schema.{place}") for place in ("decided", "marked", "counted")),
    *((kind, f"schema.{place}") for kind in ("pause", "outlawed") for place in ("decided", "marked", "counted")),
    *(("store away", "schema.decided"), ("late puts", "schema.decided"), ("lost puts", "schema.decided")),
    *(("coordination away", "schema.marked"), ("lost transactions", "schema.marked")),
    *(("late transactions", "schema.marked"), ("watches", "schema.marked")),
    *(("late watches", "schema.decided"), ("late watches", "schema.counted"), ("late watches", "schema.counted")),
    *(("kill", "commit.durable"), ("kill", "entry.append"), ("kill", "letter.publish"), ("kill", "change.put")),
)
"""Further faults of a topic whose schema changes."""
OF_WORK = {
    "seeks": tuple(f"seek.{place}" for place in ("begin", "begun", "cursors", "written")),
    "payloads": (
        *(f"upload.{place}" for place in ("begun", "recorded", "stored", "removed", "cleared")),
        *("claim.checked", "claim.published"),
    ),
    "imports": (
        *(f"import.{place}" for place in ("claimed", "checking", "running", "batch", "done")),
        *(f"write.{place}" for place in ("listed", "claimed", "checking", "counted", "running", "batch", "done")),
    ),
    "deletions": (
        *(f"create.{place}" for place in ("allocated", "segments", "record", "made")),
        *(f"delete.{place}" for place in ("files", "file", "records", "record")),
        *("subscribe.cursors", "subscribe.record", "unsubscribe.record", "unsubscribe.cursors"),
    ),
    "retention": tuple(
        f"retention.{place}"
        for place in ("number", "numbered", "marked", "raise", "raised", "deleted", "bury", "buried", "cursors")
    ),
}
"""The fail points that brokers come to by the work of clients beside the usual ones."""


@dataclass(frozen=True)
class Fault:
    """A fault that begins at `at_s` and lasts `for_s`. With a `place` it begins when the broker comes to that fail
    point for the `turn`th time from `at_s` on; `broker` -1 is any of them."""

    kind: str
    at_s: float
    for_s: float
    broker: int = 0
    amount: float = 0.0
    place: str = ""
    turn: int = 1


@dataclass(frozen=True)
class Plan:
    """All that a run does follows from it."""

    seed: int
    length_s: float = 120.0
    journal: str = "object"
    machines: int = 1  # with one, brokers reach one another's disks
    knobs: dict[str, Any] = field(default_factory=dict)
    publishers: int = 4
    consumers: tuple[str, ...] = ("ordered", "keyed", "shared")  # a subscription each, by mode
    readers: int = 1
    reshapes: bool = True
    crew: int = 1  # consumers of a subscription
    others: tuple[str, ...] = ()  # of world.OTHERS
    calls_per_s: float = 1.0  # of each client
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError for a kind of fault that there is not."""
        found = json.loads(text)
        faults = tuple(Fault(**one) for one in found.pop("faults"))
        if strange := {one.kind for one in faults} - KNOWN:
            raise ValueError(f"there are no faults of the kinds {sorted(strange)}")
        names = {name: tuple(found.get(name, ())) for name in ("consumers", "others")}
        return cls(**{**found, **names, "faults": faults})

    def summary(self) -> list[str]:
        """The kinds and places of the faults."""
        return [f"{fault.kind} at {fault.place}" if fault.place else fault.kind for fault in self.faults]

    def lines(self) -> Iterator[str]:
        """The faults, one a line."""
        for fault in self.faults:
            where = f" at {fault.place}, turn {fault.turn}" if fault.place else ""
            whose = f"b{fault.broker}" if fault.broker >= 0 else "any broker"
            yield f"{fault.at_s:8.3f} s  {fault.kind} of {whose}{where}, {fault.for_s:.3f} s"


def draw(
    seed: int,
    length_s: float = 120.0,
    gap_s: float = 6.0,
    kinds: Sequence[str] = EVERY,
    goes_back: bool = False,
    journal: str = "",
    typed: bool = False,
) -> Plan:
    """The plan of a seed: a fault each `gap_s`, half of them aimed. In a quarter of the seeds, or in this one,
    coordination `goes_back`; in none with a `journal` that is given as `mirrored`. A fifth of the others, or this one,
    which goes back in no case then, has a `typed` topic whose schema changes."""
    rng = random.Random(f"plan {seed}")
    goes_back |= rng.random() < 0.25  # acks from around it may be forgotten, so cursors are judged less
    goes_back &= journal != "mirrored" and not typed
    faults = tuple(fault for fault in _faults(rng, length_s, gap_s, goes_back) if fault.kind in kinds)
    is_storm = rng.random() < 0.2  # moves and splits with commits under way, and nothing else
    drawn = knobs.draw(rng)
    any_journal = rng.choice(["object", "object" if goes_back else "mirrored", "file"])
    journal = journal or any_journal
    machines = rng.choice([1, BROKERS])
    if journal == "mirrored":
        machines = BROKERS  # not all memory is lost at once
        of_mirrors = random.Random(f"mirrors {seed}")
        drawn |= {name: of_mirrors.choice(values) for name, values in knobs.MIRRORS.items()}
        more = [*_on_mirrors(of_mirrors, length_s)]
        if of_mirrors.random() < 0.2 and not typed:
            at_s = of_mirrors.uniform(10, max(12, length_s - 30))
            more.append(Fault(LOST_JOURNAL, at_s, _time(of_mirrors), of_mirrors.randrange(BROKERS)))
            more.append(Fault("kill", at_s, _time(of_mirrors), -1, 0.0, of_mirrors.choice(ACCEPTING)))
        faults += tuple(fault for fault in more if AMONG.get(fault.kind, fault.kind) in kinds)
    goes_back |= any(fault.kind == LOST_JOURNAL for fault in faults)  # for the clients
    of_versions = random.Random(f"versions {seed}")
    is_typed = not goes_back and (typed or of_versions.random() < 0.2)
    if is_typed:
        faults += tuple(fault for fault in _on_versions(of_versions, length_s) if fault.kind in kinds)
    plan = Plan(
        seed,
        length_s,
        knobs=drawn,
        journal=journal,
        machines=machines,
        calls_per_s=rng.choice([8.0] if is_storm else [0.5, 1.0, 2.0]),
        publishers=rng.choice([2, 4, 6, 9]),
        consumers=tuple(rng.sample(("ordered", "keyed", "shared"), 0 if is_storm else rng.randint(0, 3))),
        readers=rng.randint(0, 2),
        reshapes=rng.random() < 0.7,
        crew=rng.choice([1, 2, 3]),
        others=tuple(rng.sample(WORK[:3] if goes_back else WORK, 0 if is_storm else rng.choice([0, 1, 2, 3]))),
        faults=faults,
    )
    if is_typed:
        few = {"publishers": 2, "consumers": plan.consumers[:1], "readers": 0, "reshapes": False, "others": ("typed",)}
        plan = replace(plan, calls_per_s=of_versions.choice([0.5, 1.0]), **few)
    of_work = random.Random(f"work {seed}")
    if "retention" in plan.others:
        drawn |= {name: of_work.choice(values) for name, values in knobs.RETENTION.items()}
    later = [*_on_work(of_work, plan.others, length_s)]
    if asked := [kind for kind in kinds if kind in UNPROMISED]:
        later += _unpromised(random.Random(f"unpromised {seed}"), asked, length_s)
    faults = plan.faults + tuple(fault for fault in later if fault.kind in kinds)
    return replace(plan, faults=tuple(one for one in faults if journal == "file" or one.kind not in OF_DISKS))


def _on_work(rng: random.Random, others: Sequence[str], length_s: float) -> Iterator[Fault]:
    for work in (one for one in others if one in OF_WORK):
        at_s = 3.0
        while (at_s := at_s + rng.expovariate(0.05)) < length_s - 10:
            kind, place = rng.choice(("kill", "kill", "pause", "outlawed")), rng.choice(OF_WORK[work])
            yield Fault(kind, at_s, _time(rng), -1, rng.random(), place, rng.choice([1, 1, 2]))
            if rng.random() < 0.3:  # who takes the work over, too
                yield Fault("kill", at_s, _time(rng), -1, 0.0, rng.choice(OF_WORK[work]))


def _on_versions(rng: random.Random, length_s: float) -> Iterator[Fault]:
    at_s = 5.0
    while (at_s := at_s + rng.expovariate(0.15)) < length_s - 10:
        kind, place = rng.choice(VERSIONS)
        yield Fault(kind, at_s, _time(rng), -1, rng.random(), place, rng.choice([1, 1, 2]))
        if kind in TAKEN_OVER and rng.random() < 0.3:  # the one who ends the change, too
            yield Fault("kill", at_s, _time(rng), -1, 0.0, rng.choice(["schema.marked", "schema.counted"]), 1)


def _faults(rng: random.Random, length_s: float, gap_s: float, goes_back: bool) -> Iterator[Fault]:
    if goes_back:
        at_s = rng.uniform(5, max(8, length_s - 30))  # the rebuild comes before the end
        yield Fault(rng.choice(RETURNS[:2]), at_s, _time(rng), rng.randrange(BROKERS))
        kind, place = rng.choice(REBUILDING)
        yield Fault(kind, at_s, _time(rng), -1, 0.0, place)
    at_s = 5.0
    while (at_s := at_s + rng.expovariate(1 / gap_s)) < length_s - 10:
        is_aimed, is_sharp = rng.random() < 0.5, rng.random() < 0.4
        kind, place = rng.choice(AIMED if is_aimed else KINDS), rng.choice(AIMS)
        if is_aimed and is_sharp:
            kind, place = rng.choice(SHARP)
        if kind in RETURNS and not goes_back:
            kind = "kill"
        turn, broker, for_s, amount = rng.choice([1, 1, 1, 2, 3, 10]), rng.randrange(BROKERS), _time(rng), rng.random()
        if is_aimed:
            yield Fault(kind, at_s, for_s, -1, amount, place, turn)
        else:
            yield Fault(kind, at_s, for_s, broker, amount)
            if kind == "restart" and amount < 0.4:  # of all, one after the other
                later = ((n, at_s + n * (for_s + REJOINS_S)) for n in range(1, BROKERS))
                yield from (Fault(kind, at, for_s, (broker + n) % BROKERS) for n, at in later if at < length_s - 10)
        if kind in TAKEN_OVER and rng.random() < 0.4:
            kind, place = rng.choice(FOLLOWING)
            yield Fault(kind, at_s, rng.choice([rng.uniform(0.3, 1), _time(rng)]), -1, amount, place)
        if place == "checkpoint.write":  # what it writes late counts for whoever takes over next
            yield Fault("kill", at_s + for_s, _time(rng), -1, 0.0, "commit.append")


def _on_mirrors(rng: random.Random, length_s: float) -> Iterator[Fault]:
    at_s = 8.0
    while (at_s := at_s + rng.expovariate(0.1)) < length_s - 10:
        if rng.random() < 0.5:
            kind, place = rng.choice(MIRRORED)
            yield Fault(kind, at_s, _time(rng), -1, rng.random(), place, rng.choice([1, 1, 2, 10]))
            if kind == "late change":  # since a mirror stands still; it lands behind the look of the recovery
                looked = rng.choice(["mirrors.closed", "mirrors.fenced"])
                yield Fault("store away", at_s - 0.5, 4.0)
                yield Fault("pause", at_s, 4.0, rng.randrange(BROKERS))
                yield Fault("pause", at_s, rng.uniform(2, 6), -1, 0.0, looked)
            continue
        slow, silent, owner = rng.sample(range(BROKERS), BROKERS)
        for_s = rng.choice([0.4, 0.8])  # within the patience, or beyond
        if rng.random() < 0.5:
            yield Fault("store away", at_s - 1, rng.uniform(3, 5), slow)  # all is in memory alone
        kind, hit = rng.choice([("cut", slow), ("cut", owner), ("kill", slow)])  # one mirror lacks some, or both do
        yield Fault(kind, at_s, for_s, hit)
        yield Fault("pause", at_s + for_s + 0.05, rng.uniform(3, 20), silent)  # the other one does not answer
        yield Fault("kill", at_s + for_s + rng.choice([0, 0.1, 1.7]), _time(rng), owner)


def _unpromised(rng: random.Random, kinds: Sequence[str], length_s: float) -> Iterator[Fault]:
    at_s = 5.0
    while (at_s := at_s + rng.expovariate(1 / 8)) < length_s - 5:
        yield Fault(rng.choice(kinds), at_s, _time(rng), rng.randrange(BROKERS), rng.random())


def _time(rng: random.Random) -> float:
    return rng.choice([rng.uniform(0.2, 3), rng.uniform(3, 20)])


def shrunk(plan: Plan, fails: Callable[[Plan], bool], tries: int = 200) -> Plan:
    """A smaller plan that fails as well, by at most so many runs: the shorter it is, the cheaper they are."""
    left = tries

    def still(one: Plan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(one)

    plan = _shorter(plan, still)
    size = max(1, len(plan.faults) // 2)
    while size and plan.faults:
        at = 0
        while at < len(plan.faults):
            if still(smaller := replace(plan, faults=plan.faults[:at] + plan.faults[at + size :])):
                plan = smaller
            else:
                at += size
        size //= 2
    for change in _smaller(plan):
        if still(one := replace(plan, **change)):
            plan = one
    return _shorter(plan, still)


def _shorter(plan: Plan, still: Callable[[Plan], bool]) -> Plan:
    for part in (0.25, 0.5, 0.75, 0.9):
        while (length_s := plan.length_s * part) >= SHORTEST_S:
            one = replace(
                plan, length_s=length_s, faults=tuple(fault for fault in plan.faults if fault.at_s < length_s)
            )
            if not still(one):
                break
            plan = one
    return plan


def _smaller(plan: Plan) -> Iterator[dict[str, Any]]:
    yield {"reshapes": False, "readers": 0, "others": ()}
    yield {"reshapes": False}
    for others in [tuple(other for other in plan.others if other != one) for one in plan.others]:
        yield {"others": others, "readers": 0}
    yield {"crew": 1}
    for mode in plan.consumers if len(plan.consumers) > 1 else ():
        yield {"consumers": (mode,)}
    yield {"consumers": ()}
    for count in (4, 2, 1):
        if count < plan.publishers:
            yield {"publishers": count}
    yield {"knobs": {name: value for name, value in plan.knobs.items() if name in knobs.SETTINGS}}
