"""Slots, the objects of an object journal. Owns their names and bytes, and which of them count; does no I/O.

A slot is a header (magic, version, kind, number, broker, the put's nonce, `released`, `acknowledged`, lengths, CRCs),
an index of frames and their payloads (frames.pack). A *fence* is a slot without data that a recovery puts where the
broker's next one would go. The header stands alone, so that whose a slot is, and what it says, can be read without the
rest.

`released` says, as of the slot's making, that no slot below that number is needed any more; `acknowledged`, from
version 2 on, that all below that number were durable. Neither falls from one slot to the next, so the newest slot says
the most. So a slot that is missing between the two was lost. At or above `acknowledged` a gap is taken for the end: up
to a window of slots may be missing there, since none of them was acknowledged when the newest slot was made. Version 1
states nothing, but no broker has more than MAX_UNDER_WAY slots under way: all slots further down were acknowledged.

Every version begins with magic and version; from 2 on, a CRC of the whole header and the header's length follow. So a
header of a later version is told from a damaged one, and needs a newer broker.
"""

import struct
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from seaweedq.clock import Ids
from seaweedq.errors import JournalDamaged
from seaweedq.formats import Format, Level, needs_newer
from seaweedq.segments.commits import Commit
from seaweedq.segments.frames import Frame, pack, padded, padding, unpack

SLOTS = Format("slots", {1: 1, 2: 2})
MAX_WINDOW = 64
MAX_UNDER_WAY = MAX_WINDOW + 1
"""Slots that a broker may have under way: its window, and the empty one that says that it is idle. So at most so many
of its own stand at or above a fence that holds."""
JOURNALS_FOLDER = "_journals/"
HEADER_BYTES = 256
"""So many bytes of a slot hold its header; it may be shorter."""

_MAGIC = b"seaweedq"
_BEGIN = struct.Struct("<8sI")  # magic, version: of every version
_FIXED_1 = struct.Struct("<8sIHHQQ16sQQI")  # the broker id and a CRC of both follow
_CRC = struct.Struct("<I")
_CHECK = struct.Struct("<8sIIH")  # magic, version, CRC of all other bytes, length of the header: of every later version
_FIXED_2 = struct.Struct("<HHQQQ16sQQI")  # the broker id follows


class SlotKind(IntEnum):
    """The kinds of slots: commits of a broker, and fences of recoveries."""

    DATA = 1
    FENCE = 2


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """The header of a slot. `nonce` is the put's: 32 hexadecimal digits that only its writer has.

    In `version` 1 nothing is stated about what is `acknowledged`.
    """

    kind: SlotKind
    broker: str
    number: int
    nonce: str
    released: int
    acknowledged: int = 0
    version: int = 1


@dataclass(frozen=True)
class SlotHeaders:
    """The headers of the slots of `broker`'s journal: each has a nonce, and the version of the cluster's level."""

    broker: str
    ids: Ids
    level: Level

    def make(self, kind: SlotKind, number: int, released: int, acknowledged: int) -> SlotHeader:
        """Returns the header of one more slot."""
        version = SLOTS.at(self.level())
        stated = acknowledged if version > 1 else 0
        return SlotHeader(kind, self.broker, number, self.ids.nonce(), released, stated, version)


@dataclass(frozen=True, slots=True)
class Run:
    """The slots that count are [first, end). `fence` is the newest fence that is not behind the broker, if any.

    All slots from `first` to below `reached` existed: their broker has acknowledged them, or a recovery found them
    there before it put the fence.
    """

    first: int
    end: int
    fence: int | None
    reached: int

    @property
    def is_torn(self) -> bool:
        """Tells whether a slot is missing, or a fence stands in its place, where a slot was: it was lost, unless the
        journal was recovered and goes."""
        return self.end < self.reached


def journal_folder(broker: str) -> str:
    """Returns the prefix of the names of a journal's slots."""
    return f"{JOURNALS_FOLDER}{broker}/"


def slot_name(broker: str, number: int) -> str:
    """Returns the object's name of a slot, counted from 0."""
    return f"{journal_folder(broker)}{number:08d}"


def slot_number(name: str, broker: str) -> int | None:
    """Returns the number in an object's name; None if that is no slot of the broker's journal."""
    digits = name.removeprefix(journal_folder(broker))
    if not (digits.isascii() and digits.isdigit()) or slot_name(broker, int(digits)) != name:
        return None
    return int(digits)


def encode_slot(header: SlotHeader, frames: Sequence[Frame]) -> bytes:
    """Returns a slot's bytes. Payloads are copied once."""
    index, body = pack(frames)
    index_padded = index + padding(len(index))
    lengths = len(index), sum(memoryview(part).nbytes for part in body), zlib.crc32(index_padded)
    head = _ENCODERS[header.version](header, header.broker.encode(), lengths)
    assert len(head) <= HEADER_BYTES, f"the broker's id is too long: {header.broker}"
    return b"".join((head, index_padded, *body))


def decode_header(data: bytes, name: str) -> SlotHeader:
    """Returns the header of the slot of that name, from its first HEADER_BYTES bytes or more. Raises JournalDamaged,
    NeedsNewerBroker."""
    return _decode_header(memoryview(data), name).header


def slot_bytes(data: bytes, name: str) -> int:
    """Returns the size of the slot of that name, from its first HEADER_BYTES bytes or more. Raises JournalDamaged,
    NeedsNewerBroker."""
    head = _decode_header(memoryview(data), name)
    return head.index_at + padded(head.index_length) + head.body_length


def decode_slot(data: bytes, name: str) -> tuple[SlotHeader, Commit]:
    """Returns the slot of that name, decoded; payloads are slices of `data`. Raises JournalDamaged,
    NeedsNewerBroker."""
    view = memoryview(data)
    head = _decode_header(view, name)
    body_at = head.index_at + padded(head.index_length)
    if len(view) != body_at + head.body_length or zlib.crc32(view[head.index_at : body_at]) != head.index_crc:
        raise _damaged(name, "is not as it was written: its length, or its index")
    frames = unpack(view[head.index_at : head.index_at + head.index_length], view[body_at:])
    if frames is None:
        raise _damaged(name, "holds other bytes than were written")
    return head.header, Commit(head.header.number, frames)


def near(newest: int) -> int:
    """Returns the lowest number that a fence that holds can have where `newest` is the newest slot of all.

    All slots below were acknowledged: their broker had no more than MAX_UNDER_WAY under way when it made the newest.
    """
    return max(newest - MAX_UNDER_WAY + 1, 0)


def valid_run(there: Collection[int], headers: Mapping[int, SlotHeader]) -> Run:
    """Returns the slots that count of those that a listing found: from the highest `released` to a gap or fence.

    `headers` are needed of the newest slot with data and of all numbers from `near` on: a fence that holds is among
    them, and further down only slots with data, or fences that the broker had left behind, can stand. More do no harm.
    """
    data = [header for header in headers.values() if header.kind is SlotKind.DATA]
    first = max((header.released for header in data), default=0)
    acknowledged = max((max(header.acknowledged, near(header.number)) for header in data), default=0)
    fences = {number for number, header in headers.items() if header.kind is SlotKind.FENCE and number >= first}
    end = first
    while end in there and end not in fences:
        end += 1
    fence = max(fences, default=None)
    found = fence if fence and data else 0  # a fence alone is what the removal of a journal leaves
    return Run(first, end, fence, max(acknowledged, found))


class _Head(NamedTuple):
    """A header, and where the index begins, its length, that of the payloads, and the CRC of the index."""

    header: SlotHeader
    index_at: int
    index_length: int
    body_length: int
    index_crc: int


def _decode_header(view: memoryview, name: str) -> _Head:
    if len(view) < _BEGIN.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise _damaged(name, "does not begin as a slot does")
    (_, version) = _BEGIN.unpack_from(view)
    try:
        head = _DECODERS.get(version, _decode_later)(view, name)
    except (struct.error, UnicodeDecodeError) as error:
        raise _damaged(name, "has a bad header") from error
    mine = slot_name(head.header.broker, head.header.number)
    if mine != name:
        raise _damaged(name, f"says that it is {mine}")
    return head


def _encode_1(header: SlotHeader, broker: bytes, lengths: tuple[int, int, int]) -> bytes:
    kind, nonce = header.kind, bytes.fromhex(header.nonce)
    fixed = _FIXED_1.pack(_MAGIC, 1, kind, len(broker), header.number, header.released, nonce, *lengths)
    head = fixed + broker + bytes(_header_bytes_1(len(broker)) - len(fixed) - len(broker) - _CRC.size)
    return head + _CRC.pack(zlib.crc32(head))


def _decode_1(view: memoryview, name: str) -> _Head:
    _, _, kind, broker_length, number, released, nonce, *lengths = _FIXED_1.unpack_from(view)
    end = _header_bytes_1(broker_length)
    if len(view) < end or zlib.crc32(view[: end - _CRC.size]) != _CRC.unpack_from(view, end - _CRC.size)[0]:
        raise _damaged(name, "has a bad header")
    broker = str(view[_FIXED_1.size : _FIXED_1.size + broker_length], "utf-8")
    return _Head(SlotHeader(_kind(kind, name), broker, number, nonce.hex(), released), end, *lengths)


def _header_bytes_1(broker_length: int) -> int:
    """Returns the size with zeros before the CRC, so that the index begins where payloads may."""
    return padded(_FIXED_1.size + broker_length + _CRC.size)


def _encode_2(header: SlotHeader, broker: bytes, lengths: tuple[int, int, int]) -> bytes:
    numbers = header.number, header.released, header.acknowledged
    rest = _FIXED_2.pack(header.kind, len(broker), *numbers, bytes.fromhex(header.nonce), *lengths) + broker
    length = padded(_CHECK.size + len(rest))
    rest += bytes(length - _CHECK.size - len(rest))
    crc = _checksum(_CHECK.pack(_MAGIC, header.version, 0, length) + rest)
    return _CHECK.pack(_MAGIC, header.version, crc, length) + rest


def _decode_2(view: memoryview, name: str) -> _Head:
    length = _checked_length(view, name)
    (_, version) = _BEGIN.unpack_from(view)
    kind, broker_length, number, released, acknowledged, nonce, *lengths = _FIXED_2.unpack_from(view, _CHECK.size)
    broker_at = _CHECK.size + _FIXED_2.size
    broker = str(view[broker_at : broker_at + broker_length], "utf-8")
    header = SlotHeader(_kind(kind, name), broker, number, nonce.hex(), released, acknowledged, version)
    return _Head(header, length, *lengths)


def _decode_later(view: memoryview, name: str) -> _Head:
    """Raises NeedsNewerBroker for a whole header of a later version, JournalDamaged for any other bytes."""
    _checked_length(view, name)
    SLOTS.check(_BEGIN.unpack_from(view)[1], name)
    raise _damaged(name, "has a bad header")


def _checked_length(view: memoryview, name: str) -> int:
    """Returns the length of a header from version 2 on. Raises JournalDamaged unless its CRC is right."""
    _, _, crc, length = _CHECK.unpack_from(view)
    if not _CHECK.size <= length <= len(view) or _checksum(view[:length]) != crc:
        raise _damaged(name, "has a bad header")
    return int(length)


def _checksum(head: bytes | memoryview) -> int:
    """Returns the CRC of a header but for the four bytes of the CRC itself."""
    return zlib.crc32(head[_BEGIN.size + _CRC.size :], zlib.crc32(head[: _BEGIN.size]))


def _kind(kind: int, name: str) -> SlotKind:
    if kind not in set(SlotKind):
        raise needs_newer(f"{name} is a slot of the unknown kind {kind}")
    return SlotKind(kind)


_ENCODERS: Mapping[int, Callable[[SlotHeader, bytes, tuple[int, int, int]], bytes]] = {1: _encode_1, 2: _encode_2}
_DECODERS: Mapping[int, Callable[[memoryview, str], _Head]] = {1: _decode_1, 2: _decode_2}


def _damaged(name: str, what: str) -> JournalDamaged:
    return JournalDamaged(f"{name} {what}", path=name, position=0)
