"""Frames, the records of a journal, and the commits that hold them. Owns their content, their packing, and the bytes of
a file journal's files; does no I/O.

A frame has rows of one segment, acks, or the sequence of an empty entry to come. Frames of the first and the last kind
state the term (segments/terms) in which this broker owned the segment.

Packed, frames are an *index* (their headers, with length and CRC of each payload) and the payloads, each padded with
zeros to a multiple of eight bytes, so that Arrow reads them in place. An object journal has its own way to delimit them
(journal/object_format). The index has a CRC where it is written. So a frame that is whole and cannot be decoded, or has
columns that nobody knows here, is of a later version, and needs a newer broker. Later versions add to the end of a
header, and kinds.

A file journal's file is a header followed by commits; a commit is a header, an index and payloads. Every commit begins
with its file's random id, which no message can contain, so that a commit can be found without its predecessor. Rules:

- Only the last commit of the last file may be damaged. A crash can damage any of its bytes; all of it is cut off.
- File n+1's header states where file n ends. Bytes after that end were never acknowledged, even if they are whole.
- A header is durable before the first commit is written. So a bad header followed by bytes is damage; without them
  the file was never begun.
- Commit numbers rise by one.
- A header's size, magic, version and CRC stay where they are in every version, so that one of a later version is told
  from a damaged one: it needs a newer broker.
"""

import struct
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import astuple

from seaweedq.errors import JournalDamaged
from seaweedq.formats import Format, check_draft, drafted, needs_newer, undrafted
from seaweedq.segments.layout import OPTIONAL_FIELDS, Layout
from seaweedq.segments.terms import NO_TERM, Term

Buffer: TypeAlias = bytes | memoryview | pa.Buffer
ALIGNMENT = 8
_encoder = msgspec.msgpack.Encoder()
FILES = Format("journal files", {1: 1})
_MAGIC = b"seaweedq"
_FILE = struct.Struct("<8sI16sQQQ")  # magic, version and draft, file id, number, previous end, first commit
_COMMIT = struct.Struct("<16sQIQIQ")  # file id, number, index length, body length, generation and revision
_CRC = struct.Struct("<I")
FILE_HEADER_BYTES = _FILE.size + _CRC.size
COMMIT_HEADER_BYTES = _COMMIT.size + _CRC.size
_SEARCH_BYTES = 1024 * 1024  # of a file that are searched at a time


class FrameKind(IntEnum):
    """The kind of a frame's content."""

    ROWS = 1
    ACKS = 3
    EMPTY_ENTRY = 4  # an idle segment gets an entry without rows


class ProducerRange(Struct, array_like=True, frozen=True):
    """A producer's request with the inclusive sequences `low` to `high`. Its `count` rows in the range part that begins
    at `part` have the offsets from `first_offset` on."""

    producer: str
    low: int
    high: int
    first_offset: int
    count: int
    part: int


class _FrameFields(Struct, array_like=True, frozen=True):
    kind: FrameKind
    topic: str
    segment: int
    first_offset: int
    count: int
    columns: int
    schema_id: int
    ranges: tuple[ProducerRange, ...]
    append_time_us: int


class Frame(_FrameFields, frozen=True):
    """One record of a segment. `columns` is the mask of optional columns of the rows in `payload` (layout.mask_of).
    `term` is the term of the segment's owner; acks have none."""

    payload: Buffer
    term: Term = NO_TERM


class _Header(_FrameFields, frozen=True):
    length: int
    crc: int
    term: Term


class EmptyEntryFrame(Struct, array_like=True, frozen=True):
    """The content of an EMPTY_ENTRY frame: the sequence of the entry that the segment gets."""

    sequence: int


_decoder = msgspec.msgpack.Decoder(list[_Header])
_empty_entry = msgspec.msgpack.Decoder(EmptyEntryFrame)


def empty_entry_frame(topic: str, segment: int, sequence: int, now_us: int, term: Term) -> Frame:
    """Makes the frame that says which entry without rows a segment gets."""
    payload = _encoder.encode(EmptyEntryFrame(sequence))
    return Frame(FrameKind.EMPTY_ENTRY, topic, segment, 0, 0, 0, 0, (), now_us, payload, term)


def empty_entry_sequence(frame: Frame) -> int:
    """Returns the sequence that an EMPTY_ENTRY frame names. Raises NeedsNewerBroker."""
    try:
        return _empty_entry.decode(frame.payload).sequence
    except msgspec.DecodeError as error:
        raise needs_newer(
            f"a journal record of segment {frame.segment} of topic {frame.topic!r} cannot be read ({error})"
        ) from error


def terms_of(index: bytes | memoryview) -> dict[tuple[str, int], Term]:
    """Returns the highest term that the frames of an index, which is whole, state of each segment, by topic and
    segment. Raises NeedsNewerBroker."""
    found: dict[tuple[str, int], Term] = {}
    for header in _headers_of(index):
        if header.term != NO_TERM:
            place = header.topic, header.segment
            found[place] = max(header.term, found.get(place, NO_TERM))
    return found


def rows_of(frame: Frame, layout: Layout) -> pa.RecordBatch:
    """Returns the rows of a ROWS frame, without a copy. `layout` is that of the frame's topic and schema id. Raises
    JournalDamaged if they are not as many as the frame says, NeedsNewerBroker if this broker cannot read them."""
    where = f"a frame of segment {frame.segment} of {frame.topic!r} from offset {frame.first_offset}"
    if frame.columns >> len(OPTIONAL_FIELDS):
        raise needs_newer(f"{where} has columns that this broker does not know")
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(frame.payload), layout.rows(frame.columns))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise needs_newer(f"{where} has rows that this broker cannot read ({error})") from error
    if rows.num_rows != frame.count:
        raise JournalDamaged(f"{where} states {frame.count} rows, but contains {rows.num_rows} rows")
    return rows


def check_frames(frames: Iterable[Frame]) -> None:
    """Asserts before a write the rules that every reader of a journal relies on."""
    for frame in frames:
        assert min(frame.segment, frame.first_offset, frame.count) >= 0, "numbers are not negative"
        assert (frame.count > 0) == (frame.kind is FrameKind.ROWS), "rows have a count, all other frames have none"


def padded(length: int) -> int:
    """Returns the length including the padding."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def padding(length: int) -> bytes:
    """Returns the zeros that pad a payload of this length."""
    return bytes(-length % ALIGNMENT)


def pack(frames: Iterable[Frame]) -> tuple[bytes, list[Buffer], int]:
    """Returns the index, the buffers (payloads and padding) to write one after another, and their size in bytes.
    Payloads are not copied."""
    headers: list[_Header] = []
    body: list[Buffer] = []
    size = 0
    for frame in frames:
        length = memoryview(frame.payload).nbytes
        zeros = bytes(-length % ALIGNMENT)
        crc = zlib.crc32(zeros, zlib.crc32(frame.payload))
        headers.append(_Header(*(*astuple(frame)[:-2], length, crc, frame.term)))
        body += (frame.payload, zeros) if zeros else (frame.payload,)
        size += length + len(zeros)
    return _encoder.encode(headers), body, size


def unpack(index: memoryview, body: memoryview) -> tuple[Frame, ...] | None:
    """Returns the frames of an index, which is whole, and their payloads, as slices of `body`. None: a payload's CRC
    does not match. Raises NeedsNewerBroker."""
    frames, at = [], 0
    for header in _headers_of(index):
        end = at + padded(header.length)
        if zlib.crc32(body[at:end]) != header.crc:
            return None
        frames.append(Frame(*(*astuple(header)[:-3], body[at : at + header.length], header.term)))
        at = end
    return tuple(frames) if at == len(body) else None


def _headers_of(index: bytes | memoryview) -> list[_Header]:
    try:
        return _decoder.decode(index)
    except msgspec.DecodeError as error:
        raise needs_newer(f"this broker cannot read a record of the journal: {error}") from error


class Content(Protocol):
    """The content of a file, as bytes or read when a slice is taken."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of file `number` (from 0). `previous_end` is the end of the file before it, 0 for the first."""

    file_id: bytes
    number: int
    previous_end: int
    first_commit: int

    def encode(self, level: int) -> bytes:
        """Returns FILE_HEADER_BYTES bytes, with the CRC in the last four, as that level of the cluster has them."""
        fields = _FILE.pack(
            _MAGIC, drafted(FILES.at(level)), self.file_id, self.number, self.previous_end, self.first_commit
        )
        return fields + _CRC.pack(zlib.crc32(fields))


@dataclass(frozen=True, slots=True)
class Commit:
    """The frames that one append made durable."""

    number: int
    frames: tuple[Frame, ...]

    @property
    def size_bytes(self) -> int:
        """Returns the size of the payloads."""
        return sum(memoryview(frame.payload).nbytes for frame in self.frames)


@dataclass(frozen=True, slots=True)
class CommitIndex:
    """A commit without its payloads: its number, the generation and revision of coordination that it states, its index,
    and the place of its payloads in the file."""

    number: int
    seen: tuple[int, int]
    index: bytes
    body_at: int
    end: int


def encode_commit(
    file_id: bytes, number: int, frames: Sequence[Frame], seen: tuple[int, int] = (0, 0)
) -> tuple[list[Buffer], int]:
    """Encodes a commit as buffers for writev, and returns their size in bytes too; payloads are not copied. `seen` has
    the generation and revision of coordination that it states."""
    index, body, size = pack(frames)
    fields = _COMMIT.pack(file_id, number, len(index), size, *seen)
    index_padded = index + padding(len(index))
    head = fields + _CRC.pack(zlib.crc32(index_padded, zlib.crc32(fields))) + index_padded
    return [head, *body], len(head) + size


def read_header(data: bytes | memoryview, size: int, path: str) -> FileHeader | None:
    """Reads the header of a file of `size` bytes that begins with `data`. None: the file was never begun (empty or
    torn).

    Raises JournalDamaged for a damaged header with bytes after it, NeedsNewerBroker for a later version, LevelMismatch
    for another draft.
    """
    if len(data) >= FILE_HEADER_BYTES:
        magic, stamped, *fields = _FILE.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _FILE.size)
        if magic == _MAGIC and crc == zlib.crc32(data[: _FILE.size]):
            version, draft = undrafted(stamped)
            check_draft(draft, f"the journal file {path}")
            FILES.check(version, path)
            return FileHeader(*fields)
    if size > FILE_HEADER_BYTES:
        raise _damaged(path, 0, "the file has a damaged header")
    return None


def read_commits(data: Content, path: str, end: int | None = None) -> Generator[Commit, None, int]:
    """Yields a file's commits, each read by itself; returns their end, 0 for a file that was never begun.

    `end` is the end that the next file's header states, None for the last file. `path` is for errors. Raises
    JournalDamaged, with path and position, and NeedsNewerBroker; the commits that were yielded before are sound.
    """
    size = len(data)
    header = read_header(data[:FILE_HEADER_BYTES], size, path)
    if header is None:
        if end is not None:
            raise _damaged(path, 0, "the file has no header, although it is not the journal's last file")
        return 0
    if end is not None and not FILE_HEADER_BYTES <= end <= size:
        raise _damaged(path, size, f"the file is cut off: according to the next file, this file ends at byte {end}")
    at, number = FILE_HEADER_BYTES, header.first_commit
    while found := _whole_commit(data, at, size if end is None else end, header.file_id, number):
        commit, at = found
        del found
        yield commit
        del commit  # its memory may be let go of before the next one is read
        number += 1
    if end is not None and at != end:
        raise _damaged(
            path,
            at,
            f"the commit at this byte is damaged: according to the next file, commits continue up to byte {end}",
        )
    if end is None and _is_followed(data, at, header.file_id, number):
        raise _damaged(path, at, "the file has a damaged commit, and a valid commit after it")
    return at


def read_indices(data: Content, path: str) -> Iterator[CommitIndex]:
    """Yields a file's commits without their payloads, up to the first whose header or index is not whole. The payloads
    of the last one may be torn. Raises as `read_header`."""
    header = read_header(data[:FILE_HEADER_BYTES], len(data), path)
    at = FILE_HEADER_BYTES
    while header and (found := _commit_index(data, at, len(data), header.file_id)):
        yield found
        at = found.end


def _whole_commit(data: Content, at: int, limit: int, file_id: bytes, number: int) -> tuple[Commit, int] | None:
    """Returns the commit of that number at a position, and where it ends; None if it is torn or another one."""
    found = _commit_index(data, at, limit, file_id)
    if found is None or found.end > limit or found.number != number:
        return None
    frames = unpack(memoryview(found.index), memoryview(data[found.body_at : found.end]))
    return (Commit(number, frames), found.end) if frames is not None else None


def _commit_index(data: Content, at: int, limit: int, file_id: bytes) -> CommitIndex | None:
    """Returns the commit header at a position if it and the index are whole; the payloads may be torn."""
    if limit - at < COMMIT_HEADER_BYTES:
        return None
    head = data[at : at + COMMIT_HEADER_BYTES]
    if len(head) < COMMIT_HEADER_BYTES:
        return None
    found_id, number, index_length, body_length, *seen = _COMMIT.unpack_from(head)
    (crc,) = _CRC.unpack_from(head, _COMMIT.size)
    index_at = at + COMMIT_HEADER_BYTES
    body_at = index_at + padded(index_length)
    if found_id != file_id or body_at > limit:
        return None
    index = data[index_at:body_at]
    if crc != zlib.crc32(index, zlib.crc32(head[: _COMMIT.size])):
        return None
    return CommitIndex(number, (seen[0], seen[1]), index[:index_length], body_at, body_at + body_length)


def _is_followed(data: Content, at: int, file_id: bytes, expected: int) -> bool:
    """Tells whether a commit above `expected` begins at or after `at`: then `expected` was durable, and is damaged now.

    After `at` the file's id is enough, since the later commit may be torn itself. The number excludes copies of earlier
    commits, in case somebody has published bytes of this very file.
    """
    here = _commit_index(data, at, len(data), file_id)
    if here and here.number > expected:
        return True
    return any(number > expected for number in _numbers_behind(data, at + 1, file_id))


def _numbers_behind(data: Content, at: int, file_id: bytes) -> Iterator[int]:
    """Yields the number that stands behind each copy of a file's id, as a commit's would."""
    for start in range(at, len(data), _SEARCH_BYTES):
        window = data[start : start + _SEARCH_BYTES + COMMIT_HEADER_BYTES - 1]
        found = window.find(file_id)
        while 0 <= found <= min(_SEARCH_BYTES - 1, len(window) - COMMIT_HEADER_BYTES):
            yield _COMMIT.unpack_from(window, found)[1]
            found = window.find(file_id, found + 1)


def _damaged(path: str, position: int, what: str) -> JournalDamaged:
    return JournalDamaged(f"{path}, byte {position}: {what}", path=path, position=position)
