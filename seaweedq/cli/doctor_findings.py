"""Findings of `seaweedq doctor`, and how they are judged. Pure."""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from seaweedq.cli.shared.common import counted

GIB = 1024**3
FEW_FILES = 4_096
LITTLE_SPACE = 2 * GIB
SLOW_FSYNC_S, SLOW_COORDINATION_S = 0.05, 0.25
CLOCK_S = 2.0  # stores and HTTP tell whole seconds


class Verdict(StrEnum):
    """The weight of a finding; `FAIL` makes the exit code 1."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and what is said of it."""

    verdict: Verdict
    what: str
    told: str


def files(limit: int, connections: int) -> Finding:
    """Judges the limit of open files, which lets a broker take so many connections."""
    if limit >= FEW_FILES:
        return Finding(Verdict.OK, "descriptors", f"{limit:,} files may be open")
    told = f"{limit:,} files may be open, enough for {counted(connections, 'connection')}; raise the limit (nofile)"
    return Finding(Verdict.WARN, "descriptors", told)


def space(free: int, folder: str) -> Finding:
    """Judges the free bytes of the data folder."""
    verdict = Verdict.OK if free >= LITTLE_SPACE else Verdict.WARN
    return Finding(verdict, "disk", f"{free / GIB:,.1f} GiB are free at {folder}")


def fsync(took_s: float) -> Finding:
    """Judges how long one fsync takes: each commit of the journal waits for one."""
    told = f"an fsync takes {took_s * 1000:.1f} ms"
    if took_s <= SLOW_FSYNC_S:
        return Finding(Verdict.OK, "fsync", told)
    return Finding(Verdict.WARN, "fsync", f"{told}; each commit of the journal waits for one")


def clock(where: str, ahead_s: float) -> Finding:
    """Judges the clock here beside another one: how far this one is ahead."""
    if abs(ahead_s) <= CLOCK_S:
        return Finding(Verdict.OK, "clock", f"as that of {where}, to {CLOCK_S:g} s")
    told = f"{abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of {where}"
    return Finding(Verdict.WARN, "clock", f"{told}; timestamps and what expires go by it")


def ahead_s(now_s: float, date: str) -> float | None:
    """Returns how far a clock is ahead of a Date header; None for one that is none."""
    try:
        return now_s - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def coordination(where: str, took_s: float) -> Finding:
    """Judges how long coordination takes to answer."""
    verdict = Verdict.OK if took_s <= SLOW_COORDINATION_S else Verdict.WARN
    return Finding(verdict, "coordination", f"{where} answers in {took_s * 1000:.0f} ms")


def cluster(facts: dict[str, Any]) -> list[Finding]:
    """Judges what brokers say of their cluster (GET /v1/cluster)."""
    brokers = facts["brokers"]
    versions = sorted({one["version"] or "unknown" for one in brokers})
    found = [Finding(Verdict.OK, "cluster", f"{counted(len(brokers), 'broker')}, level {facts['level']}")]
    if not facts["leader"]:
        found.append(
            Finding(Verdict.FAIL, "leader", "no broker leads: segments that lose their owner stay without one")
        )
    if len(versions) > 1:
        found.append(Finding(Verdict.NOTE, "versions", f"brokers are of several: {', '.join(versions)}"))
    if facts["level_possible"] > facts["level"]:
        told = f"level {facts['level_possible']} is possible: seaweedq cluster level {facts['level_possible']}"
        found.append(Finding(Verdict.NOTE, "level", told))
    states = [f"{one['id']} is {state}" for one in brokers for state in ("starting", "draining") if one[state]]
    return [*found, *(Finding(Verdict.NOTE, "broker", told) for told in states)]


def failed(what: str, error: BaseException | str) -> Finding:
    """Returns the finding that something does not work."""
    text = error if isinstance(error, str) else str(error) or type(error).__name__
    return Finding(Verdict.FAIL, what, " ".join(text.split()))
