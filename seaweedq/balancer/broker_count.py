"""The number of brokers that the load needs. Pure: the caller passes the time and the brokers' reports.

Each broker reports its *utilization*, the part of each of its resources in use. The load needs so many brokers that the
mean utilization of no resource exceeds its target. A broker that does not report counts as the mean of the others: it
is often the busiest.

The number rises once the load has needed more for RISE_S, to the least that the load needed in that time, so a burst
starts no broker. It falls once the load has needed fewer for FALL_S, to the most that the load needed in that time, so
a load that recurs within FALL_S stops no broker. A number within TOLERANCE of the present one changes nothing. A broker
cannot use more than all of its CPU and memory, so the reports of saturated brokers do not tell how large the load is:
the number doubles.
"""

from collections import deque
from collections.abc import Collection, Mapping
from math import ceil
from typing import Annotated

import msgspec
from msgspec import Meta

RISE_S = 10.0
FALL_S = 600.0
TOLERANCE = 0.1
SATURATED = 0.9
_Part = Annotated[float, Meta(ge=0, le=1e6)]


class Utilization(msgspec.Struct, array_like=True, frozen=True):
    """The part of each resource of a broker that is in use, averaged over 10 s: 1 is all of the resource. `messages`,
    `bytes` and `segments` are parts of the stated capacities, and 0 without one."""

    cpu: _Part = 0.0
    memory: _Part = 0.0
    messages: _Part = 0.0
    bytes: _Part = 0.0
    segments: _Part = 0.0


TARGETS = Utilization(cpu=0.6, memory=0.8, messages=0.7, bytes=0.7, segments=0.8)


class BrokerCount:
    """The decision over time. `wanted` is the number of brokers, None before the first update. The decision began at
    `began_s`, with the number of running brokers; it begins anew behind a pause, as when a leader was another broker
    meanwhile. It `is_made` RISE_S later: the running brokers lack those that an autoscaler starts just now, so their
    number alone would make the autoscaler stop those."""

    def __init__(self) -> None:
        self.is_made = False
        self.wanted: int | None = None
        self.began_s = self._updated_s = 0.0
        self._needs: deque[tuple[float, int]] = deque()  # of the last FALL_S

    def update(self, now_s: float, reports: Collection[Utilization], brokers: int, least: int) -> int:
        """Decides from the reports of some of the running brokers, and returns `wanted`, which is `least` or more."""
        if self.wanted is None or now_s - self._updated_s > RISE_S:
            self.wanted, self.began_s = brokers, now_s
            self._needs.clear()
        self._updated_s, self.is_made = now_s, now_s - self.began_s >= RISE_S
        if not self.is_made:
            self.wanted = max(self.wanted, brokers)
        if not reports:
            return max(self.wanted, least)
        self._needs.append((now_s, needed(reports, brokers)[0]))
        while self._needs[0][0] < now_s - FALL_S:
            self._needs.popleft()
        lately = [need for at_s, need in self._needs if at_s >= now_s - RISE_S]
        if self.is_made:
            self.wanted = max(self.wanted, min(lately))
        if now_s - self.began_s >= FALL_S:
            self.wanted = min(self.wanted, max(need for _, need in self._needs))
        self.wanted = max(self.wanted, least)
        return self.wanted


def least_used(reports: Mapping[str, Utilization]) -> list[str]:
    """Returns the brokers in the order of their use, the least used one first: by the resource that is nearest to its
    target. Equal ones are in the order of their ids."""

    def use(broker: str) -> tuple[float, str]:
        report = reports[broker]
        return max(getattr(report, one) / getattr(TARGETS, one) for one in Utilization.__struct_fields__), broker

    return sorted(reports, key=use)


def needed(reports: Collection[Utilization], brokers: int) -> tuple[int, str]:
    """Returns how many brokers the load needs, at least 1, and of which resource it needs most."""
    most, which = 0.0, ""
    for resource in Utilization.__struct_fields__:
        mean = sum(getattr(report, resource) for report in reports) / max(len(reports), 1)
        saturated = mean >= SATURATED and resource in ("cpu", "memory")
        exact = (2.0 if saturated else mean / getattr(TARGETS, resource)) * brokers
        if exact > most:
            most, which = exact, resource
    if abs(most - brokers) <= TOLERANCE * brokers:
        return brokers, which
    return max(1, ceil(most)), which
