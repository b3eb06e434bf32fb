"""The routing of a topic's rows: which segment takes which keys, and which of those segments this broker has open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.topics.segment_index import Records
from seaweedq.segments.keyrange import KeyRange, missing_ranges

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


@dataclass(frozen=True)
class Routing(Bounds):
    """`opened` has the segment of each part, None where another broker owns it, or it was not needed yet."""

    opened: list[OpenSegment | None]

    @staticmethod
    def of(records: Records, opened: Mapping[int, OpenSegment]) -> "Routing":
        """Returns the routing that these records imply."""
        open_ = [(number, known.record) for number, known in records.items() if known.record.state == "open"]
        parts = [(low, number) for number, record in open_ for low in record.parts]
        gaps = missing_ranges(KeyRange(record.low, record.high) for _, record in open_)
        parts = sorted([*parts, *((gap.low, GAP) for gap in gaps)])
        lows = np.array([low for low, _ in parts], dtype=np.int32)
        return Routing(lows, [number for _, number in parts], [opened.get(number) for _, number in parts])

    def note(self, segment: OpenSegment) -> None:
        """Adds a segment that was opened."""
        for at, number in enumerate(self.ids):
            if number == segment.id:
                self.opened[at] = segment
