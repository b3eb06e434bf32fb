"""The plan of a seek: the offset at which each segment's cursor begins in the epoch of the seek. Pure.

It covers all segments that exist; new ones begin at 0, as always. In a subscription's record it is packed, since a
cluster may have 100,000 segments, and etcd refuses requests of more than 1.5 MB.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from seaweedq.coordination.records.subscriptions import CursorRecord

MAX_BYTES = 1024 * 1024


class Sought(NamedTuple):
    """A segment in a seek: its end at that time, and the offset to go on at; None: where the cursor is."""

    segment: int
    end: int
    to: int | None


_plan = msgspec.msgpack.Decoder(list[Sought])


def packed(plan: Sequence[Sought]) -> str:
    """Returns the stored form of a plan."""
    return b64encode(zlib.compress(msgspec.msgpack.encode(plan))).decode()


def unpacked(text: str) -> list[Sought]:
    """Returns the plan of a stored form. Raises ValueError for one that cannot be read."""
    try:
        return _plan.decode(zlib.decompress(b64decode(text, validate=True)))
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"the plan of a seek cannot be read: {error}") from error


def cursor_after(one: Sought, epoch: int, before: CursorRecord | None) -> CursorRecord | None:
    """Returns the cursor with which the epoch of a seek begins; None where the one before may stay, or was written in
    that epoch already. Leases end; attempts, and what is dying, stay where the cursor does."""
    old = before or CursorRecord(0, 0)
    if old.epoch >= epoch or (old.acked_to >= one.end and one.to in (None, old.acked_to)):
        return None
    if one.to is not None:
        old = CursorRecord(epoch, one.to, delivered_to=one.to)
    dying = tuple(one for one in old.held if one.dying)
    return msgspec.structs.replace(old, epoch=epoch, held=dying, sought_below=one.end)
