"""One topic in simulated time: keys with weights, a load over time, brokers; the leader's rounds, and what they do."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from seaweedq.balancer.load import LoadMeter, SegmentLoad, costs
from seaweedq.balancer.placement import Host, SegmentId, moves
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.scaling import Gather, HotKey, Merge, Plan, Segment, Split, decide
from seaweedq.segments.keyrange import KeyRange, tile, tiles_key_space

TARGET = 1000
SAMPLE = 32
SETTLED_S = 30.0
TOPIC = ("t", 0)


@dataclass
class Live:
    """An open segment, and its keys as positions among all."""

    id: SegmentId
    range: KeyRange
    owner: str
    created_s: float
    keys: slice
    meter: LoadMeter
    earlier: SegmentLoad = field(default_factory=SegmentLoad)
    moved_s: float = float("-inf")
    locked: bool = False
    becomes: float = 1.0
    made_by: str = "start"

    def load(self, cool_down_s: float) -> SegmentLoad:
        return self.meter.load().following(self.earlier, cool_down_s)


@dataclass
class World:
    """`hashes` of the keys rise; `weights` are their shares of the load. Rates are multiples of the target."""

    hashes: np.ndarray
    weights: np.ndarray
    policy: ScalingPolicy = field(default_factory=lambda: ScalingPolicy(target_messages_per_s=TARGET))
    initial: int = 1
    brokers: int = 4
    noise: float = 0.05
    seed: int = 7

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.below = np.concatenate([[0.0], np.cumsum(self.weights)]) / self.weights.sum()
        self.hosts = [Host(f"b{number}", f"z{number % 2}") for number in range(self.brokers)]
        self.now_s = 0.0
        self.next = 0
        self.done: list[tuple[float, str]] = []
        self.lives: list[tuple[str, str, float]] = []
        self.hot: set[int] = set()
        self.most = self.initial
        self.waiting: list[Plan] = []
        self.live: dict[SegmentId, Live] = {}
        for number, each in enumerate(tile(self.initial)):
            self.open(each, self.hosts[number % self.brokers].broker)

    def open(self, key_range: KeyRange, owner: str, made_by: str = "start") -> None:
        ends = np.searchsorted(self.hashes, [key_range.low, key_range.high]).tolist()
        made = Live((*TOPIC, self.next), key_range, owner, self.now_s, slice(*ends), LoadMeter(key_range))
        made.made_by = made_by
        self.next += 1
        self.live[made.id] = made

    def close(self, segment: SegmentId, by: str) -> Live:
        closed = self.live.pop(segment)
        self.lives.append((closed.made_by, by, self.now_s - closed.created_s))
        return closed

    def run(self, seconds: float, step_s: float, rate: Callable[[float], float]) -> None:
        """Let time pass, with a round each step; what a round wants is done a step later."""
        sys.audit("tests.simulation")
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            for each in self.live.values():
                self.observe(each, rate(self.now_s), step_s)
            plans, self.waiting = self.waiting, []
            for plan in plans:
                self.carry_out(plan)
            assert tiles_key_space(each.range for each in self.live.values())
            assert min(self.initial, self.policy.min_segments) <= len(self.live) <= self.policy.max_segments
            self.most = max(self.most, len(self.live))
            self.round()

    def observe(self, segment: Live, rate: float, step_s: float) -> None:
        low, high = self.below[segment.keys.start], self.below[segment.keys.stop]
        expected = rate * TARGET * (high - low) * step_s
        count = max(round(expected * (1 + self.noise * self.random.standard_normal())), 0)
        if count:
            drawn = low + self.random.random(SAMPLE) * (high - low)
            at = np.clip(np.searchsorted(self.below, drawn, side="right") - 1, 0, len(self.hashes) - 1)
            segment.meter.sample(self.hashes[at], count)
        segment.meter.tick(count, 100 * count, step_s, self.policy.cool_down_s)

    def round(self) -> None:
        segments = [
            Segment(
                s.id, s.range, s.owner, self.now_s - s.created_s, s.load(self.policy.cool_down_s), s.locked, s.becomes
            )
            for s in self.live.values()
        ]
        loads = costs({each.id: each.load for each in segments if each.load})
        for plan in decide(segments, {TOPIC: self.policy}, loads, self.hosts, 16):
            if isinstance(plan, HotKey):
                self.hot.add(plan.hash)
                continue
            self.waiting.append(plan)
            for each in touched(plan):
                self.live[each].locked = True
            if isinstance(plan, Split):
                self.live[plan.segment].becomes = len(plan.owners)
            elif isinstance(plan, Merge):
                self.live[plan.left].becomes = self.live[plan.right].becomes = 0.5
        owned = {each.id: each.owner for each in self.live.values()}
        for move in moves(owned, loads, self.hosts, 8, 0.3):
            moved = self.live[move.segment]
            if not moved.locked and self.now_s - moved.moved_s >= SETTLED_S:
                self.move(moved, move.target)
                self.done.append((self.now_s, "move"))

    def move(self, segment: Live, target: str) -> None:
        """Its new owner knows nothing of its load; the leader does."""
        segment.earlier, segment.meter = segment.load(self.policy.cool_down_s), LoadMeter(segment.range)
        segment.owner, segment.moved_s = target, self.now_s

    def carry_out(self, plan: Plan) -> None:
        self.done.append((self.now_s, type(plan).__name__.lower()))
        if isinstance(plan, Split):
            parent = self.close(plan.segment, "split")
            for part, owner in zip(parent.range.cut(plan.points), plan.owners, strict=True):
                self.open(part, owner, "split")
        elif isinstance(plan, Merge):
            left, right = self.close(plan.left, "merge"), self.close(plan.right, "merge")
            assert left.owner == right.owner
            self.open(KeyRange(left.range.low, right.range.high), left.owner, "merge")
        elif isinstance(plan, Gather):
            gathered = self.live[plan.segment]
            gathered.locked = self.live[plan.neighbour].locked = False
            self.move(gathered, plan.target)

    def shares(self) -> dict[SegmentId, float]:
        """Of the whole load, what each segment has."""
        return {e.id: float(self.below[e.keys.stop] - self.below[e.keys.start]) for e in self.live.values()}

    def uneven(self) -> float:
        """The largest segment's load, as a multiple of the mean."""
        return max(self.shares().values()) * len(self.live)

    def uneven_brokers(self) -> float:
        """The busiest broker's load, as a multiple of the mean."""
        loads: Counter[str] = Counter()
        for segment, share in self.shares().items():
            loads[self.live[segment].owner] += share  # type: ignore[assignment]
        return max(loads.values()) * self.brokers

    def count(self, kind: str, since_s: float = 0.0) -> int:
        return sum(1 for at, what in self.done if what == kind and at >= since_s)

    def even(self) -> None:
        """Once it has settled, none has more than twice the mean."""
        assert self.uneven() <= 2
        assert self.uneven_brokers() <= 2

    def settled(self, since_s: float, moves: int = 0) -> None:
        """Nothing was done any more."""
        later = [what for at, what in self.done if at > since_s]
        assert later.count("move") <= moves, later
        assert set(later) <= {"move"}, later

    def to_and_fro(self, within_s: float) -> int:
        """How often what was merged was split again soon."""
        return sum(made == "merge" and ended == "split" and life_s < within_s for made, ended, life_s in self.lives)

    def show(self, name: str) -> None:
        kinds = ", ".join(f"{self.count(kind)} {kind}s" for kind in ("split", "merge", "gather", "move"))
        print(
            f"\n{name}: {self.now_s / 3600:.1f} h, {kinds}, {self.initial} -> {self.most} -> {len(self.live)} segments,"
            f" {len(self.hot)} hot keys; most loaded: segment {self.uneven():.2f}, broker {self.uneven_brokers():.2f} "
            "times the mean"
        )


def touched(plan: Plan) -> tuple[SegmentId, ...]:
    if isinstance(plan, Merge):
        return plan.left, plan.right
    if isinstance(plan, Gather):
        return plan.segment, plan.neighbour
    return (plan.segment,)
