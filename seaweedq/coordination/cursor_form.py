"""The stored forms of a cursor, each within MAX_BYTES, since etcd refuses requests of more than 1.5 MB.

Level 1 has the acked runs and the attempts as JSON. Its runs are as long as they are: whoever writes a cursor asks
`fits` before. Level 2 packs both: a bit for each offset from `acked_to` on, and the offsets that were not delivered
just once with their counts. Attempts are a hint, so the lowest of them go where the record would be too large. Level 3
gives leases names and runs; those of the most runs go where it would be too large.
"""

import zlib
from base64 import b64decode, b64encode
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from seaweedq.coordination.records import CursorRecord, HeldLease

MAX_BYTES = 64 * 1024
_FIXED_BYTES = 1024  # for all but runs, attempts and leases
_LEASE_BYTES, _RUN_BYTES, _ATTEMPT_BYTES = 64, 44, 30  # at most, as JSON
MAX_LEASES = 256
_PACKED_BYTES = MAX_BYTES - _FIXED_BYTES - MAX_LEASES * _LEASE_BYTES


class _Packed(msgspec.Struct, array_like=True):
    """`acked` has a bit for each offset from `acked_to` on, most significant first. `offsets` (uint32, counted from
    `acked_to`) and `counts` (uint16), both little-endian, are the attempts."""

    acked: bytes
    offsets: bytes
    counts: bytes


def fits(record: CursorRecord) -> bool:
    """Tells whether the stored form is within MAX_BYTES, once it has lost attempts."""
    return record.needs_level is not UNSET or _room(record) >= 0


def packed(record: CursorRecord) -> CursorRecord:
    """Returns the stored form of a cursor: that of level 2 where it says `needs_level`, else that of level 1."""
    if record.needs_level is UNSET:
        return replace(record, attempts=_highest(record.attempts, max(0, _room(record)) // _ATTEMPT_BYTES))
    text = ""
    if record.acked or record.attempts:
        most = len(record.attempts)
        while len(text := _text(record, most)) > _PACKED_BYTES and most:
            most = most * 3 // 4
        record = replace(record, acked=(), attempts={}, packed=text)
    return record if record.held is UNSET else replace(record, held=_smallest(record.held, len(text)))


def unpacked(record: CursorRecord) -> CursorRecord:
    """Returns the cursor that a stored form holds. Raises ValueError for a form that cannot be read."""
    if record.packed is UNSET:
        return record
    try:
        found = msgspec.msgpack.decode(zlib.decompress(b64decode(record.packed, validate=True)), type=_Packed)
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"its packed acks cannot be read: {error}") from error
    bits = np.unpackbits(np.frombuffer(found.acked, np.uint8)).astype(np.int8)
    edges = np.flatnonzero(np.diff(bits, prepend=0, append=0)) + record.acked_to
    offsets = np.frombuffer(found.offsets, "<u4").astype(np.int64) + record.acked_to
    attempts = dict(zip(map(str, offsets.tolist()), np.frombuffer(found.counts, "<u2").tolist(), strict=True))
    runs = tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return replace(record, acked=runs, attempts=attempts, packed=UNSET)


def _text(record: CursorRecord, most: int) -> str:
    attempts = _highest(record.attempts, most)
    offsets: np.ndarray[Any, Any] = np.fromiter(map(int, attempts), np.int64) - record.acked_to
    counts = np.fromiter(attempts.values(), np.int64).clip(max=65_535)
    parts = _Packed(_bits(record), offsets.astype("<u4").tobytes(), counts.astype("<u2").tobytes())
    return b64encode(zlib.compress(msgspec.msgpack.encode(parts))).decode()


def _bits(record: CursorRecord) -> bytes:
    end = record.acked[-1][1] if record.acked else record.acked_to
    bits = np.zeros(end - record.acked_to, np.uint8)
    for low, high in record.acked:
        bits[low - record.acked_to : high - record.acked_to] = 1
    return np.packbits(bits).tobytes()


def _smallest(held: tuple[HeldLease, ...], used: int) -> tuple[HeldLease, ...]:
    """Returns the leases that fit beside `used` bytes, those of the fewest runs first: the messages of the others are
    delivered again at once."""
    room, kept = MAX_BYTES - _FIXED_BYTES - used, []
    for one in sorted(held, key=lambda one: len(one.runs)):
        room -= len(msgspec.json.encode(one)) + 1
        if room < 0:
            break
        kept.append(one)
    return tuple(kept)


def _highest(attempts: dict[str, int], most: int) -> dict[str, int]:
    """Returns the `most` highest counts, in the order of offsets."""
    if len(attempts) <= most:
        return attempts
    kept = sorted(attempts, key=lambda offset: (-attempts[offset], int(offset)))[:most]
    return {offset: attempts[offset] for offset in sorted(kept, key=int)}


def _room(record: CursorRecord) -> int:
    """Returns how many bytes are left for attempts in the form of level 1."""
    return MAX_BYTES - _FIXED_BYTES - len(record.leases) * _LEASE_BYTES - len(record.acked) * _RUN_BYTES
