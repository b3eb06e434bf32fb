"""A topic as the pure parts see it: segments with their producer tables that split and merge, and producers whose
requests come whole, in part, and again. No broker, no store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from seaweedq.broker.publish.batch_split import Batch, Slice, locate, split
from seaweedq.broker.rpc.messages import Outcome
from seaweedq.broker.topics.segment_index import Routing
from seaweedq.coordination.records import SegmentRecord
from seaweedq.levels import HIGHEST
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.producers import (
    GUARDS,
    Duplicate,
    Guard,
    Kind,
    New,
    OutOfOrder,
    ProducerTables,
    Verdict,
    inherited_cuts,
)

Id = tuple[int, int]  # segment, offset


@dataclass(frozen=True)
class Request:
    """A producer's messages `low`, `low` + 1, …, whose keys hash so."""

    producer: str
    low: int
    hashes: tuple[int, ...]

    @property
    def high(self) -> int:
        """The last one's sequence."""
        return self.low + len(self.hashes) - 1

    def batch(self) -> Batch:
        """Its rows: each is its own index, so that one can see where it went."""
        rows = pa.RecordBatch.from_pydict({"_timestamp": pa.array(range(len(self.hashes)), pa.timestamp("us", "UTC"))})
        return Batch(rows, lambda: np.array(self.hashes, np.int32))


@dataclass
class Topic:
    """Open and sealed segments; `contents` are the messages of each, as (producer, sequence)."""

    remembered: int = 8
    records: dict[int, SegmentRecord] = field(default_factory=dict)
    tables: dict[int, ProducerTables] = field(default_factory=dict)
    contents: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open(0, KeyRange(0, KEY_SPACE), (), ())
        self.tables[0] = ProducerTables.empty(0, KeyRange(0, KEY_SPACE))
        self._bound(0)

    @property
    def open(self) -> list[int]:
        """The open segments, by their ranges."""
        return sorted((n for n, r in self.records.items() if r.state == "open"), key=lambda n: self.records[n].low)

    @property
    def bounds(self) -> Routing:
        """Where rows go."""
        parts = sorted((low, n) for n in self.open for low in self.records[n].parts)
        return Routing(np.array([low for low, _ in parts], np.int32), [n for _, n in parts])

    def replace(self, segments: Sequence[int], points: Sequence[int]) -> list[int]:
        """Seal neighbours, and open successors on their range cut at `points`, as docs/internals/scaling.md has it."""
        whole = KeyRange(self.records[segments[0]].low, self.records[segments[-1]].high)
        first = len(self.records)
        tables = [ProducerTables.decode(self.tables[n].encode(HIGHEST), n) for n in segments]  # as the seals have them
        successors = list(range(first, first + len(points) + 1))
        for number, key_range in zip(successors, whole.cut(points), strict=True):
            cuts = inherited_cuts(key_range, tables)
            before = tuple(n for n in segments if self._meet(n, key_range))
            self._open(number, key_range, cuts, before)
            self.tables[number] = ProducerTables.inherited(
                number, key_range, cuts, [tables[segments.index(n)] for n in before]
            )
            self._bound(number)
        for n in segments:
            self.records[n] = SegmentRecord(
                *(self.records[n].low, self.records[n].high, "sealed", self.records[n].predecessors),
                *(tuple(successors), None, len(self.contents[n]), 0, 0, self.records[n].cuts),
            )
        return successors

    def restart(self, segment: int) -> None:
        """Its tables are read from its last entry."""
        self.tables[segment] = ProducerTables.decode(self.tables[segment].encode(HIGHEST), segment, self._guards)

    def judge(self, request: Request, one: Slice) -> Verdict:
        """What the segment's table says of a slice."""
        return self.tables[one.segment].judge(one.part, request.producer, request.low, request.high, len(one.indexes))

    def take(self, request: Request, one: Slice) -> Outcome | OutOfOrder:
        """As an owner does."""
        match self.judge(request, one):
            case OutOfOrder() as verdict:
                return verdict
            case Duplicate(segment, first):
                return Outcome(segment, first, True)
        content = self.contents[one.segment]
        first = len(content)
        content += [(request.producer, request.low + int(i)) for i in one.indexes]
        self.tables[one.segment].record(
            one.part, request.producer, request.low, request.high, first, len(one.indexes), first
        )
        return Outcome(one.segment, first)

    def slices(self, request: Request) -> tuple[Batch, list[Slice]]:
        """The request, cut as it would be now."""
        batch = request.batch()
        return batch, split(self.bounds, batch)

    def ids(self, batch: Batch, one: Slice, outcome: Outcome) -> dict[int, Id]:
        """Where the rows of a slice are, by their index in the request."""
        placed = locate(batch, one, outcome, self.records.get(outcome.segment))
        return {int(i): (p.segment, p.first + at) for p in placed for at, i in enumerate(p.indexes)}

    def _open(self, number: int, key_range: KeyRange, cuts: tuple[int, ...], before: tuple[int, ...]) -> None:
        self.records[number] = SegmentRecord(key_range.low, key_range.high, "open", before, (), "x", None, 0, cuts=cuts)
        self.contents[number] = []

    @property
    def _guards(self) -> Mapping[Kind, Guard]:
        return {**GUARDS, Kind.CLIENT: Guard(1000, self.remembered, lifetime_s=3600)}

    def _bound(self, number: int) -> None:
        for table in self.tables[number].parts:
            table.guards = self._guards

    def _meet(self, number: int, key_range: KeyRange) -> bool:
        return self.records[number].low < key_range.high and key_range.low < self.records[number].high


def is_new(verdict: Verdict) -> bool:
    """Whether it is to be taken."""
    return isinstance(verdict, New)
