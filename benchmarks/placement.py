"""One round of placement on 1,000 brokers, in this process: all segments homeless; one broker joins; one drains; loads
all over the place; and a balanced cluster, which is most rounds."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from benchmarks.result import Result
from seaweedq.balancer.placement import Host, SegmentId, assign, moves, successor_of

BROKERS, SIZES, TARGET_S, LIMIT = 1_000, (1_000, 100_000), 1.0, 1_000
HOSTS = [Host(f"broker-{number:04}", f"zone-{number % 3}") for number in range(BROKERS)]


def measure(folder: Path) -> Iterator[Result]:
    """Each decision, the best of three. Nothing is written."""
    for size in SIZES:
        yield from _rounds(size)
    took_s = best_s(lambda: [successor_of(f"{number}", HOSTS) for number in range(1_000)])
    yield _result("placement: dispatchers of 1,000 keys", took_s)


def _rounds(size: int) -> Iterator[Result]:
    random = Random(7)
    segments: list[SegmentId] = [(f"topic-{number // 10}", 0, number % 10) for number in range(size)]
    loads = {segment: random.paretovariate(1.5) for segment in segments if random.random() < 0.5}
    owned = assign(segments, {}, loads, HOSTS)
    joined = [*HOSTS, Host("broker-new", "zone-0")]
    drained = [Host("broker-0000", "zone-0", draining=True), *HOSTS[1:]]
    strewn = {segment: random.choice(HOSTS).broker for segment in segments}
    ways: dict[str, Callable[[], object]] = {
        "assign all": lambda: assign(segments, {}, loads, HOSTS),
        "balanced": lambda: moves(owned, loads, HOSTS, LIMIT),
        "a broker joins": lambda: moves(owned, loads, joined, LIMIT),
        "a broker drains": lambda: moves(owned, loads, drained, LIMIT),
        "at random": lambda: moves(strewn, loads, HOSTS, size),
    }
    for name, work in ways.items():
        yield _result(f"placement: {name}, {size:,} segments", best_s(work))


def _result(name: str, took_s: float) -> Result:
    return Result(
        name=name, figure=took_s, unit="s", target=TARGET_S, better="lower", note=f"one round on {BROKERS:,} brokers"
    )


def best_s(work: Callable[[], object]) -> float:
    """The shortest of three runs, in seconds of CPU: others may want the core as well."""
    times = []
    for _ in range(3):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times)
