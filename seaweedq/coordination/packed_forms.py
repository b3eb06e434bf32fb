"""Packed forms of records that grow with their subjects, since etcd refuses requests of more than 1.5 MB. Pure.

A cursor has at most CURSOR_MAX_BYTES. Acks are packed as a bit for each offset from `acked_to` on, attempts as the
offsets that were not delivered just once with their counts. Attempts are a hint, so the lowest of them go if the record
would be too large; but an offset that was leased and never begun (0) stays, since an offset that is not named was
delivered once: with `max_attempts` 1 it would die unseen. If such offsets are too many to be named they are bits. The
leases with the most runs go if the record would still be too large.

The plan of a seek has the offset at which each segment's cursor begins in the epoch of the seek. It covers all segments
that exist, of which a cluster may have 100,000; new ones begin at 0, as always.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from seaweedq.checks import require
from seaweedq.coordination.records import CursorRecord, HeldLease

Array = np.ndarray[Any, np.dtype[Any]]
CURSOR_MAX_BYTES = 64 * 1024
_FIXED_BYTES = 1024  # for all but acks, attempts and leases
_LEASES_BYTES = 16 * 1024  # are left for leases, at least
_PACKED_BYTES = CURSOR_MAX_BYTES - _FIXED_BYTES - _LEASES_BYTES
PLAN_MAX_BYTES = 1024 * 1024


class _PackedCursor(msgspec.Struct, array_like=True):
    """`acked` has a bit for each offset from `acked_to` on, most significant first. `offsets` (uint32, counted from
    `acked_to`) and `counts` (uint16), both little-endian, are the attempts. `unbegun`, as `acked`, has those of 0 if
    they are too many for that."""

    acked: bytes
    offsets: bytes
    counts: bytes
    unbegun: bytes = b""


_CURSOR = msgspec.msgpack.Decoder(_PackedCursor)


def pack_cursor(record: CursorRecord) -> CursorRecord:
    """Returns the stored form of a cursor."""
    text = ""
    if record.acked or record.attempts:
        text = _text(record, record.attempts)
        if len(text) > _PACKED_BYTES:
            text = _shortened(record)
        record = replace(record, acked=(), attempts={}, packed=text)
    return replace(record, held=_smallest(record.held, len(text))) if record.held else record


def unpack_cursor(record: CursorRecord) -> CursorRecord:
    """Returns the cursor that a stored form holds. Raises ValueError for a form that cannot be read."""
    if record.packed is None:
        return record
    try:
        found = _CURSOR.decode(zlib.decompress(b64decode(record.packed, validate=True)))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"the packed acks of the cursor cannot be read: {error}") from error
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
    room, kept = CURSOR_MAX_BYTES - _FIXED_BYTES - used, []
    for one in sorted(held, key=lambda one: (not (one.dying and one.name), len(one.runs))):
        room -= len(msgspec.json.encode(one)) + 1
        require(room >= 0 or not (one.dying and one.name), "a cursor has no room for %d dead letters", len(one.runs))
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


class SegmentSeek(NamedTuple):
    """A segment in a seek: its end at that time, and the offset to go on at; None: where the cursor is."""

    segment: int
    end: int
    to: int | None


_PLAN = msgspec.msgpack.Decoder(list[SegmentSeek])


def pack_plan(plan: Sequence[SegmentSeek]) -> str:
    """Returns the stored form of a plan."""
    return b64encode(zlib.compress(msgspec.msgpack.encode(plan))).decode()


def unpack_plan(text: str) -> list[SegmentSeek]:
    """Returns the plan of a stored form. Raises ValueError for one that cannot be read."""
    try:
        return _PLAN.decode(zlib.decompress(b64decode(text, validate=True)))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"the offsets to which a seek moves the subscription cannot be read: {error}") from error


def cursor_after(one: SegmentSeek, epoch: int, before: CursorRecord | None) -> CursorRecord | None:
    """Returns the cursor with which the epoch of a seek begins; None if the one before may stay, or was written in
    that epoch already. Leases end; attempts and dying messages stay if the cursor does."""
    old = before or CursorRecord(0, 0)
    if old.epoch >= epoch or (old.acked_to >= one.end and one.to in (None, old.acked_to)):
        return None
    if one.to is not None:
        old = CursorRecord(epoch, one.to, delivered_to=one.to)
    dying = tuple(one for one in old.held if one.dying)
    return msgspec.structs.replace(old, epoch=epoch, held=dying, sought_below=one.end)
