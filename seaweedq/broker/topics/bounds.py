"""Bounds: where the ranges of a topic's open segments begin, by which rows are routed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Bounds:
    """The parts of a topic's open segments: where each begins (sorted, int32), and whose it is."""

    lows: np.ndarray
    ids: Sequence[int]
