"""Cuts a key range so that the parts have equal load. Owns the arithmetic; knows neither rates nor policies.

Load counts as even within a bin of the histogram, except for the hottest hash, which is a step. If the hottest hash has
more than a part's share, the range is cut on both sides of it, as near as whole hashes allow.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seaweedq.segments.keyrange import KeyRange

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut points of a range, strictly rising within it, and each part's share of the load; the shares add up to
    1."""

    points: tuple[int, ...]
    shares: tuple[float, ...]


def cut(key_range: KeyRange, parts: int, bins: tuple[float, ...], hottest: int | None, hot_share: float) -> Cut:
    """Cuts a range of two or more hashes into `parts`, or fewer if hashes are too few or too hot, but at least two.

    `bins` are the weights of equal parts of the range; without any weight the load counts as even. The hash `hottest`,
    if there is one, has `hot_share` of the load.
    """
    edges, load = _load_up_to(key_range, bins, hottest, hot_share)
    wanted = np.arange(1, parts) / parts
    exact = np.interp(wanted, load, edges)
    below, above = np.floor(exact), np.ceil(exact)
    nearer_above = np.interp(above, edges, load) - wanted < wanted - np.interp(below, edges, load)
    points = np.unique(np.clip(np.where(nearer_above, above, below), key_range.low + 1, key_range.high - 1))
    shares = np.diff(np.interp(points, edges, load), prepend=0.0, append=1.0)
    return Cut(tuple(points.astype(int).tolist()), tuple(shares.tolist()))


def _load_up_to(
    key_range: KeyRange, bins: tuple[float, ...], hottest: int | None, hot_share: float
) -> tuple[_Floats, _Floats]:
    """Returns rising positions in the range, and the share of the load below each: straight lines in between."""
    weights = np.array(bins if any(bins) else (1.0,))
    weights /= weights.sum()
    firsts = -(-np.arange(len(weights) + 1) * len(key_range) // len(weights))  # hashes of the bins
    edges = (key_range.low + firsts).astype(np.float64)
    if hottest is None or hottest not in key_range:
        return edges, _summed(weights)
    at = (hottest - key_range.low) * len(weights) // len(key_range)
    weights[at] = max(weights[at] - hot_share, 0.0)
    rest = _summed(weights) * (1 - hot_share) if weights.any() else np.zeros(len(edges))
    places = np.union1d(edges, (hottest, hottest + 1))
    load = np.interp(places, edges, rest)
    load[places > hottest] += hot_share if weights.any() else 1.0
    return places, load


def _summed(weights: _Floats) -> _Floats:
    load: _Floats = np.concatenate([[0.0], np.cumsum(weights)])
    load /= load[-1]
    return load
