"""The budget of an object journal's puts beside a linger: how long an append takes, and how many puts it costs.

The store's put takes a fixed time, which is what makes runs comparable; the group commit and the journal are the
broker's own. Burst is used up before each measurement but the first, so that what lasts is measured. The limit is a
model: who comes at any moment of a pace waits for half of it on average, all of it at most, and then for the put.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter

import uvloop

from benchmarks.object_journal import LINGER_MAX_S, LINGER_S, WINDOW, SlowStore
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.journal.object_format import SlotHeaders
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.journal.pacing import BURST, Pace
from seaweedq.levels import HIGHEST
from seaweedq.segments.frames import Frame, FrameKind

PUTS_MS = (3, 30, 100)
PACES = {
    "linger": Pace(WINDOW, LINGER_S, LINGER_MAX_S),
    "0": Pace(WINDOW),
    "20": Pace(WINDOW, puts_per_s=20),
    "8": Pace(WINDOW, puts_per_s=8),
}
ALONE_S, TOGETHER_S = 3, 60
BROKERS = 3
NUMBERS = count()
MB_PER_S, SIZE = (1, 10), 8192  # bytes of a message at 1 MB/s


@dataclass
class Measured:
    """Seconds from an append to its answer, and the puts of all journals together."""

    took_s: list[float] = field(default_factory=list)
    puts: int = 0

    def quantile_ms(self, share: float) -> float:
        """Returns the time that so many of the appends took at most."""
        return 1000 * quantile(self.took_s, share)


async def commits(
    put_ms: float, pace: Pace, use: Callable[[GroupCommit, Measured], Awaitable[None]], *, is_fresh: bool = False
) -> Measured:
    """Runs a group commit over a store of that put, as long as `use` does."""
    clock, measured = SystemClock(), Measured()
    headers = SlotHeaders(f"b{next(NUMBERS)}", SystemIds(), lambda: HIGHEST)
    journal = ObjectJournal(SlowStore(put_ms / 1000), headers, clock, pace)
    for _ in range(0 if is_fresh else BURST):
        journal.budget.spend(clock.monotonic_s())
    before = journal.budget.puts
    commit = GroupCommit(journal, clock, lambda: True)
    running = asyncio.create_task(commit.run())
    releasing = asyncio.create_task(_release(commit, journal))
    await use(commit, measured)
    await commit.wait_until_idle()
    measured.puts = journal.budget.puts - before
    for task in (running, releasing):
        task.cancel()
    await asyncio.gather(running, releasing, return_exceptions=True)
    await journal.close()
    return measured


async def _release(commit: GroupCommit, journal: ObjectJournal) -> None:
    while True:
        await asyncio.sleep(0.2)
        journal.release(commit.committed + 1)


async def _append(commit: GroupCommit, measured: Measured, size: int) -> None:
    begun = perf_counter()
    await commit.append_frame(Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, bytes(size)))
    measured.took_s.append(perf_counter() - begun)


async def one_alone(commit: GroupCommit, measured: Measured) -> None:
    """One publisher that waits for each answer."""
    end = perf_counter() + ALONE_S
    while perf_counter() < end:
        await _append(commit, measured, 100)


def steady(publishers: int, per_s: float, size: int) -> Callable[[GroupCommit, Measured], Awaitable[None]]:
    """Publishers that come at moments of chance, each `per_s` times a second, and wait for no answer."""

    async def use(commit: GroupCommit, measured: Measured) -> None:
        end = perf_counter() + TOGETHER_S
        async with asyncio.TaskGroup() as group:

            async def publisher() -> None:
                while perf_counter() < end:
                    await asyncio.sleep(random.expovariate(per_s))
                    group.create_task(_append(commit, measured, size))

            for _ in range(publishers):
                group.create_task(publisher())

    return use


async def alone() -> list[Result]:
    """One publisher after another, each on a journal of its own."""
    found = []
    for put_ms in PUTS_MS:
        for name, pace in PACES.items():
            if name != "20":
                figure = (await commits(put_ms, pace, one_alone, is_fresh=True)).quantile_ms(0.5)
                found.append(_result(f"one alone, puts of {put_ms} ms, {name}", figure, put_ms, put_ms + 2, "p50"))
    beyond = (await commits(3, PACES["8"], one_alone)).quantile_ms(0.5)
    pace_ms = 1000 / PACES["8"].puts_per_s
    return [*found, _result("one alone beyond the burst, puts of 3 ms, 8", beyond, pace_ms, None, "p50")]


async def twenty(put_ms: int, name: str) -> list[Result]:
    """Twenty publishers of five messages a second each."""
    measured = await commits(put_ms, PACES[name], steady(20, 5, 100))
    half_ms = LINGER_S * 500 if name == "linger" else 500 / PACES[name].puts_per_s
    p50, p99 = {"linger": (None, None), "20": (30, 60), "8": (70, 135)}[name]
    title = f"20 of 5/s, puts of {put_ms} ms, {name}"
    return [
        _result(title, measured.quantile_ms(0.5), put_ms + half_ms, p50 and put_ms + p50, "p50"),
        _result(title, measured.quantile_ms(0.99), put_ms + 2 * half_ms, p99 and put_ms + p99, "p99"),
    ]


async def loaded(put_ms: int, mb_per_s: int) -> list[Result]:
    """So many MB a second over three brokers, at 8 puts a second each."""
    use = steady(4, 1e6 / BROKERS / SIZE / 4, SIZE * mb_per_s)
    brokers = await asyncio.gather(*(commits(put_ms, PACES["8"], use) for _ in range(BROKERS)))
    budget = BROKERS * PACES["8"].puts_per_s * TOGETHER_S
    title = f"{mb_per_s} MB/s over {BROKERS}, puts of {put_ms} ms, 8"
    all_of_them = Measured([took_s for one in brokers for took_s in one.took_s], sum(one.puts for one in brokers))
    return [
        _result(title, all_of_them.quantile_ms(0.5), put_ms + 500 / PACES["8"].puts_per_s, put_ms + 70, "p50"),
        Result(
            name=title,
            figure=all_of_them.puts,
            unit=f"puts in {TOGETHER_S} s",
            limit=budget,
            limit_is="the budget",
            target=1.1,
            target_of="ratio",
            better="lower",
        ),
    ]


def _result(name: str, figure: float, limit: float, target: float | None, what: str) -> Result:
    return Result(
        name=name,
        figure=figure,
        unit=f"ms ({what})",
        limit=limit,
        limit_is="the model: the put, and the pace's half (p50) or all of it (p99)",
        target=target,
        better="lower",
    )


async def _all() -> list[Result]:
    found = await alone()
    for jobs in (
        [twenty(put_ms, name) for put_ms in PUTS_MS for name in PACES if name != "0"],
        [loaded(put_ms, mb_per_s) for put_ms in PUTS_MS for mb_per_s in MB_PER_S],
    ):
        found += [result for results in await asyncio.gather(*jobs) for result in results]
    return found


def measure(where: Path) -> Iterator[Result]:
    """One publisher alone, twenty, and a cluster under steady load; stores of three put times."""
    yield from uvloop.run(_all())
