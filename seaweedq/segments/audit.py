"""The audit of a topic's files: compares them with one another, and with the bounds and the rows that a broker states.

It reports findings and never repairs. The caller opens the files. Three checks:

- A chain is checked entry by entry. After a finding it continues with the metadata of the next entry, so that one
  damaged file is one finding and not a hundred.
- *Lineage* says which segments replaced which, in the files and in a broker's map. In files, a seal names
  successors whose ranges cover all of the segment's, and a successor's files have the range that the seal states. A
  segment was sealed before any later segment with some of its keys appended a row. In a map, the open segments cover
  every key once, and predecessor and successor name each other.
- A broker's answers are compared with the files, value by value. A fetch leaves expired messages out. Every other row
  of a file must be returned, unchanged.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seaweedq.errors import ChainDamaged, NeedsNewerBroker
from seaweedq.segments.entry import (
    LAST_SEQUENCE,
    MARKERS,
    ROW_GROUP_ROWS,
    EntryMetadata,
    EntryName,
    Seal,
    open_entry,
    segment_folder,
)
from seaweedq.segments.keyrange import KeyRange, tiles_key_space
from seaweedq.segments.layout import (
    MAX_SCHEMA_ID,
    OFFSET_FIELD,
    OPTIONAL_FIELDS,
    TIMESTAMP,
    TIMESTAMP_FIELD,
    identity,
    unheld,
)
from seaweedq.segments.producers import ProducerTables

_QUEUE_FIELDS = (OFFSET_FIELD, TIMESTAMP_FIELD, *OPTIONAL_FIELDS)
_OFFSET, _TIMESTAMP = 0, 1  # their places among a file's columns
Lasts = Mapping[int, EntryMetadata]  # of each segment, the metadata of its last entry
SKEW_US = 60 * 1_000_000  # by how much the broker's clock may be ahead of ours


@dataclass(frozen=True)
class Finding:
    """One difference from a sound topic: the object or segment, and a sentence whose subject it is."""

    where: str
    what: str


@dataclass(frozen=True)
class Listing:
    """A topic's objects, sorted: the entries of each segment in order, and findings for all other objects, apart from
    the markers of the schema's versions."""

    chains: dict[int, list[EntryName]]
    findings: list[Finding]

    @staticmethod
    def from_names(topic: str, names: Sequence[str]) -> "Listing":
        """Sorts all names below a topic's folder."""
        listing = Listing({}, [])
        for name in sorted(names):
            if found := _parse(topic, name):
                listing.chains.setdefault(found[0], []).append(found[1])
            elif not _is_marker(topic, name):
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
            self._check_schema(name, parquet.schema_arrow, metadata.schema_id)
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

    def begin(self) -> None:
        """Forgets the findings so far. Whoever audits a part of a chain passes the last sound entry before it, and all
        up to the part, then calls this; `extend` puts the parts together."""
        self.findings.clear()
        self.entries = 0

    def extend(self, part: "SegmentAudit") -> None:
        """Adds the audit of the entries that follow."""
        self.findings += part.findings
        if not part.entries:
            return
        self.start = self.start if self.entries else part.start
        self.entries += part.entries
        self.end, self._sequence = part.end, part._sequence
        self._before, self._schema = part._before, part._schema

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
            if name.sequence == 0 and name.first_offset:  # later ones begin at 0 if none before had rows
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
        if self._before and metadata.term < self._before.term:
            self.finding(
                f"is of the term {metadata.term}, below that of the entry before it, {self._before.term}", name
            )
        try:
            ProducerTables.decode(metadata.producers, self.segment)
        except (ValueError, NeedsNewerBroker) as error:
            self.finding(str(error), name)

    def _check_schema(self, name: EntryName, schema: pa.Schema, version: int) -> None:
        if not pa.schema(list(schema)[: len(_QUEUE_FIELDS)]).equals(pa.schema(_QUEUE_FIELDS)):
            self.finding(f"does not begin with the queue's own columns: {schema.names}", name)
        if self._schema is not None and self._before and not schema.equals(self._schema):
            before, earlier = self._before.schema_id, self._schema
            one, other = (earlier, schema) if before < version else (schema, earlier)  # an owner may lag behind
            if version == before:
                self.finding(f"has other columns than the entries before it: {schema.names}", name)
            elif (field := unheld(one, other, dropped=True)) is not None:
                detail = f"is of version {version} of the schema, and those before it of {before}"
                self.finding(f"{detail}, but no version holds the field {field!r} of both", name)
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


def _is_marker(topic: str, name: str) -> bool:
    folder = segment_folder(topic, MARKERS)
    marker = EntryName.from_object(name, folder) if name.startswith(folder) else None
    return marker is not None and marker.sequence >= LAST_SEQUENCE - 2 * MAX_SCHEMA_ID


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


def seal_findings(topic: str, lasts: Lasts) -> Iterator[Finding]:
    """Checks each seal by itself and against the files of the successors that it names."""
    for number, last in lasts.items():
        if last.seal is None:
            continue
        where = segment_folder(topic, number)
        if not _covers(last, last.seal):
            yield Finding(
                where,
                f"has the key range [{last.low}, {last.high}), but its seal names the successors {_listed(last.seal)}",
            )
        for successor, (low, high) in zip(last.seal.successors, last.seal.ranges, strict=False):
            there = lasts.get(successor)
            if there and (there.low, there.high) != (low, high):
                stated = f"has the key range [{there.low}, {there.high}), but the seal of segment {number} states"
                yield Finding(segment_folder(topic, successor), f"{stated} [{low}, {high})")


def unended(lasts: Lasts) -> dict[int, int]:
    """Returns the segments without a seal of whose keys a later one has files: by id, with the smallest of those.

    This happens for a moment if files are listed while a segment is replaced: its seal exists soon after.
    """
    ended = sorted((last.low, last.high, number) for number, last in lasts.items() if last.seal is None)
    found: dict[int, int] = {}
    for number, last in sorted(lasts.items()):
        at = max(0, bisect_left(ended, (last.low, 0, 0)) - 1)
        while at < len(ended) and ended[at][0] < last.high:
            if ended[at][1] > last.low and ended[at][2] < number:
                found.setdefault(ended[at][2], number)
            at += 1
    return found


def no_seal(topic: str, segment: int, later: int) -> Finding:
    """Returns the finding of a segment that is `unended`, with the later one, and still has no seal."""
    what = f"ends without a seal, but the later segment {later} has files with some of its keys"
    return Finding(segment_folder(topic, segment), what)


def map_findings(topic: str, known: Mapping[int, Bounds]) -> Iterator[Finding]:
    """Checks a broker's map of all segments for contradictions."""
    try:
        whole = tiles_key_space(KeyRange(b.low, b.high) for b in known.values() if b.state == "open")
    except ValueError:
        whole = False
    if not whole:
        yield Finding(
            f"topics/{topic}/", "has open segments, according to the broker, that do not cover every key exactly once"
        )
    for number, bounds in known.items():
        where = segment_folder(topic, number)
        if (bounds.state == "sealed") != bool(bounds.successors):
            yield Finding(
                where, f"is {bounds.state} according to the broker, but has the successors {list(bounds.successors)}"
            )
        for successor in bounds.successors:
            if successor not in known or number not in known[successor].predecessors:
                yield Finding(
                    where, f"has the successor {successor} according to the broker, but not the other way round"
                )
        for before in bounds.predecessors:
            if before in known and number not in known[before].successors:
                yield Finding(
                    where, f"has the predecessor {before} according to the broker, but not the other way round"
                )


def _covers(last: EntryMetadata, seal: Seal) -> bool:
    """Tells whether the successors' ranges, each clipped to the segment's, cover all its keys once."""
    ranges: Sequence[tuple[int, int]] = sorted(seal.ranges)
    at = last.low
    for low, high in ranges:
        if max(low, last.low) != at or low >= high:
            return False
        at = min(high, last.high)
    return at == last.high and len(seal.successors) == len(ranges) and min(seal.successors) > last.segment


def _listed(seal: Seal) -> str:
    pairs = zip(seal.successors, seal.ranges, strict=False)
    return ", ".join(f"{number} [{low}, {high})" for number, (low, high) in pairs) or "none"


def disagreement(
    rows: pa.Table, answer: pa.Table, first: int, end: int, now_us: int, earlier: bool = False
) -> str | None:
    """Returns how an answer for the offsets [first, end) differs from `rows`, whose dense offsets include them; if they
    are of an `earlier` version of the schema than the answer, fields may have been dropped. None: it agrees."""
    rows = rows.slice(first - rows["_offset"][0].as_py(), end - first)
    offsets = answer["_offset"].to_numpy()
    if problem := misplaced(answer, first, end):
        return problem
    missing = np.ones(end - first, dtype=bool)
    missing[offsets - first] = False
    expired = pc.less_equal(rows["_expires"], pa.scalar(now_us + SKEW_US, TIMESTAMP)).fill_null(False).to_numpy()
    lost = np.flatnonzero(missing & ~expired)
    if len(lost):
        return f"offset {first + int(lost[0])} is in the files, but the broker does not return it"
    kept = rows.filter(pa.array(~missing)) if missing.any() else rows
    if earlier:
        names = {identity(one): one.name for one in answer.schema}
        kept = kept.rename_columns([names.get(identity(one), one.name) for one in kept.schema])
        kept = kept.select([name for name in kept.column_names if name in answer.schema.names])
    return _different(kept, answer)


def misplaced(answer: pa.Table, first: int, end: int) -> str | None:
    """Returns an error text unless the offsets of an answer rise and lie within [first, end)."""
    offsets = answer["_offset"].to_numpy()
    if len(offsets) and not (first <= offsets[0] and offsets[-1] < end and (np.diff(offsets) > 0).all()):
        answered = f"its answer, from {offsets[0]} to {offsets[-1]}, is out of range or out of order"
        return f"the broker was asked for the offsets {first} to {end - 1}, but {answered}"
    return None


def _different(rows: pa.Table, answer: pa.Table) -> str | None:
    if unheld(rows.schema, answer.schema) is None:  # which are of an earlier version of the schema
        later = [field for field in answer.schema if field.name not in rows.schema.names]
        columns = [*rows.columns, *(pa.nulls(len(rows), field.type) for field in later)]
        whole = pa.table(columns, [*rows.schema.names, *(field.name for field in later)])
        rows = whole.select(answer.schema.names).cast(answer.schema)
    if rows.schema.names != answer.schema.names:
        return f"the broker returns the columns {answer.schema.names}, but the files have {rows.schema.names}"
    for name in rows.schema.names:
        mine, theirs = rows[name].combine_chunks(), answer[name].combine_chunks()
        if not _same(mine, theirs):
            at = _first_difference(mine, theirs)
            return f"the broker returns a different {name} at offset {rows['_offset'][at].as_py()} than the files hold"
    return None


def _same(mine: pa.Array, theirs: pa.Array) -> bool:
    """Compares bit by bit, so that a NaN equals itself."""
    if mine.type == theirs.type and pa.types.is_floating(mine.type):
        bits = pa.int64() if mine.type.bit_width == 64 else pa.int32()
        mine, theirs = mine.view(bits), theirs.view(bits)
    return bool(mine.equals(theirs))


def _first_difference(mine: pa.Array, theirs: pa.Array) -> int:
    low, high = 0, len(mine)  # equal below low, different below high
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if _same(mine[low:middle], theirs[low:middle]) else (low, middle)
    return low
