"""When which fault happens: a plan drawn from a seed, and what carries it out and writes it into the history."""

import heapq
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.support.chaos.cluster import Cluster
from tests.support.chaos.fault import Begun, Fault
from tests.support.history.history import History

GAP_S = (0.5, 3.0)
OVERLAP = 0.25  # the part of faults that begin before the last one ends


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault from `at` on, for `lasts_s`, both in seconds; its own choices come from `seed`."""

    at: float
    lasts_s: float
    fault: Fault
    seed: int


def plan(seed: int, seconds: float, lease_s: float, faults: Sequence[Fault]) -> list[Planned]:
    """Faults in random order, all of them begun and undone within `seconds`. Those that are `beside` others come in a
    row of their own; in each row, each as often as any other (but once)."""
    rows = [[fault for fault in faults if fault.beside is beside] for beside in (False, True)]
    planned = [
        one for number, row in enumerate(rows) for one in _row(random.Random(f"{number} {seed}"), seconds, lease_s, row)
    ]
    return sorted(planned, key=lambda one: one.at)


def _row(rng: random.Random, seconds: float, lease_s: float, faults: Sequence[Fault]) -> Iterator[Planned]:
    deck: list[Fault] = []
    at = rng.uniform(*GAP_S)
    while faults:
        if not deck:
            deck = rng.sample(faults, len(faults))
        fault = deck.pop()
        lasts_s = rng.uniform(*fault.lasts) * lease_s
        if at + lasts_s > seconds:
            break
        yield Planned(at, lasts_s, fault, rng.getrandbits(32))
        at += (0.5 if rng.random() < OVERLAP else 1.0) * lasts_s + rng.uniform(*GAP_S)


class Nemesis:
    """Carries out a plan on a cluster. `done` counts what was begun, by name; `broken`: what went otherwise than it
    must, as a broker that does not end when it is told to."""

    def __init__(self, cluster: Cluster, history: History, planned: Sequence[Planned]) -> None:
        self.done: list[str] = []
        self.broken: list[str] = []
        self._cluster = cluster
        self._history = history
        self._planned = planned
        self._undo: list[tuple[float, int, Begun, Planned]] = []

    def run(self, seconds: float, watch: Callable[[float], None]) -> None:
        """At least so long, and to the last undone one; `watch` hears the seconds since the start, often."""
        began = time.monotonic()
        late_s = 0.0  # some faults take long to begin; the gaps before the next ones stay
        for planned in self._planned:
            self._until(min(began + planned.at + late_s, began + seconds), began, watch)
            if (begins := time.monotonic()) < began + seconds:
                self._begin(planned)
                late_s += time.monotonic() - begins
        while self._undo:
            self._until(self._undo[0][0], began, watch)
        self._until(began + seconds, began, watch)

    def _begin(self, planned: Planned) -> None:
        call = self._history.invoke("nemesis", "fault", [{"note": planned.fault.name}])
        try:
            begun = planned.fault.begin(self._cluster, random.Random(planned.seed))
        except AssertionError as error:
            self.broken.append(f"{planned.fault.name}: {error}")
            begun = None
        if begun is None:
            self._history.told("nemesis", "fault", "fail", call, [{"note": planned.fault.name}])
            return
        self.done.append(planned.fault.name)
        hit = f"{planned.fault.name}: {begun.hit}"
        for segment in begun.orphans:
            self._history.told("nemesis", "fault", "info", call, [{"note": hit, "segment": segment}])
        heapq.heappush(self._undo, (time.monotonic() + planned.lasts_s, call, begun, planned))

    def _until(self, end: float, began: float, watch: Callable[[float], None]) -> None:
        """Wait, and undo what is over."""
        while (now := time.monotonic()) < end or (self._undo and self._undo[0][0] <= now):
            if self._undo and self._undo[0][0] <= now:
                _, call, begun, planned = heapq.heappop(self._undo)
                begun.undo()
                note = f"{planned.fault.name}: {begun.hit}"
                self._history.told("nemesis", "fault", "ok", call, [{"note": note}])
            self._cluster.supervise()
            watch(now - began)
            time.sleep(0.05)
