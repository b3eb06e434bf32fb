"""Pulls as values: what a client wants, what it gets, and the outcome of a look at the segments."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from seaweedq.broker.log.intervals import Offsets
from seaweedq.broker.read.segment_reader import Readable
from seaweedq.broker.subscriptions.consumers.stream_leases import Position
from seaweedq.broker.subscriptions.delivery.filtering import FILTERED_ROWS
from seaweedq.broker.subscriptions.delivery.window import Array

PULL_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pull:
    """The messages that a client wants: how many at most, for whom, under which lease, and how long it waits for the
    first one. With `ahead` it goes on behind what its consumer holds. A stream names its position instead of a lease.
    Rows of `max_bytes` are enough."""

    max_messages: int = 100
    wait_s: float = 0.0
    consumer: str | None = None
    lease: str | None = None
    ahead: bool = False
    position: Position | None = None
    max_bytes: int = PULL_BYTES


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages of one segment that a pull returns: rows of one schema, their offsets, and how often each was delivered,
    this time included."""

    segment: Readable
    offsets: Offsets
    attempts: Array
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Leased:
    """Messages, and the name of the lease that they are under; None where there are no messages."""

    name: str | None = None
    messages: Sequence[Delivered] = ()


def _nothing_hidden() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of one look at the segments: what was leased, which segments could not be read, and which have a
    `stale` end: the one that their owner reported last. `check_hidden` raises NeedsNewerBroker where there are more,
    whose records or cursors cannot be read. A stream is `held_back` while it holds too much. `rows_left` may be
    filtered yet; 0: there may be more messages."""

    found: Leased
    missing: set[int] = field(default_factory=set)
    stale: set[int] = field(default_factory=set)
    check_hidden: Callable[[], None] = _nothing_hidden
    held_back: bool = False
    rows_left: int = FILTERED_ROWS
