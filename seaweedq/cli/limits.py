"""Finds what limits a bench: how much of each resource the run used. The verdict is a pure function.

A share relates to what one unit can do. The client is a single Python process, which uses one core at a time, as does
most of a broker. Journal commits happen one after another, so the time spent in commits is also a share of the run."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from seaweedq.cli.shared.broker_metrics import metrics_text, samples_of
from seaweedq.cli.shared.common import run
from seaweedq.client.core.calls import call

NEAR = 0.8  # the share from which on a resource limits
CPU = "process_cpu_seconds_total"
COMMITS = "seaweedq_commit_duration_seconds"
PUTS = "seaweedq_store_request_duration_seconds"
JOURNAL_PUTS = "seaweedq_journal_puts_total"
HINTS = {
    "client CPU": "run a second bench in parallel, or use larger values",
    "broker CPU": "to use more cores, run more brokers, and use a topic with more segments",
    "machine CPU": "run the bench on a machine without the broker or other programs",
    "disk sync": "use a faster disk, or send more messages per request",
    "journal puts": "use a store that is closer, or send more messages per request",
    "store puts": "use a store that is closer, or write larger files (flush_max_bytes)",
}


@dataclass(frozen=True, slots=True)
class Look:
    """Counters at one moment: CPU seconds of this process, busy and total seconds of the machine's cores (None unless
    on Linux), and the metrics of each broker by id."""

    client_s: float
    machine_s: tuple[float, float] | None
    brokers: Mapping[str, Mapping[str, float]]


class Limit(msgspec.Struct, frozen=True):
    """How much of a resource a run used; 1 is all of the resource."""

    limit: str
    share: float
    measured: str


def look(url: str) -> Look:
    """Reads the counters of this process, this machine and each broker. Raises SeaweedqError if a broker does not
    answer."""
    brokers = run(url, call("GET", "/v1/cluster"))["brokers"]
    found = {str(one["id"]): samples_of(metrics_text(url, str(one["url"]))) for one in brokers}
    return Look(time.process_time(), _machine(), found)


def _machine() -> tuple[float, float] | None:
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        ticks = [int(one) for one in first[1:9]]  # user, nice, system, idle, iowait, irq, softirq, steal
    except (OSError, ValueError):
        return None
    per_s = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / per_s, sum(ticks) / per_s


def limits(before: Look, after: Look, seconds: float) -> list[Limit]:
    """Returns the shares for a run of this many seconds, the largest first. If there are several brokers, the busiest
    counts."""
    found = [_cores("client CPU", after.client_s - before.client_s, seconds, "of one Python process")]
    if before.machine_s and after.machine_s:
        busy_s, all_s = (new - old for old, new in zip(before.machine_s, after.machine_s, strict=True))
        share, cores = min(1.0, busy_s / max(all_s, 1e-9)), os.cpu_count() or 1
        found.append(Limit("machine CPU", share, f"{share * cores:.2f} of {cores} cores, by all programs"))
    for broker, now in after.brokers.items():
        passed = {name: value - before.brokers.get(broker, {}).get(name, 0.0) for name, value in now.items()}
        found += _of_broker(broker, passed, seconds)
    busiest: dict[str, Limit] = {}
    for one in found:
        if one.limit not in busiest or one.share > busiest[one.limit].share:
            busiest[one.limit] = one
    return sorted(busiest.values(), key=lambda one: -one.share)


def _of_broker(broker: str, passed: Mapping[str, float], seconds: float) -> list[Limit]:
    found = [_cores("broker CPU", passed[CPU], seconds, broker)] if CPU in passed else []
    journal = "journal puts" if passed.get(JOURNAL_PUTS) else "disk sync"
    for name, family, thing in ((journal, COMMITS, "commits"), ("store puts", PUTS, "puts")):
        label = '{outcome="ok"}' if family is COMMITS else '{operation="create",outcome="ok"}'
        count, total_s = passed.get(f"{family}_count{label}", 0.0), passed.get(f"{family}_sum{label}", 0.0)
        if count:
            told = f"{count:,.0f} {thing}, {total_s / count * 1e3:.1f} ms each, {broker}"
            found.append(Limit(name, min(1.0, total_s / seconds), told))
    return found


def _cores(name: str, cpu_s: float, seconds: float, whose: str) -> Limit:
    return Limit(name, cpu_s / seconds, f"{cpu_s / seconds:.2f} cores, {whose}")


def verdict(found: Sequence[Limit], is_rate_kept: bool) -> str:
    """Describes what limits a run, given the shares, the largest first."""
    if is_rate_kept:
        return "limited by --rate, which the run reached"
    near = [one for one in found if one.share >= NEAR]
    if not near:
        return "no resource is near its limit, and each request waits for the previous one; try more --producers"
    cpu = [one for one in near if one.limit.endswith("CPU")]
    first = (cpu or near)[0]  # commits follow one another closely behind a busy CPU, too
    return f"limited by {first.limit} ({first.measured}): {HINTS[first.limit]}"
