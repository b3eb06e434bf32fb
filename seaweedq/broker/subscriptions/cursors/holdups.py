"""Segments whose successors wait for messages that nobody acks.

A segment holds up others once it is sealed, and something of it was delivered: in `ordered` and `keyed` its successors
wait until all of it is acked. One message that is never acked holds up all of them, and nothing else shows it: the
consumers get nothing, and the lag only rises. It is noticed by the sweeps; what is remembered is soft.
"""

import logging
from collections.abc import Mapping

HELD_UP_S = 60.0  # with the same first unacked message, before the log warns of it; at least three deadlines
logger = logging.getLogger(__name__)


class HoldUps:
    """Since when each segment of a subscription that holds up others has had the same first unacked message."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, float]] = {}
        self._warned: set[tuple[int, int]] = set()

    def look(self, acked_to: Mapping[int, int], now_s: float, patience_s: float) -> list[tuple[int, int]]:
        """Takes in the first unacked offsets of the segments that hold up others now. Returns those, as segment and
        offset, that have been the same for `patience_s` and were not returned before."""
        known, self._since = self._since, {}
        for segment, offset in acked_to.items():
            before = known.get(segment)
            self._since[segment] = before if before and before[0] == offset else (offset, now_s)
        long = {(segment, at) for segment, (at, since_s) in self._since.items() if now_s - since_s >= patience_s}
        new = sorted(long - self._warned)
        self._warned = long
        return new

    def longest_s(self, now_s: float) -> float:
        """Returns for how long the first unacked message has been the same where that is longest, 0 without any."""
        return max((now_s - since_s for _, since_s in self._since.values()), default=0.0)


def warn(topic: str, subscription: str, found: list[tuple[int, int]]) -> None:
    """Logs that successors wait for these messages."""
    for segment, offset in found[:10]:
        logger.warning(
            "subscription %s of %s: message %d-%d has not been acked for more than a minute, and the successors of its "
            "segment wait for it; ack it, or have it rejected after max_attempts",
            subscription,
            topic,
            segment,
            offset,
        )
