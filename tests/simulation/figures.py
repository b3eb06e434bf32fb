"""`python -m tests.simulation.figures`: what a simulated second costs, in CPU time of one core."""

import asyncio
import multiprocessing
import os
import random
import resource
import time
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import Any

from tests.simulation import loop as loops
from tests.simulation import world
from tests.simulation.plan import BROKERS, Fault, Plan, draw
from tests.simulation.world import Outcome, simulate
from tests.support.brokers.simulated_loop import SimulatedLoop

KNOBS = {"lease_s": 5.0, "checkpoint_s": 3.0, "journal_window": 4, "publish_timeout_s": 15}
SETTLED_S = 600.0
BUSY = Plan(1, 300.0, knobs=KNOBS, publishers=5, consumers=("shared",), readers=0, reshapes=False, calls_per_s=4.0)
QUIET = replace(BUSY, publishers=0, consumers=())
CALLBACKS = 300_000


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Does it in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(work, arguments)


def good(plan: Plan) -> Outcome:
    """Runs a plan."""
    outcome: Outcome = apart(simulate, plan)
    if outcome.wrong:
        print(f"WRONG: {outcome.wrong[0][:300]}")
    return outcome


def speed(plan: Plan) -> str:
    """How many times as fast as real time a plan runs."""
    outcome = good(plan)
    requests = sum(outcome.requests.values()) / outcome.simulated_s
    cpu_s, speed = outcome.cpu_s, outcome.simulated_s / outcome.cpu_s
    return f"{speed:.0f} times real time ({cpu_s:.1f} s of CPU, {requests:.0f} requests a simulated second)"


def every(kind: str, gap_s: float, for_s: float, length_s: float) -> tuple[Fault, ...]:
    """One kind of fault, again and again."""
    rng, count = random.Random(kind), int(length_s / gap_s)
    return tuple(Fault(kind, at * gap_s, for_s, rng.randrange(BROKERS)) for at in range(1, count))


def idle() -> str:
    """The CPU of an idle broker."""
    short, long = good(QUIET), good(replace(QUIET, length_s=QUIET.length_s + SETTLED_S))
    return f"{(long.cpu_s - short.cpu_s) / SETTLED_S / BROKERS * 1000:.2f} ms a simulated second"


def deaths() -> str:
    """The CPU of a death, a start and a recovery."""
    light = replace(BUSY, publishers=1, consumers=(), calls_per_s=1.0)
    whole, killed = good(light), good(replace(light, faults=every("kill", 10.0, 1.0, light.length_s)))
    count = killed.starts - whole.starts
    return f"{(killed.cpu_s - whole.cpu_s) / count * 1000:.0f} ms, the mean of {count}"


def memory(length_s: float) -> tuple[Outcome, int]:
    """A run with many lives, and the memory at its peak in MiB."""
    plan = replace(BUSY, length_s=length_s, publishers=2, consumers=("shared",), calls_per_s=0.5)
    outcome = simulate(replace(plan, faults=every("kill", length_s / 500, 1.0, length_s)))
    return outcome, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _lives() -> loops.LivesLoop:
    return loops.LivesLoop(1)


def callbacks(make: Callable[[], asyncio.AbstractEventLoop], with_life: bool) -> float:
    """The CPU of a callback, in seconds."""
    loop = make()
    left = CALLBACKS

    def step() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(step)
        else:
            loop.stop()

    context = loops.Life("life").context if with_life else None
    loop.call_soon(step, context=context)
    began_s = time.process_time()
    loop.run_forever()
    return (time.process_time() - began_s) / CALLBACKS


class _Counted(loops.LivesLoop):
    """Counts its callbacks."""

    count = 0

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        _Counted.count += 1
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        _Counted.count += 1
        return super().call_at(when, callback, *args, context=context)


def counted(plan: Plan) -> tuple[float, int]:
    """The CPU of a run, and how many callbacks it has."""
    cpu_s = simulate(plan).cpu_s
    world.LivesLoop = _Counted  # type: ignore[misc]
    simulate(plan)
    return cpu_s, _Counted.count


def apartness() -> str:
    """The part of a run's CPU that holds lives apart."""
    plain_s = min(apart(callbacks, SimulatedLoop, False) for _ in range(3))
    lives_s = min(apart(callbacks, _lives, True) for _ in range(3))
    cpu_s, count = apart(counted, replace(BUSY, length_s=60.0))
    part = (lives_s - plain_s) * count / (cpu_s - (lives_s - plain_s) * count)
    return f"{100 * part:.0f}% ({1e6 * plain_s:.2f} and {1e6 * lives_s:.2f} µs a callback, {count} of them)"


def main() -> None:
    """Measures, and prints a line for each figure."""
    print(f"load {os.getloadavg()[0]:.0f}")
    pauses = replace(BUSY, publishers=10, consumers=(), calls_per_s=1.0, faults=every("pause", 15.0, 8.0, 300.0))
    print(f"20 publishes/s, a consumer that pulls and acks all, no faults: {speed(BUSY)}", flush=True)
    print(f"10 publishes/s without consumers, a pause each 15 s: {speed(pauses)}", flush=True)
    faults = draw(1, BUSY.length_s, 5.0).faults
    print(f"as the first, a fault each 5 s: {speed(replace(BUSY, faults=faults))}", flush=True)
    print(f"an idle broker: {idle()}", flush=True)
    print(f"a death, a start, a recovery: {deaths()}", flush=True)
    print(f"what the loop adds to hold lives apart: {apartness()}", flush=True)
    outcome, mib = apart(memory, 3600.0)
    print(f"memory after a simulated hour with {outcome.starts} lives: {mib} MiB, {outcome.cpu_s:.0f} s of CPU")


if __name__ == "__main__":
    main()
