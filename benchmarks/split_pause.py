"""Splits and merges by hand at one broker on a local folder, under plain and idempotent producers of single messages
and of small batches: how long a range of keys takes nothing, and how many publishes fail."""

from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks import server
from benchmarks.changing import ROWS, Seen, watch_changes
from benchmarks.quantiles import quantile
from benchmarks.result import Result

COUNT, CONNECTIONS = 60, 12
TARGET_MS = 200.0
SHARES = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))


def measure(folder: Path) -> Iterator[Result]:
    """As many merges as splits."""
    with server.broker(folder / "data") as broker:
        seen = uvloop.run(watch_changes([broker.port], CONNECTIONS, COUNT))
    yield from results("split pause", seen, CONNECTIONS, TARGET_MS)


def results(name: str, seen: Seen, connections: int, target_ms: float, note: str = "") -> Iterator[Result]:
    """Pauses and longest publishes, beside the same where nothing changes; the target holds at p99."""
    rate = len(seen.publishes) / (seen.publishes[-1].ended - seen.publishes[0].began)
    note = (
        f"{len(seen.changes) // 2} splits and as many merges, {connections} connections with {rate:.0f} requests/s "
        f"of 1 and of {ROWS} messages{note}"
    )
    for what, of in (("", seen.pauses_ms), (", longest publish", seen.longest_ms)):
        figures, calm = of(seen.changes), of(seen.calm)
        for share, part in SHARES:
            yield Result(
                name=f"{name}{what}, {share}",
                figure=quantile(figures, part),
                unit="ms",
                limit=quantile(calm, part),
                limit_is="the same where nothing changes",
                target=target_ms if share == "p99" else None,
                better="lower",
                note=note,
            )
    yield Result(
        name=f"{name}, errors",
        figure=len(seen.errors),
        unit="",
        target=0,
        better="lower",
        note="; ".join(seen.errors[:3]),
    )
