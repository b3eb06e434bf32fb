"""Invariants of subscriptions and their cursors, of each record and of each change. Pure.

- In a segment, 0 <= `acked_to` <= `delivered_to` <= the segment's end, where that is known; what is acked beyond
  `acked_to` are disjoint runs that rise, and end at `delivered_to` at the latest: what is acked was delivered.
- Within an epoch neither `acked_to` nor `delivered_to` falls, and nothing that is acked becomes unacked.
- The epoch of a subscription and of its cursors never falls.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from seaweedq.broker.log.intervals import Run, Runs
from seaweedq.coordination.records.subscriptions import CursorRecord, SubscriptionRecord


def broken_by(before: CursorRecord | None, after: CursorRecord, end: int | None = None) -> list[str]:
    """Returns the invariants that a cursor breaks which replaces `before`, in a segment that ends at `end`.

    What was broken before is not the fault of this write.
    """
    known = set(_broken_in(before, end)) if before else set()
    found = [text for text in _broken_in(after, end) if text not in known]
    return [*found, *(_broken_between(before, after) if before else ())]


def broken_by_subscription(before: SubscriptionRecord | None, after: SubscriptionRecord) -> list[str]:
    """Returns the invariants that the change of a subscription's record breaks."""
    if before and after.epoch < before.epoch:
        return [f"the epoch falls from {before.epoch} to {after.epoch}"]
    return []


def _broken_in(record: CursorRecord, end: int | None) -> Iterator[str]:
    if not 0 <= record.acked_to <= record.delivered_to:
        yield f"all below {record.acked_to} is acked, and all below {record.delivered_to} was delivered"
    if end is not None and record.delivered_to > end:
        yield f"all below {record.delivered_to} was delivered of a segment that ends at {end}"
    bounds = np.array([(record.acked_to, record.acked_to), *record.acked]).ravel()[1:]
    if (bounds[1:] <= bounds[:-1]).any():
        yield f"the acked runs {record.acked[:10]} do not rise beyond {record.acked_to}"
    if bounds[-1] > record.delivered_to:
        yield f"offsets up to {bounds[-1]} are acked, but only those below {record.delivered_to} were delivered"
    if bool(record.leases) != (record.consumer is not None):
        yield f"leases {record.leases[:10]} are those of consumer {record.consumer!r}"
    runs = [(low, high) for low, high, _ in record.leases] + [run for one in record.held or () for run in one.runs]
    if any(low > high or high > record.delivered_to for low, high in runs):
        yield f"leases {runs[:10]} are not all of what was delivered, below {record.delivered_to}"


def _broken_between(before: CursorRecord, after: CursorRecord) -> Iterator[str]:
    if after.epoch < before.epoch:
        yield f"the cursor's epoch falls from {before.epoch} to {after.epoch}"
    if after.epoch != before.epoch:
        return
    if after.acked_to < before.acked_to:
        yield f"acked_to falls from {before.acked_to} to {after.acked_to}"
    if after.delivered_to < before.delivered_to:
        yield f"delivered_to falls from {before.delivered_to} to {after.delivered_to}"
    if not _within(before.acked, [(0, after.acked_to), *after.acked]):
        acked = Runs([(0, after.acked_to), *after.acked])
        if lost := [gap for run in before.acked for gap in acked.gaps(*run)]:
            yield f"offsets {lost[:10]} are not acked any more"


def _within(before: Sequence[Run], after: Sequence[Run]) -> bool:
    """Tells whether each of some runs lies in one of others that rise. There may be tens of thousands; of those that do
    not rise, or touch, it may say no though they do."""
    if not before:
        return True
    runs, others = np.array(before), np.array(after)
    lows, highs = others.T
    if (lows[1:] <= highs[:-1]).any():
        return False
    at = np.searchsorted(lows, runs[:, 0], side="right") - 1
    return bool((at >= 0).all() and (highs[at] >= runs[:, 1]).all())
