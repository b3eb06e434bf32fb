"""The stored form of a cursor, within MAX_BYTES, since etcd refuses requests of more than 1.5 MB.

Acks are packed as a bit for each offset from `acked_to` on, attempts as the offsets that were not delivered just once
with their counts. Attempts are a hint, so the lowest of them go if the record would be too large; but what was leased
and never begun (0) stays, since an offset that is not named was delivered once: with `max_attempts` 1 it would die
unseen. If such offsets are too many to be named they are bits. The leases with the most runs go if the record would
still be too large.
"""

import zlib
from base64 import b64decode, b64encode
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from seaweedq.coordination.records.subscriptions import CursorRecord, HeldLease

Array = np.ndarray[Any, np.dtype[Any]]
MAX_BYTES = 64 * 1024
_FIXED_BYTES = 1024  # for all but acks, attempts and leases
_LEASES_BYTES = 16 * 1024  # are left for leases, at least
_PACKED_BYTES = MAX_BYTES - _FIXED_BYTES - _LEASES_BYTES


class _Packed(msgspec.Struct, array_like=True):
    """`acked` has a bit for each offset from `acked_to` on, most significant first. `offsets` (uint32, counted from
    `acked_to`) and `counts` (uint16), both little-endian, are the attempts. `unbegun`, as `acked`, has those of 0 where
    they are too many for that."""

    acked: bytes
    offsets: bytes
    counts: bytes
    unbegun: bytes = b""


_packed = msgspec.msgpack.Decoder(_Packed)


def packed(record: CursorRecord) -> CursorRecord:
    """Returns the stored form of a cursor."""
    text = ""
    if record.acked or record.attempts:
        text = _text(record, record.attempts)
        if len(text) > _PACKED_BYTES:
            text = _shortened(record)
        record = replace(record, acked=(), attempts={}, packed=text)
    return replace(record, held=_smallest(record.held, len(text))) if record.held else record


def unpacked(record: CursorRecord) -> CursorRecord:
    """Returns the cursor that a stored form holds. Raises ValueError for a form that cannot be read."""
    if record.packed is None:
        return record
    try:
        found = _packed.decode(zlib.decompress(b64decode(record.packed, validate=True)))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"its packed acks cannot be read: {error}") from error
    bits = np.unpackbits(np.frombuffer(found.acked, np.uint8)).astype(np.int8)
    edges = np.flatnonzero(np.diff(bits, prepend=0, append=0)) + record.acked_to
    offsets = np.frombuffer(found.offsets, "<u4").astype(np.int64) + record.acked_to
    attempts = dict(zip(map(str, offsets.tolist()), np.frombuffer(found.counts, "<u2").tolist(), strict=True))
    if found.unbegun:
        unbegun = np.flatnonzero(np.unpackbits(np.frombuffer(found.unbegun, np.uint8))) + record.acked_to
        attempts |= dict.fromkeys(map(str, unbegun.tolist()), 0)
        attempts = {offset: attempts[offset] for offset in sorted(attempts, key=int)}
    runs = tuple(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return replace(record, acked=runs, attempts=attempts, packed=None)


def _shortened(record: CursorRecord) -> str:
    """Returns the packed text with bits for the attempts of 0, and the highest ones that fit."""
    unbegun = np.array([int(offset) for offset, count in record.attempts.items() if not count], np.int64)
    bits = _packed_bits(unbegun - record.acked_to)
    named = {offset: count for offset, count in record.attempts.items() if count}
    most = len(named)
    while len(text := _text(record, _highest(named, most), bits)) > _PACKED_BYTES and most:
        most = most * 3 // 4
    return text


def _text(record: CursorRecord, attempts: dict[str, int], unbegun: bytes = b"") -> str:
    offsets: np.ndarray[Any, Any] = np.fromiter(map(int, attempts), np.int64) - record.acked_to
    counts = np.fromiter(attempts.values(), np.int64).clip(max=65_535)
    parts = [_bits(record), offsets.astype("<u4").tobytes(), counts.astype("<u2").tobytes()]
    parts += [unbegun] if unbegun else []
    return b64encode(zlib.compress(msgspec.msgpack.encode(parts))).decode()


def _packed_bits(numbers: Array) -> bytes:
    bits = np.zeros(int(numbers.max(initial=-1)) + 1, np.uint8)
    bits[numbers] = 1
    return np.packbits(bits).tobytes()


def _bits(record: CursorRecord) -> bytes:
    end = record.acked[-1][1] if record.acked else record.acked_to
    bits = np.zeros(end - record.acked_to, np.uint8)
    for low, high in record.acked:
        bits[low - record.acked_to : high - record.acked_to] = 1
    return np.packbits(bits).tobytes()


def _smallest(held: tuple[HeldLease, ...], used: int) -> tuple[HeldLease, ...]:
    """Returns the leases that fit beside `used` bytes, a batch of dead letters and then those of the fewest runs first:
    the messages of the others are delivered again at once."""
    room, kept = MAX_BYTES - _FIXED_BYTES - used, []
    for one in sorted(held, key=lambda one: (not (one.dying and one.name), len(one.runs))):
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
