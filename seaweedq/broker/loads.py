"""Loads: how many bytes a second each own segment takes, as a moving average for the balancer."""

import math

from seaweedq.balancer.placement import SegmentId
from seaweedq.broker.catalog import Catalog
from seaweedq.clock import Clock

OVER_S = 10.0


class Loads:
    """Samples the open segments when asked, at most every `OVER_S / 10` seconds.

    What was not observed counts for nothing, rather than as idle: a broker that got a segment a moment ago would look
    as if it had room for more.
    """

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._sampled_s = clock.monotonic_s()
        self._taken: dict[SegmentId, int] = {}
        self._averages: dict[SegmentId, tuple[float, float]] = {}  # with the weight of all that was observed, up to 1

    def report(self) -> dict[SegmentId, float]:
        """Bytes a second by segment, averaged over about `OVER_S`."""
        now_s = self._clock.monotonic_s()
        passed_s = now_s - self._sampled_s
        if passed_s >= OVER_S / 10:
            self._sampled_s = now_s
            self._sample(passed_s)
        return {segment: average / weight for segment, (average, weight) in self._averages.items()}

    def _sample(self, passed_s: float) -> None:
        share = 1 - math.exp(-passed_s / OVER_S)
        taken = self._now()
        averages = {}
        for segment, now in taken.items():
            average, weight = self._averages.get(segment, (0.0, 0.0))
            rate = max(now - self._taken.get(segment, 0), 0) / passed_s  # it may have been away, and begun anew
            averages[segment] = average + share * (rate - average), weight + share * (1 - weight)
        self._averages, self._taken = averages, taken

    def _now(self) -> dict[SegmentId, int]:
        topics = filter(None, map(self._catalog.find, self._catalog.names()))
        return {
            (topic.name, topic.record.incarnation, number): segment.taken_bytes
            for topic in topics
            for number, segment in topic.opened.items()
        }
