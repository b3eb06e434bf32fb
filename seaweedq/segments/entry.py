"""One entry of a chain: its name, its metadata, and its rows as a Parquet file.

The metadata is in the Parquet footer under the key `seaweedq`, so that each file describes itself. Nonce, producer
tables and seal make a log of a chain of such files.

The metadata has no version: each version ignores what a later one adds. A version whose files must not be read that way
says `needs_level` in the metadata; brokers that do not read that level need to be newer.

Parquet has checksums of pages and none of the footer, which has the places and the schema of the pages: of 30,000 bits
of a small file's footer, each flipped on its own, 181 were read as other rows, without an error. So a
*guard* stands right before the footer: MAGIC, and a CRC-32 of all bytes behind it. Other readers find the footer
from the file's end and the pages from the footer, so they pass over the guard.
"""

import io
import mmap
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import UNSET, UnsetType

from seaweedq import levels
from seaweedq.errors import ChainDamaged
from seaweedq.formats import needs_newer
from seaweedq.segments.layout import OFFSET_FIELD, OPTIONAL_FIELDS, Format, Layout
from seaweedq.segments.terms import FIRST_TERM, Tenure, Term

MAGIC = b"seaweedq"
GUARD = struct.Struct("<8sI")
_LENGTH = struct.Struct("<I")
_PARQUET = b"PAR1"
_END_BYTES = _LENGTH.size + len(_PARQUET)
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}"
"""The pattern that names of topics, subscriptions and producers match: never hidden, never a path."""

ROW_GROUP_ROWS = 65_536
METADATA_KEY = b"seaweedq"
LAST_SEQUENCE = 10**8 - 1  # that a name can have; no chain gets there
_NAME = re.compile(r"([0-9]{8})-([0-9]{16})\.parquet")
ENTRIES = f"{'[0-9]' * 8}-{'[0-9]' * 16}.parquet"  # the same as a glob
_UPLOAD_DATE = "/(?P<date>[0-9]{8})/[^/]+$"  # in a payload's URI
_DELTA = {"_offset", "_timestamp", "_expires"}
_SAMPLE_ROWS, _SAMPLE_BYTES = 1_000, 256 * 1024
_BATCH_ROWS, _PAGE_BYTES = 1024, 1024 * 1024  # a page may end after each batch, and is in memory three times
_SPARE_BYTES = 1024 * 1024
_SHRINK_BYTES, _FAST = 8 * 1024, -1000  # a level of zstd that copies nearly all
_ZSTD = pa.Codec("zstd", compression_level=1)


def guard(file: memoryview, size: int) -> int:
    """Puts a guard before the footer of the file in the first `size` bytes, behind which there is room for it. Returns
    the size with it."""
    at = size - _END_BYTES - _footer_bytes(file[:size])
    footer = bytes(file[at:size])
    whole = GUARD.pack(MAGIC, zlib.crc32(footer)) + footer
    file[at : at + len(whole)] = whole
    return at + len(whole)


def read_footer(file: BinaryIO) -> pq.FileMetaData:
    """Reads the footer of a file. Raises ValueError for one that is not as it was written, and the errors of
    reading."""
    end = file.seek(0, io.SEEK_END)
    file.seek(max(end - _END_BYTES, 0))
    length = _footer_bytes(memoryview(file.read(_END_BYTES)))
    start = end - _END_BYTES - length
    if start < len(_PARQUET):
        raise ValueError("the footer is longer than the file")
    file.seek(max(start - GUARD.size, 0))
    found = memoryview(file.read(end - file.tell()))
    before, footer = found[: -(length + _END_BYTES)], found[-(length + _END_BYTES) :]
    if bytes(before) != GUARD.pack(MAGIC, zlib.crc32(footer)):
        raise ValueError("the footer was changed after it was written")
    return pq.read_metadata(pa.BufferReader(_PARQUET + footer))


def _footer_bytes(file: memoryview) -> int:
    """Returns the length of the footer that the end of a file states. Raises ValueError if it is no end of one."""
    if len(file) < _END_BYTES or bytes(file[-len(_PARQUET) :]) != _PARQUET:
        raise ValueError("the file does not end like a Parquet file")
    return int(_LENGTH.unpack(file[-_END_BYTES : -len(_PARQUET)])[0])


MARKERS = -1  # the segment in whose folder the markers of a schema's versions are
LAST_SEQUENCE = 99_999_999  # that a name has room for


class SealedSuccessor(msgspec.Struct, frozen=True):
    """A segment that an intent opens: its id, and its range [low, high)."""

    id: int
    low: int
    high: int


class SealedIntent(msgspec.Struct, frozen=True):
    """An intent as seals name it: its id, the segments that it ends, and the successors that it opens in their place.
    It was committed: else there would be no seal."""

    id: int
    segments: tuple[int, ...]
    successors: tuple[SealedSuccessor, ...]


class Seal(msgspec.Struct, frozen=True):
    """The end of a segment: the ids of its own successors and their half-open ranges, and the intent that ended it,
    whole, so that the chain alone says how to go on."""

    successors: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    intent: SealedIntent = SealedIntent(0, (), ())


class EntryMetadata(msgspec.Struct, frozen=True):
    """The metadata of an entry. `next_offset` is one above the last row's; times are in microseconds since 1970.

    `max_timestamp_us` is at least every `_timestamp` up to here; it may be that of a row still in the tail.
    `oldest_upload` is the date (YYYYMMDD) of the oldest upload that a row names, empty if none does. The rows are those
    of the segment's `owner` in its `term` (segments/terms), also where another broker has written them for a recovery;
    so are all from the offset `since` on. The first entry of a topic has the topic's record, and a marker that of the
    version of the schema, as coordination has them.
    """

    cluster: str
    topic: str
    segment: int
    low: int
    high: int
    sequence: int
    first_offset: int
    next_offset: int
    broker: str
    nonce: str
    schema_id: int
    appended_us: int
    max_timestamp_us: int
    producers: bytes
    seal: Seal | None = None
    oldest_upload: str = ""
    term: Term = FIRST_TERM
    owner: str = ""
    since: int = 0
    topic_record: dict[str, Any] | UnsetType = UNSET
    schema_record: dict[str, Any] | UnsetType = UNSET

    @property
    def tenure(self) -> Tenure:
        """Returns the term, and the owner in it."""
        return Tenure(self.term, self.owner)

    @property
    def intent(self) -> SealedIntent | None:
        """Returns the intent that has ended the chain, None if it goes on."""
        return self.seal.intent if self.seal else None


class _Needs(msgspec.Struct):
    needs_level: int = 1


_needs, _metadata = msgspec.json.Decoder(_Needs), msgspec.json.Decoder(EntryMetadata)


class EntryName(msgspec.Struct, frozen=True, order=True):
    """The sequence and the first offset of an entry: all that a listing tells."""

    sequence: int
    first_offset: int

    def __str__(self) -> str:
        return f"{self.sequence:08d}-{self.first_offset:016d}.parquet"

    @staticmethod
    def parse(name: str) -> "EntryName":
        """Parses the last part of an object's name. Raises ChainDamaged if it is not the name of an entry."""
        found = EntryName.from_object(name.rsplit("/", 1)[-1])
        if not found:
            raise ChainDamaged(f"{name!r} is not the name of a segment's file", name=name)
        return found

    @staticmethod
    def of_marker(incarnation: int, schema_id: int) -> "EntryName":
        """Returns the name of the marker of a version of a schema, in the folder of the segment MARKERS: the newest one
        comes first, and all come before the entries of segments."""
        return EntryName(LAST_SEQUENCE - schema_id, incarnation)

    @property
    def schema_id(self) -> int:
        """The version of the schema whose marker this is."""
        return LAST_SEQUENCE - self.sequence

    @staticmethod
    def from_object(name: str, folder: str = "") -> "EntryName | None":
        """Returns the entry that an object of a folder is; None for an object of somebody else."""
        match = _NAME.fullmatch(name.removeprefix(folder))
        return EntryName(int(match[1]), int(match[2])) if match else None


def segment_folder(topic: str, segment: int) -> str:
    """Returns the folder of a segment's chain. The number is not padded, so that every reader parses `segment` as an
    integer."""
    return f"topics/{topic}/segment={segment}/"


def segment_in(folder: str) -> int | None:
    """Returns the segment whose folder this is; None if it is somebody else's."""
    _, _, number = folder.rstrip("/").rpartition("/segment=")
    return int(number) if number.isascii() and number.isdecimal() else None


def encode_entry(batches: Sequence[tuple[int, pa.RecordBatch]], layout: Layout, metadata: EntryMetadata) -> pa.Buffer:
    """Encodes an entry as a Parquet file, aligned to a memory page. `batches` are dense
    (first offset, rows); none make a file without rows."""
    table = layout.gather(batches)
    space = page_aligned(table.nbytes + _SPARE_BYTES)
    sink: pa.NativeFile = pa.FixedSizeBufferWriter(space)
    try:
        _write(sink, table, layout, metadata)
        size = sink.tell()
    except OSError:
        size = space.size + 1  # or more
    if size + GUARD.size > space.size:  # few files are larger than their rows
        sink = pa.BufferOutputStream()
        _write(sink, table, layout, metadata)
        file = sink.getvalue()
        size, space = file.size, page_aligned(file.size + GUARD.size)
        memoryview(space).cast("B")[:size] = memoryview(file).cast("B")
    return space.slice(0, guard(memoryview(space).cast("B"), size))


def oldest_upload(batches: Sequence[tuple[int, pa.RecordBatch]]) -> str:
    """Returns the date of the oldest upload whose payload a row names; empty if none does."""
    columns = [rows.column("_reference") for _, rows in batches if "_reference" in rows.schema.names]
    uris = [pc.struct_field(column, "uri") for column in columns]
    dates = [pc.min(pc.struct_field(pc.extract_regex(each, _UPLOAD_DATE), "date")).as_py() for each in uris]
    return min((date for date in dates if date), default="")


def page_aligned(size: int) -> pa.Buffer:
    """Returns a mutable buffer that begins at a memory page, as direct writes to a disk require."""
    memory = np.empty(size + mmap.PAGESIZE, np.uint8)
    start = -memory.ctypes.data % mmap.PAGESIZE
    return pa.py_buffer(memory[start : start + size])


def _write(sink: pa.NativeFile, table: pa.Table, layout: Layout, metadata: EntryMetadata) -> None:
    with pq.ParquetWriter(sink, layout.file, **_writer_options(table, layout)) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata({METADATA_KEY: msgspec.json.encode(metadata)})


def _writer_options(table: pa.Table, layout: Layout) -> dict[str, Any]:
    opaque = {"value"} if layout.format is not Format.TYPED else set()
    encodings = dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED")
    return {
        "compression": "zstd",
        "compression_level": {f.name: _FAST for f in layout.values if not _shrinks(table[f.name])} or 1,
        "write_batch_size": max(1, min(_BATCH_ROWS, _rows_of(table, _PAGE_BYTES))),
        "use_dictionary": [name for name in table.column_names if name not in _DELTA and _repeats(table[name])],
        "column_encoding": encodings,
        "write_statistics": [f.name for f in layout.table if f.name not in opaque and not pa.types.is_nested(f.type)],
        "write_page_index": True,
        "write_page_checksum": True,  # 10% of the encoding; without, seven of eight flipped bits read as wrong rows
    }


def _repeats(column: pa.ChunkedArray) -> bool:
    """Tells whether a dictionary saves space: at most half of a sample's values are different. The values are copied to
    count them, so the sample has few of large ones."""
    if pa.types.is_nested(column.type) or column.num_chunks == 0:
        return False
    first = column.chunk(0)
    sample = first.slice(0, min(_SAMPLE_ROWS, max(4, _rows_of(first, _SAMPLE_BYTES)))).drop_null()
    return len(sample) > 0 and 2 * len(sample.unique()) <= len(sample)


def _shrinks(column: pa.ChunkedArray) -> bool:
    """Tells whether compression saves space. Where values are compressed or encrypted already it does not, and takes
    half of the time of an entry. Samples two places of the first and of the last chunk; columns of other kinds than
    bytes and text count as if it did."""
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)) or column.num_chunks == 0:
        return True
    sample = b""
    for at in sorted({0, column.num_chunks - 1}):
        data = column.chunk(at).buffers()[-1]
        if data is None or data.size < 4 * _SHRINK_BYTES:
            return True
        sample += b"".join(data.slice(data.size * part // 4, _SHRINK_BYTES).to_pybytes() for part in (1, 2))
    return bool(_ZSTD.compress(sample).size < 0.95 * len(sample))


def _rows_of(data: pa.Table | pa.Array, size: int) -> int:
    """Returns how many rows have so many bytes, on average."""
    return size * len(data) // max(int(data.nbytes), 1)


def open_entry(file: BinaryIO, name: str) -> tuple[pq.ParquetFile, EntryMetadata]:
    """Opens an entry: the Parquet file and its metadata, which must match its name. Raises ChainDamaged,
    NeedsNewerBroker.

    The footer's checksum is verified here, those of the pages when rows are read; on a mismatch reading raises OSError.
    """
    try:
        parquet = pq.ParquetFile(file, metadata=read_footer(file), page_checksum_verification=True)
        raw = parquet.metadata.metadata or {}
        metadata = _decoded(raw[METADATA_KEY], name)
        if parquet.schema_arrow.names[0] != OFFSET_FIELD.name:
            raise KeyError(OFFSET_FIELD.name)
    except (pa.ArrowException, OSError, LookupError, ValueError, msgspec.DecodeError) as error:
        raise ChainDamaged(f"{name} cannot be read as a segment's file: {error}", name=name) from error
    if EntryName.parse(name) != EntryName(metadata.sequence, metadata.first_offset):
        raise ChainDamaged(
            f"the metadata of {name} does not match its name: the metadata has file number "
            f"{metadata.sequence} and first offset {metadata.first_offset}",
            name=name,
        )
    if metadata.next_offset - metadata.first_offset != parquet.metadata.num_rows:
        raise ChainDamaged(
            f"the metadata of {name} states {metadata.next_offset - metadata.first_offset} rows, "
            f"but the file contains {parquet.metadata.num_rows}",
            name=name,
        )
    return parquet, metadata


def _decoded(stated: bytes, name: str) -> EntryMetadata:
    needs = _needs.decode(stated).needs_level  # first, since a later level may have other members
    if needs > levels.HIGHEST:
        raise needs_newer(
            f"{name} needs a broker that can read format level {needs}; this broker can read "
            f"levels up to {levels.HIGHEST}"
        )
    return _metadata.decode(stated)


def read_rows(parquet: pq.ParquetFile, group: int, layout: Layout, schema_id: int) -> pa.RecordBatch:
    """Reads one row group as rows: without `_offset`, and without the optional columns that are all null. They have the
    columns of the file, whose version `schema_id` may be another one than that of `layout`, the topic's."""
    layout = layout.of(parquet.schema_arrow, schema_id)
    table = parquet.read_row_group(group, columns=layout.table.names[1:], use_threads=False)
    batch = table.combine_chunks().to_batches()[0]
    present = [f for f in OPTIONAL_FIELDS if batch.column(f.name).null_count < len(batch)]
    schema = layout.rows(sum(1 << OPTIONAL_FIELDS.index(f) for f in present))
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)
