"""Declarations of metric families: name, kind, labels and texts. docs/reference/metrics.md is generated from them.

prometheus-client represents a family with its values, and writes the text. With a hundred subscriptions, a scrape takes
about 10 ms of the event loop."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from seaweedq.clock import Durations


@dataclass(frozen=True)
class Family:
    """A metric family. `help` is one line of plain text; `watch` says in Markdown which values need an operator's
    attention."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    watch: str = ""

    def of(self, value: float) -> Metric:
        """Returns the family with a single value."""
        return self.each([((), value)])

    def by(self, values: Mapping[str, float]) -> Metric:
        """Returns the family with one value per value of its only label."""
        return self.each(((label,), value) for label, value in values.items())

    def each(self, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
        """Returns the family with one value per combination of label values."""
        found = self._empty()
        for labels, value in values:
            found.add_sample(self.name, dict(zip(self.labels, labels, strict=True)), value)
        return found

    def durations(self, values: Iterable[tuple[tuple[str, ...], Durations]]) -> Metric:
        """Returns the family with one histogram per combination of label values."""
        found = self._empty()
        for labels, one in values:
            named = dict(zip(self.labels, labels, strict=True))
            counts = [*accumulate(one.counts)]
            for bound, count in zip((*map(repr, one.bounds_s), "+Inf"), counts, strict=True):
                found.add_sample(f"{self.name}_bucket", {**named, "le": bound}, count)
            found.add_sample(f"{self.name}_count", named, counts[-1])
            found.add_sample(f"{self.name}_sum", named, one.sum_s)
        return found

    def _empty(self) -> Metric:
        return Metric(self.name.removesuffix("_total"), self.help, self.kind)


def counter(name: str, help: str, *labels: str, watch: str = "") -> Family:
    """Declares a family of counters, whose values only rise."""
    assert name.endswith("_total"), name
    return Family(name, "counter", help, labels, watch)


def gauge(name: str, help: str, *labels: str, watch: str = "") -> Family:
    """Declares a family of gauges, whose values rise and fall."""
    return Family(name, "gauge", help, labels, watch)


def histogram(name: str, help: str, *labels: str, watch: str = "") -> Family:
    """Declares a family of histograms of durations."""
    assert name.endswith("_seconds"), name
    return Family(name, "histogram", help, labels, watch)


@dataclass
class _Scrape(Collector):
    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def render(metrics: Iterable[Metric]) -> bytes:
    """Formats metrics as Prometheus text."""
    return generate_latest(_Scrape(metrics))
