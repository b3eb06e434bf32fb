"""A family of metrics as it is declared: its name, kind, labels and words, from which docs/metrics.md is made.

A family writes itself in Prometheus' text format: prometheus-client takes 8 ms of the event loop for what takes one
here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal, Protocol

from seaweedq.durations import Durations

LABELLED = 4096  # combinations of labels whose text is kept


@dataclass(frozen=True)
class Family:
    """A family. `help` is one line of plain text; `watch` says in Markdown which values call for an operator."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    watch: str = ""

    @property
    def head(self) -> str:
        """The lines before the values."""
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"

    def of(self, value: float) -> str:
        """Returns the family with its only value."""
        return f"{self.head}{self.name} {float(value)!r}\n"

    def by(self, values: Mapping[str, float]) -> str:
        """Returns the family with a value for each value of its only label."""
        return self.each(((label,), value) for label, value in values.items())

    def each(self, values: Iterable[tuple[tuple[str, ...], float]]) -> str:
        """Returns the family with a value for each combination of its labels' values."""
        name, keys = self.name, self.labels
        return self.head + "".join([f"{name}{_labels(keys, labels)} {float(value)!r}\n" for labels, value in values])

    def durations(self, values: Iterable[tuple[tuple[str, ...], Durations]]) -> str:
        """Returns the family with a histogram for each combination of its labels' values."""
        found = [self.head]
        for labels, one in values:
            starts = _starts(self.name, self.labels, labels, tuple(one.bounds_s))
            counts = [*accumulate(one.counts)]
            found += [f"{start}{count}\n" for start, count in zip(starts, (*counts, counts[-1]), strict=False)]
            found.append(f"{starts[-1]}{one.sum_s!r}\n")
        return "".join(found)


def counter(name: str, help: str, *labels: str, watch: str = "") -> Family:
    """Declares what only rises."""
    assert name.endswith("_total"), name
    return Family(name, "counter", help, labels, watch)


def gauge(name: str, help: str, *labels: str, watch: str = "") -> Family:
    """Declares what rises and falls."""
    return Family(name, "gauge", help, labels, watch)


def histogram(name: str, help: str, *labels: str, watch: str = "") -> Family:
    """Declares durations."""
    assert name.endswith("_seconds"), name
    return Family(name, "histogram", help, labels, watch)


class Source(Protocol):
    """Some services, with their metrics."""

    def metrics(self) -> Iterator[str]:
        """Yields the families as they are now."""


def render(sources: Iterable[Source]) -> bytes:
    """Returns the metrics of these sources."""
    return "".join([family for source in sources for family in source.metrics()]).encode()


@lru_cache(LABELLED)
def _labels(keys: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not keys:
        return ""
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in zip(keys, values, strict=True))
    return f"{{{pairs}}}"


@lru_cache(LABELLED)
def _starts(name: str, keys: tuple[str, ...], values: tuple[str, ...], bounds_s: tuple[float, ...]) -> tuple[str, ...]:
    """Returns the beginnings of a histogram's lines: its classes, the count, and the sum."""
    of_bounds = [_labels((*keys, "le"), (*values, bound)) for bound in (*map(repr, bounds_s), "+Inf")]
    labels = _labels(keys, values)
    return *(f"{name}_bucket{one} " for one in of_bounds), f"{name}_count{labels} ", f"{name}_sum{labels} "


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
