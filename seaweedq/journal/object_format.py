"""Slots, the objects of an object journal. Owns their names and bytes, and which of them count; does no I/O.

A slot is a header (magic, version, kind, number, broker, the put's nonce, `released`, lengths, CRCs), an index of
frames and their payloads (frames.pack). A *fence* is a slot without data that a recovery puts where the broker's next
one would go. The header stands alone, so that whose a slot is, and what it says, can be read without the rest.

`released` says, as of the slot's making, that no slot below that number is needed any more. It never falls from one
slot to the next, so the newest slot says the most.
"""

import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from seaweedq.errors import JournalDamaged
from seaweedq.segments.commits import Commit
from seaweedq.segments.frames import Frame, pack, padded, padding, unpack

VERSION = 1
MAX_WINDOW = 64
MAX_UNDER_WAY = MAX_WINDOW + 1
"""Slots that a broker may have under way: its window, and the empty one that says that it is idle. So at most so many
of its own stand at or above a fence that holds."""
HEADER_BYTES = 256
"""So many bytes of a slot hold its header; it may be shorter."""

_MAGIC = b"seaweedq"
_FIXED = struct.Struct("<8sIHHQQ16sQQI")  # the broker id and a CRC of both follow
_CRC = struct.Struct("<I")


class SlotKind(IntEnum):
    """The kinds of slots: commits of a broker, and fences of recoveries."""

    DATA = 1
    FENCE = 2


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """The header of a slot. `nonce` is the put's: 32 hexadecimal digits that only its writer has."""

    kind: SlotKind
    broker: str
    number: int
    nonce: str
    released: int


@dataclass(frozen=True, slots=True)
class Run:
    """The slots that count are [first, end). `fence` is the newest fence that is not behind the broker, if any."""

    first: int
    end: int
    fence: int | None


def journal_folder(broker: str) -> str:
    """Returns the prefix of the names of a journal's slots."""
    return f"_journals/{broker}/"


def slot_name(broker: str, number: int) -> str:
    """Returns the object's name of a slot, counted from 0."""
    return f"{journal_folder(broker)}{number:08d}"


def slot_number(name: str) -> int:
    """Returns the number in an object's name. Raises JournalDamaged if that is no slot's name."""
    digits = name.rpartition("/")[2]
    if len(digits) < 8 or not (digits.isascii() and digits.isdigit()):
        raise _damaged(name, "is no slot of a journal")
    return int(digits)


def encode_slot(header: SlotHeader, frames: Sequence[Frame]) -> bytes:
    """Returns a slot's bytes. Payloads are copied once."""
    index, body = pack(frames)
    index_padded = index + padding(len(index))
    broker = header.broker.encode()
    fixed = _FIXED.pack(
        _MAGIC,
        VERSION,
        header.kind,
        len(broker),
        header.number,
        header.released,
        bytes.fromhex(header.nonce),
        len(index),
        sum(memoryview(part).nbytes for part in body),
        zlib.crc32(index_padded),
    )
    head = fixed + broker + bytes(_header_bytes(len(broker)) - len(fixed) - len(broker) - _CRC.size)
    assert len(head) < HEADER_BYTES, f"the broker's id is too long: {header.broker}"
    return b"".join((head, _CRC.pack(zlib.crc32(head)), index_padded, *body))


def decode_header(data: bytes, name: str) -> SlotHeader:
    """Returns the header of the slot of that name, from its first HEADER_BYTES bytes or more. Raises JournalDamaged."""
    return _decode_header(memoryview(data), name)[0]


def slot_bytes(data: bytes, name: str) -> int:
    """Returns the size of the slot of that name, from its first HEADER_BYTES bytes or more. Raises JournalDamaged."""
    _, index_at, index_length, body_length, _ = _decode_header(memoryview(data), name)
    return index_at + padded(index_length) + body_length


def decode_slot(data: bytes, name: str) -> tuple[SlotHeader, Commit]:
    """Returns the slot of that name, decoded; payloads are slices of `data`. Raises JournalDamaged."""
    view = memoryview(data)
    header, index_at, index_length, body_length, crc = _decode_header(view, name)
    body_at = index_at + padded(index_length)
    if len(view) != body_at + body_length or zlib.crc32(view[index_at:body_at]) != crc:
        raise _damaged(name, "is not as it was written: its length, or its index")
    frames = unpack(view[index_at : index_at + index_length], view[body_at:])
    if frames is None:
        raise _damaged(name, "holds other bytes than were written")
    return header, Commit(header.number, frames)


def near(newest: int) -> int:
    """Returns the lowest number that a fence that holds can have where `newest` is the newest slot of all."""
    return max(newest - MAX_UNDER_WAY + 1, 0)


def valid_run(there: Collection[int], headers: Mapping[int, SlotHeader]) -> Run:
    """Returns the slots that count of those that a listing found: from the highest `released` to a gap or fence.

    `headers` are needed of the newest slot with data and of all numbers from `near` on: a fence that holds is among
    them, and further down only slots with data, or fences that the broker had left behind, can stand. More do no harm.
    """
    first = max((h.released for h in headers.values() if h.kind is SlotKind.DATA), default=0)
    fences = {number for number, header in headers.items() if header.kind is SlotKind.FENCE and number >= first}
    end = first
    while end in there and end not in fences:
        end += 1
    return Run(first, end, max(fences, default=None))


def _decode_header(view: memoryview, name: str) -> tuple[SlotHeader, int, int, int, int]:
    """Returns the header, where the index begins, its length, that of the payloads, and the CRC of the index."""
    if len(view) < _FIXED.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise _damaged(name, "does not begin as a slot does")
    _, version, kind, broker_length, number, released, nonce, index_length, length, crc = _FIXED.unpack_from(view)
    if version != VERSION:
        raise _damaged(name, f"has format version {version}; this software reads {VERSION}")
    end = _header_bytes(broker_length)
    if len(view) < end or zlib.crc32(view[: end - _CRC.size]) != _CRC.unpack_from(view, end - _CRC.size)[0]:
        raise _damaged(name, "has a bad header")
    broker = str(view[_FIXED.size : _FIXED.size + broker_length], "utf-8")
    if slot_name(broker, number) != name:
        raise _damaged(name, f"says that it is {slot_name(broker, number)}")
    return SlotHeader(SlotKind(kind), broker, number, nonce.hex(), released), end, index_length, length, crc


def _header_bytes(broker_length: int) -> int:
    """Returns the size with zeros before the CRC, so that the index begins where payloads may."""
    return padded(_FIXED.size + broker_length + _CRC.size)


def _damaged(name: str, what: str) -> JournalDamaged:
    return JournalDamaged(f"{name} {what}", path=name, position=0)
