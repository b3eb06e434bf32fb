"""The distribution of a segment's load over its key range: a histogram of key hashes, and the hottest hashes. Both
decay.

Their input is samples: some hashes, and the weight that they represent (messages or bytes, as the caller counts). Both
use constant memory. They know no rate.
"""

from math import exp

import numpy as np
import numpy.typing as npt

from seaweedq.segments.keyrange import KeyRange
from seaweedq.segments.row_hashes import Hashes

BINS = 64
COUNTERS = 16
OVER_S = 60.0
"""A sample of this age counts as 1/e."""


class KeyHistogram:
    """The weight of each of `BINS` equal parts of a key range."""

    __slots__ = ("_bins", "_low", "_size")

    def __init__(self, key_range: KeyRange) -> None:
        self._low = key_range.low
        self._size = len(key_range)
        self._bins = np.zeros(BINS)

    def add(self, hashes: Hashes, weight: float) -> None:
        """Adds hashes that represent `weight` together; those outside the range do not count."""
        at = (hashes.astype(np.int64) - self._low) * BINS // self._size
        at = at[(at >= 0) & (at < BINS)]
        if len(at):
            self._bins += np.bincount(at, minlength=BINS) * (weight / len(hashes))

    def add_keyless(self, weight: float) -> None:
        """Adds rows without a key: they are spread evenly."""
        self._bins += weight / BINS

    def forget(self, passed_s: float) -> None:
        """Decays the weights by the seconds passed."""
        self._bins *= exp(-passed_s / OVER_S)

    @property
    def bins(self) -> tuple[float, ...]:
        """Returns the weights; all zero before the first sample."""
        return tuple(self._bins.tolist())


class HotKeys:
    """The hottest hashes, by `COUNTERS` counters (Misra and Gries, 1982), to which a sample is added as a whole
    (Agarwal et al., Mergeable Summaries, 2012).

    A counter is never too high, and too low by at most 1 / (COUNTERS + 1) of the weight. So no hash looks hot unless it
    is.
    """

    __slots__ = ("_counts", "_hashes", "_weight")

    def __init__(self) -> None:
        self._hashes: Hashes = np.empty(0, np.int32)
        self._counts: npt.NDArray[np.float64] = np.empty(0)
        self._weight = 0.0

    def add(self, hashes: Hashes, weight: float) -> None:
        """Adds hashes that represent `weight` together."""
        if not len(hashes):
            return
        self._weight += weight
        each = np.full(len(hashes), weight / len(hashes))
        found, at = np.unique(np.concatenate([self._hashes, hashes]), return_inverse=True)
        counts: npt.NDArray[np.float64] = np.bincount(at, np.concatenate([self._counts, each])).astype(np.float64)
        if len(found) > COUNTERS:
            counts -= np.partition(counts, -COUNTERS - 1)[-COUNTERS - 1]
        self._hashes, self._counts = found[counts > 0], counts[counts > 0]

    def add_keyless(self, weight: float) -> None:
        """Adds rows without a key: each has a hash of its own."""
        self._weight += weight

    def forget(self, passed_s: float) -> None:
        """Decays the counters by the seconds passed."""
        kept = exp(-passed_s / OVER_S)
        self._counts *= kept
        self._weight *= kept

    def hottest(self) -> tuple[int | None, float]:
        """Returns the hottest hash and its share of the weight, at most 1; of equal ones the lowest. None and 0 without
        any."""
        if not len(self._hashes):
            return None, 0.0
        at = int(self._counts.argmax())
        return int(self._hashes[at]), min(float(self._counts[at]) / self._weight, 1.0)
