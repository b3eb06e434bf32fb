"""One round of the balancer on 1,000 brokers, in this process: what to split and merge, and what to move; for clusters
that grow from 1,000 to 100,000 segments, where little is to be done, where all are idle, and under a flood."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from benchmarks.placement import HOSTS, TARGET_S, best_s
from benchmarks.result import Result
from seaweedq.balancer.load import BINS, SegmentLoad, costs
from seaweedq.balancer.placement import SegmentId, TopicId, assign, moves
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.balancer.scaling import Segment, decide
from seaweedq.segments.keyrange import tile

SIZES, LIMIT, TOPIC = (1_000, 3_000, 10_000, 30_000, 100_000), 64, 10
RATES = {"steady": (0.6, 0.9), "all idle": (0.0, 0.0), "a flood": (0.1, 30.0)}
"""Of the target, the lowest and the highest."""


def measure(folder: Path) -> Iterator[Result]:
    """Each kind of round at each size, the best of three. Nothing is written."""
    for name, (low, high) in RATES.items():
        for size in SIZES:
            yield _round(name, size, low, high)


def _round(name: str, size: int, low: float, high: float) -> Result:
    random, policy, ranges = Random(7), ScalingPolicy(), tile(TOPIC)
    ids: list[SegmentId] = [(f"topic-{number // TOPIC}", 0, number % TOPIC) for number in range(size)]
    loads = {segment: _load(policy, random.uniform(low, high), random) for segment in ids}
    owned = assign(ids, {}, costs(loads), HOSTS)
    segments = [Segment(each, ranges[each[2]], owned[each], 3600.0, loads[each]) for each in ids]
    policies: dict[TopicId, ScalingPolicy] = {each[:2]: policy for each in ids}

    def work() -> None:
        counted = costs(loads)
        decide(segments, policies, counted, HOSTS, LIMIT)
        moves(owned, counted, HOSTS, LIMIT)

    return Result(
        name=f"scaling: {name}, {size:,} segments",
        figure=best_s(work),
        unit="s",
        target=TARGET_S,
        better="lower",
        note=f"splits, merges and moves of one round on {len(HOSTS):,} brokers",
    )


def _load(policy: ScalingPolicy, rate: float, random: Random) -> SegmentLoad:
    """A segment that has long taken `rate` times the target."""
    messages, size = (rate * policy.target_messages_per_s,) * 4, (rate * policy.target_bytes_per_s / 2,) * 4
    bins = tuple(random.random() for _ in range(BINS)) if rate > 1 else ()
    return SegmentLoad(messages, size, messages, size, 3600.0, bins)
