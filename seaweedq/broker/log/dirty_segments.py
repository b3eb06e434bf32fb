"""The segments of a broker that may have a tail or a mark, in the order in which each got its first since it was
clean."""

from collections.abc import Iterator

from seaweedq.broker.log.open_segment import OpenSegment


class DirtySegments:
    """An ordered set of segments, so that flushes begin in an order that does not depend on addresses in memory."""

    def __init__(self) -> None:
        self._segments: dict[OpenSegment, None] = {}

    def __iter__(self) -> Iterator[OpenSegment]:
        """Goes over a copy: a flush or a publish may change the set meanwhile."""
        return iter(list(self._segments))

    def add(self, segment: OpenSegment) -> None:
        """Adds a segment that has got rows."""
        self._segments[segment] = None

    def discard(self, segment: OpenSegment) -> None:
        """Removes a segment, whether it has a tail or not."""
        self._segments.pop(segment, None)

    def prune(self) -> None:
        """Removes the segments without a tail, and without a mark."""
        self._segments = {segment: None for segment in self._segments if segment.pin is not None}
