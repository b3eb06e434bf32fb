"""Counters of a broker's reshaper: carried out changes by kind, and the pauses of publishes."""

from collections import Counter
from typing import Literal

from seaweedq.coordination.records.topics import Intent
from seaweedq.durations import Durations

Kind = Literal["split", "merge", "roll"]
KINDS: tuple[Kind, ...] = ("split", "merge", "roll")
BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


def kind_of(intent: Intent) -> Kind:
    """Returns the kind of an intent: split, merge or roll."""
    if len(intent.segments) > 1:
        return "merge"
    return "split" if len(intent.successors) > 1 else "roll"


class Counters:
    """Intents that were completed. A *pause* is the time for which their segments accepted no message."""

    def __init__(self) -> None:
        self.done: Counter[Kind] = Counter()
        self.pauses = Durations(BOUNDS_S)

    def add(self, intent: Intent, pause_s: float) -> None:
        """Counts one more."""
        self.done[kind_of(intent)] += 1
        self.pauses.add(pause_s)
