"""Loads: how many bytes a second each own segment takes, as a moving average for the balancer."""

import math

from seaweedq.balancer.placement import SegmentId
from seaweedq.broker.catalog import Catalog
from seaweedq.clock import Clock

OVER_S = 10.0


class Loads:
    """Samples the open segments when asked, at most every `OVER_S / 10` seconds."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._sampled_s = clock.monotonic_s()
        self._taken: dict[SegmentId, int] = {}
        self._rates: dict[SegmentId, float] = {}

    def report(self) -> dict[SegmentId, float]:
        """Bytes a second by segment, averaged over about `OVER_S`."""
        now_s = self._clock.monotonic_s()
        passed_s = now_s - self._sampled_s
        if passed_s >= OVER_S / 10:
            self._sampled_s = now_s
            self._sample(passed_s)
        return self._rates

    def _sample(self, passed_s: float) -> None:
        keep = math.exp(-passed_s / OVER_S)
        taken = self._now()
        self._rates = {
            segment: keep * self._rates.get(segment, 0.0)
            + (1 - keep) * (now - self._taken.get(segment, 0 if segment in self._rates else now)) / passed_s
            for segment, now in taken.items()
        }
        self._taken = taken

    def _now(self) -> dict[SegmentId, int]:
        topics = filter(None, map(self._catalog.find, self._catalog.names()))
        return {
            (topic.name, topic.record.incarnation, number): segment.taken_bytes
            for topic in topics
            for number, segment in topic.opened.items()
        }
