"""The audit of a chain: compares a segment's files with one another, and with the bounds that a broker states.

It reports findings and never repairs. It checks entry by entry. After a finding it continues with the metadata of the
next entry, so that one damaged file is one finding and not a hundred. The caller opens the files.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seaweedq.errors import ChainDamaged, NeedsNewerBroker
from seaweedq.segments.entry import ROW_GROUP_ROWS, EntryMetadata, EntryName, open_entry, segment_folder
from seaweedq.segments.layout import OFFSET_FIELD, OPTIONAL_FIELDS, TIMESTAMP_FIELD
from seaweedq.segments.producers import ProducerTables

_QUEUE_FIELDS = (OFFSET_FIELD, TIMESTAMP_FIELD, *OPTIONAL_FIELDS)
_OFFSET, _TIMESTAMP = 0, 1  # their places among a file's columns


@dataclass(frozen=True)
class Finding:
    """One difference from a sound topic: the object or segment, and a sentence whose subject it is."""

    where: str
    what: str


@dataclass(frozen=True)
class Listing:
    """A topic's objects, sorted: the entries of each segment in order, and findings for all other objects."""

    chains: dict[int, list[EntryName]]
    findings: list[Finding]

    @staticmethod
    def of(topic: str, names: Sequence[str]) -> "Listing":
        """Sorts all names below a topic's folder."""
        listing = Listing({}, [])
        for name in sorted(names):
            if found := _parse(topic, name):
                listing.chains.setdefault(found[0], []).append(found[1])
            else:
                listing.findings.append(
                    Finding(name, "is not an entry of a segment's chain, and nothing else may be here")
                )
        return listing


@dataclass(frozen=True)
class Bounds:
    """The bounds of a segment, as a broker states them.

    If the files grow during the audit, ask for `flushed_offset` and `state` before listing the files, and for the other
    fields afterwards.
    """

    low: int
    high: int
    start_offset: int
    flushed_offset: int
    end_offset: int
    state: str = "open"
    predecessors: tuple[int, ...] = ()
    successors: tuple[int, ...] = ()
    emptied: bool = False  # retention has taken all entries of a sealed one


@dataclass
class SegmentAudit:
    """The audit of one segment's chain. Pass its entries to `entry` in order, then call `finish`. `cluster` is the
    store's cluster id."""

    topic: str
    segment: int
    cluster: str
    findings: list[Finding] = field(default_factory=list)
    entries: int = 0
    start: int | None = None
    end: int | None = None  # None: unknown, behind an unreadable entry
    _sequence: int | None = None
    _before: EntryMetadata | None = None
    _schema: pa.Schema | None = None

    @property
    def folder(self) -> str:
        """Returns the folder of the entries."""
        return segment_folder(self.topic, self.segment)

    @property
    def last(self) -> EntryMetadata | None:
        """Returns the metadata of the last entry, or None if that is unreadable."""
        return self._before if self.end is not None else None

    def entry(
        self, name: EntryName, file: BinaryIO, last: bool, wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[pa.Table]:
        """Checks an entry. Yields its sound row groups, whole, as long as `wanted()` returns true."""
        self._check_name(name)
        try:
            parquet, metadata = open_entry(file, self.folder + str(name))
        except (ChainDamaged, NeedsNewerBroker) as error:
            self.finding(error.detail, name)
            return
        with parquet:
            self._check_metadata(name, metadata, last)
            self._check_schema(name, parquet.schema_arrow)
            self._before, self.end = metadata, metadata.next_offset
            yield from self._groups(name, parquet, metadata, wanted)

    def finish(self, bounds: Bounds | None = None) -> None:
        """Compares the audited entries with the bounds that a broker states; call it after the last entry."""
        if bounds is None:
            return
        if self.entries == 0 and bounds.flushed_offset > bounds.start_offset:
            rows = bounds.flushed_offset - bounds.start_offset
            self.finding(f"has no files, but the broker states that {rows} rows are in files")
        if self.start is not None and self.start > bounds.start_offset:
            self.finding(
                f"begins at offset {self.start} in the files, but at {bounds.start_offset} according to the broker"
            )
        if self._before and (self._before.low, self._before.high) != (bounds.low, bounds.high):
            stated = f"[{bounds.low}, {bounds.high}) according to the broker"
            self.finding(f"has the key range [{self._before.low}, {self._before.high}) in the files, but {stated}")
        if self.entries and self.end is not None and not bounds.flushed_offset <= self.end <= bounds.end_offset:
            between = f"between {bounds.flushed_offset} and {bounds.end_offset}"
            self.finding(f"ends at offset {self.end} in the files, but {between} according to the broker")
        self._check_seal(bounds)

    def _check_seal(self, bounds: Bounds) -> None:
        seal = self.last.seal if self.last else None
        if bounds.emptied and self.entries == 0:
            return
        if bounds.state == "sealed" and (self.last or not self.entries) and not seal:
            self.finding("has no seal in the files, but is sealed according to the broker")
        if seal and bounds.successors and sorted(seal.successors) != sorted(bounds.successors):
            stated = f"{list(bounds.successors)} according to the broker"
            self.finding(f"has the successors {list(seal.successors)} in the files, but {stated}")
        if seal and bounds.successors and self.end != bounds.end_offset:
            self.finding(
                f"is sealed at offset {self.end} in the files, but at {bounds.end_offset} according to the broker"
            )

    def finding(self, what: str, name: EntryName | None = None) -> None:
        """Adds a finding about an entry or, without `name`, about the segment."""
        self.findings.append(Finding(self.folder + str(name or ""), what))

    def missing(self, name: EntryName, why: str) -> None:
        """Adds a finding for an entry that was listed but cannot be opened."""
        self._check_name(name)
        self.finding(f"cannot be opened: {why}", name)

    def _check_name(self, name: EntryName) -> None:
        if self._sequence is None:
            self.start = name.first_offset
            if name.sequence == 0 and name.first_offset:  # later ones begin at 0 where none before had rows
                self.finding("cannot be the first entry of a chain: entry 0 begins at offset 0", name)
        elif name.sequence != self._sequence + 1:
            self.finding(f"follows entry {self._sequence}, but entry {self._sequence + 1} is expected", name)
        elif self.end is not None and name.first_offset != self.end:
            self.finding(f"begins at offset {name.first_offset}, but the entry before it ends at {self.end}", name)
        self.entries += 1
        self._sequence, self.end = name.sequence, None

    def _check_metadata(self, name: EntryName, metadata: EntryMetadata, last: bool) -> None:
        mine = {"cluster": self.cluster, "topic": self.topic, "segment": self.segment}
        if self._before:
            mine |= {"low": self._before.low, "high": self._before.high}
        for what, expected in mine.items():
            if getattr(metadata, what) != expected:
                self.finding(f"states the {what} {getattr(metadata, what)!r}, but {expected!r} is expected", name)
        if metadata.seal and not last:
            self.finding("is sealed, but is not the last entry", name)
        if self._before and metadata.max_timestamp_us < self._before.max_timestamp_us:
            self.finding("states a newest _timestamp below that of the entry before it", name)
        try:
            ProducerTables.decode(metadata.producers, self.segment)
        except (ValueError, NeedsNewerBroker) as error:
            self.finding(str(error), name)

    def _check_schema(self, name: EntryName, schema: pa.Schema) -> None:
        if not pa.schema(list(schema)[: len(_QUEUE_FIELDS)]).equals(pa.schema(_QUEUE_FIELDS)):
            self.finding(f"does not begin with the queue's own columns: {schema.names}", name)
        if self._schema is not None and not schema.equals(self._schema):
            self.finding(f"has other columns than the entries before it: {schema.names}", name)
        self._schema = schema

    def _groups(
        self, name: EntryName, parquet: pq.ParquetFile, metadata: EntryMetadata, wanted: Callable[[], bool]
    ) -> Iterator[pa.Table]:
        first = metadata.first_offset
        sizes = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
        if any(size != ROW_GROUP_ROWS for size in sizes[:-1]) or not all(0 < size <= ROW_GROUP_ROWS for size in sizes):
            self.finding(f"has row groups of {sizes} rows; all but the last must have {ROW_GROUP_ROWS}", name)
        for number, size in enumerate(sizes):
            if size and wanted():
                problem, table = _read(parquet, number, first, metadata.max_timestamp_us)
                if problem:
                    self.finding(f"row group {number}: {problem}", name)
                elif table is not None:
                    yield table
            first += size


def _parse(topic: str, name: str) -> tuple[int, EntryName] | None:
    """Returns the segment and the name of an entry, or None if the object is no entry or is in another folder than its
    own."""
    segment = name.removeprefix(f"topics/{topic}/segment=").partition("/")[0]
    try:
        entry = EntryName.parse(name)
    except ChainDamaged:
        return None
    if not (segment.isascii() and segment.isdecimal()) or name != segment_folder(topic, int(segment)) + str(entry):
        return None
    return int(segment), entry


def _read(parquet: pq.ParquetFile, number: int, first: int, newest_us: int) -> tuple[str, pa.Table | None]:
    """Reads a row group whose first offset should be `first`. Returns an error text (empty: sound) and its rows."""
    try:
        table = parquet.read_row_group(number, use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        return str(error), None
    offsets = table.column(_OFFSET).to_numpy()
    if not np.array_equal(offsets, np.arange(first, first + len(offsets))):
        at = int(np.argmin(offsets == np.arange(first, first + len(offsets))))
        return f"row {at} has the _offset {offsets[at]}, but {first + at} is expected", None
    times = table.column(_TIMESTAMP).cast(pa.int64())
    least, most = pc.min_max(times).values()
    if most.as_py() > newest_us:
        return "has a _timestamp above the newest one that the entry states", None
    statistics = [parquet.metadata.row_group(number).column(at).statistics for at in (_OFFSET, _TIMESTAMP)]
    stated = [(each.min_raw, each.max_raw) for each in statistics if each and each.has_min_max]
    if stated != [(first, first + len(offsets) - 1), (least.as_py(), most.as_py())]:
        return f"has the statistics {stated}, which do not match its rows", None
    return "", table
