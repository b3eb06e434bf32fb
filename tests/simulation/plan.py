"""The plan of a simulated run, as data: its seed, its knobs, its clients, and its faults with their times.

A plan follows from a seed. One that has failed is shrunk (`shrunk`): fewer faults, fewer clients, shorter. It is JSON,
so that it can be kept as a test.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

BROKERS = 3
AIMS = (
    *("fence.put", "fence.check", "leader.give", "leader.recover", "leader.look", "recover.append", "recover.acks"),
    *("recover.mark", "takeover.revoke", "takeover.recovered", "takeover.remove", "takeover.removed", "open.first"),
    *("slot.put", "slot.stored", "slot.delete", "commit.append", "commit.durable", "commit.first", "batch"),
    *("entry.append", "entry.appended", "entry.encode", "flush.release", "journal.release", "mark.durable"),
    *("move.flushed", "move.given", "reshape.commit", "reshape.committed", "reshape.flushed", "reshape.held"),
    *("reshape.replaced", "reshape.resume", "reshape.sealed", "plan.write", "checkpoint.write", "checkpoint.written"),
    *("dispatch.epoch", "dispatch.release", "suspicion.marked", "suspicion.revoked", "change.put", "done.put"),
)
"""The fail points that a broker comes to while it serves, recovers, or changes segments."""
KINDS = (
    *("kill", "kill", "pause", "stall", "mute", "cut", "cut one way", "loss", "late calls", "repeats"),
    *("slow store", "late puts", "lost puts", "store away", "coordination away", "late transactions"),
    *("lost transactions", "slow coordination", "watches", "lease", "clock"),
    *("cut from coordination", "outlawed", "outlawed"),
)
AIMED = ("kill", "kill", "pause", "cut", "lease", "outlawed", "outlawed")


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
    knobs: dict[str, Any] = field(default_factory=dict)
    publishers: int = 4
    consumers: tuple[str, ...] = ("ordered", "keyed", "shared")  # a subscription each, by mode
    readers: int = 1
    reshapes: bool = True
    calls_per_s: float = 1.0  # of each client
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        faults = tuple(Fault(**one) for one in found.pop("faults"))
        return cls(**{**found, "consumers": tuple(found["consumers"]), "faults": faults})

    def lines(self) -> Iterator[str]:
        """The faults, one a line."""
        for fault in self.faults:
            where = f" at {fault.place}, turn {fault.turn}" if fault.place else ""
            whose = f"b{fault.broker}" if fault.broker >= 0 else "any broker"
            yield f"{fault.at_s:8.3f} s  {fault.kind} of {whose}{where}, {fault.for_s:.3f} s"


def draw(seed: int, length_s: float = 120.0, gap_s: float = 6.0, kinds: Sequence[str] = KINDS) -> Plan:
    """The plan of a seed: a fault each `gap_s`, half of them aimed."""
    rng = random.Random(f"plan {seed}")
    faults = []
    at_s = 5.0
    while (at_s := at_s + rng.expovariate(1 / gap_s)) < length_s - 10:
        aimed = rng.random() < 0.5
        kind = rng.choice(AIMED if aimed else KINDS)
        place, turn, broker = rng.choice(AIMS), rng.choice([1, 1, 1, 2, 3, 10]), rng.randrange(BROKERS)
        for_s, amount = rng.choice([rng.uniform(0.2, 3), rng.uniform(3, 20)]), rng.random()
        if kind in kinds:
            faults.append(
                Fault(kind, at_s, for_s, -1 if aimed else broker, amount, place if aimed else "", turn if aimed else 1)
            )
    knobs = {
        "lease_s": rng.choice([3.0, 5.0, 8.0]),
        "checkpoint_s": rng.choice([1.0, 3.0, 10.0]),
        "journal_window": rng.choice([1, 2, 4, 8]),
        "flush_max_age_s": rng.choice([1.0, 3.0, 30.0]),
        "flush_max_bytes": rng.choice([65_536, 1 << 20]),
        "publish_timeout_s": 15,
    }
    return Plan(
        seed,
        length_s,
        knobs=knobs,
        journal=rng.choice(["object", "object", "file"]),
        publishers=rng.randint(2, 6),
        consumers=tuple(rng.sample(("ordered", "keyed", "shared"), rng.randint(1, 3))),
        readers=rng.randint(0, 2),
        reshapes=rng.random() < 0.7,
        faults=tuple(faults),
    )


def shrunk(plan: Plan, fails: Callable[[Plan], bool], tries: int = 200) -> Plan:
    """A smaller plan that fails as well, by at most so many runs."""
    left = tries

    def still(one: Plan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(one)

    size = max(1, len(plan.faults) // 2)
    while size and plan.faults:
        at = 0
        while at < len(plan.faults):
            smaller = replace(plan, faults=plan.faults[:at] + plan.faults[at + size :])
            if still(smaller):
                plan = smaller
            else:
                at += size
        size //= 2
    for change in _smaller(plan):
        if still(one := replace(plan, **change)):
            plan = one
    while plan.length_s > 20 and still(one := replace(plan, length_s=plan.length_s * 0.7)):
        plan = one
    return plan


def _smaller(plan: Plan) -> Iterator[dict[str, Any]]:
    yield {"reshapes": False}
    yield {"readers": 0}
    for mode in plan.consumers:
        yield {"consumers": tuple(one for one in plan.consumers if one != mode)}
    yield {"consumers": ()}
    for count in (2, 1):
        yield {"publishers": count}
