"""The routing of a topic's rows: which segment takes which keys, and which of those segments this broker has open."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.topics.bounds import GAP, Bounds
from seaweedq.broker.topics.segment_records import Records
from seaweedq.segments.keyrange import KeyRange, missing_ranges


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
