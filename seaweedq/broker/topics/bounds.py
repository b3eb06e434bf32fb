"""Bounds: the low ends of the ranges of a topic's open segments, by which rows are routed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

GAP = -1  # in place of a segment: no segment whose record can be read has these keys


@dataclass(frozen=True)
class Bounds:
    """The parts of a topic's open segments: the low end of each (sorted, int32), and its segment, or GAP."""

    lows: np.ndarray
    ids: Sequence[int]

    @cached_property
    def starts(self) -> list[int]:
        """Returns the low ends as a list, in which one hash is found faster than in an array."""
        return list(map(int, self.lows))
