"""Chooses the stream of each message of a producer, so that it reaches its segment's owner. Pure: time and ids are
passed in.

A *stream* is a producer to brokers: an id, rising sequences, one request in flight. It sends the keys of some ranges
with the same owner, and a key is always in one stream: so its messages stay in order. When the owners have changed, a
stream *retires*: it sends its messages, and the streams that get its keys wait until all of those are answered.
Messages without a key have a stream of their own, which uses one owner after the other.

At first one stream sends everything, and it stays so while all segments have one owner. The choice of a broker affects
only speed: every broker forwards rows that are not its own.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from seaweedq.client.core.batching import FEWEST, Batcher, Limits, ProducerBatch, SentLine
from seaweedq.client.core.effects import ARROW
from seaweedq.client.core.segment_map import KeyRule, Keys, SegmentMap
from seaweedq.segments.keyrange import KEY_SPACE, hash_key

if TYPE_CHECKING:
    import pyarrow as pa

D = TypeVar("D")
_second = itemgetter(1)
# Streams per owner, over all owners, beyond which all streams are replaced: moves leave more and more of them.
STREAMS_PER_OWNER = 2


@dataclass(frozen=True, slots=True)
class RoutedRows(Generic[D]):
    """Rows of a table as an Arrow stream, and the stream that sends them. With a `head` they may join others."""

    through: "ProducerStream[D]"
    content: bytes
    rows: int
    head: bytes = b""


class ProducerStream(Generic[D]):
    """One producer id and its messages. `urls` are the preferred brokers, `segments` those that should get its rows."""

    def __init__(self, producer_id: str, batcher: Batcher[D], after: Iterable["ProducerStream[D]"] = ()) -> None:
        self.producer_id = producer_id
        self.batcher = batcher
        self.urls: tuple[str, ...] = ()
        self.segments: frozenset[int] | None = None
        self._after = tuple(after)

    @property
    def idle(self) -> bool:
        """Tells whether all its messages, and those that it waits for, are answered."""
        return self.batcher.finished == self.batcher.accepted and self._may_go()

    def ready_in_s(self, now_s: float) -> float | None:
        """Returns the seconds until a batch may be sent; None while there is none, or other streams come first."""
        wait_s = self.batcher.ready_in_s(now_s)
        return wait_s if wait_s is not None and self._may_go() else None

    def _may_go(self) -> bool:
        self._after = tuple(stream for stream in self._after if not stream.idle)
        return not self._after


@dataclass(frozen=True, slots=True)
class Placeholder(Generic[D]):
    """The reserved position of a message whose payload is being uploaded."""

    batcher: Batcher[D]
    batch: ProducerBatch[D]

    def release(self, sent: SentLine | Exception, now_s: float) -> None:
        """Releases the message, now that its payload is uploaded or has failed."""
        if isinstance(sent, SentLine):
            self.batch.lines, self.batch.upload_id = [sent.line], sent.upload_id
        else:
            self.batch.error = sent
        self.batcher.release(self.batch, now_s)


@dataclass(frozen=True)
class Routing(Generic[D]):
    """The stream of each key: `streams[n]` sends those from `bounds[n]` on. Never changed, only replaced."""

    bounds: tuple[int, ...]
    streams: tuple[ProducerStream[D], ...]
    keyless: ProducerStream[D]
    keys: Keys | None

    def stream_of_line(self, key: str | None, line: bytes) -> ProducerStream[D]:
        """Returns the stream of a message."""
        key_hash = None if self.keys is None else self.keys.key_hash_of_line(key, line)
        return self.keyless if key_hash is None else self.streams[bisect_right(self.bounds, key_hash) - 1]

    def stream_of_row(self, key: str | None, value: bytes, is_binary: bool) -> ProducerStream[D]:
        """Returns the stream of a message that is a key and a value alone."""
        if key is None:
            key = None if self.keys is None or is_binary else self.keys.key_of_value(value)
            if key is None:
                return self.keyless
        return self.streams[bisect_right(self.bounds, hash_key(key)) - 1]

    def cut(self, table: "pa.Table | pa.RecordBatch", limit_bytes: int) -> list[RoutedRows[D]]:
        """Cuts a table's rows by stream, into Arrow streams of at most `limit_bytes`."""
        from seaweedq.client.core.arrow_batches import cut, head_of, streams

        if self.keys is None:
            return [RoutedRows(self.keyless, content, n) for content, n in streams(table, limit_bytes)]
        distinct = [*dict.fromkeys((self.keyless, *self.streams))]
        targets = [distinct.index(stream) for stream in self.streams]
        parts = cut(table, self.keys, self.bounds, targets, len(distinct))
        return [
            RoutedRows(distinct[target], content, n, head_of(content, rows.schema))
            for target, rows in parts
            for content, n in streams(rows, limit_bytes)
        ]


class Partitioner(Generic[D]):
    """A producer's streams. Not thread-safe by itself: the shell locks; only `routing` may be read at any time."""

    def __init__(self, limits: Limits, new_delivery: Callable[[], D], new_id: Callable[[], str]) -> None:
        self._limits, self._new_delivery, self._new_id = limits, new_delivery, new_id
        self._streams: list[ProducerStream[D]] = []  # the living ones, and the retired ones that have something left
        whole = self._stream()
        self.routing: Routing[D] = Routing((0,), (whole,), whole, None)
        self.pending_bytes = 0
        self._rule: KeyRule | None = None  # not known, or not any more

    def __len__(self) -> int:
        return len(self._streams)

    def has_room(self, size: int) -> bool:
        """Tells whether `size` bytes more stay within the bound; an empty producer accepts any message."""
        return not self.pending_bytes or self.pending_bytes + size <= self._limits.max_buffer_bytes

    def add_row(
        self, key: str | None, value: bytes, is_binary: bool, size: int, now_s: Callable[[], float]
    ) -> tuple[D, int]:
        """Adds a message that is a key and a value alone, of `size` bytes. Returns as `add_line`."""
        self.pending_bytes += size
        routing = self.routing
        stream = routing.keyless if routing.keys is None else routing.stream_of_row(key, value, is_binary)
        batcher = stream.batcher
        return batcher.join_row(key, value, is_binary, size) or batcher.add_row(key, value, is_binary, size, now_s())

    def add_line(
        self, key: str | None, line: bytes, now_s: float, headers: dict[str, str] | None = None
    ) -> tuple[D, int]:
        """Adds a message as a line of JSON, which has these headers. Returns the delivery of its batch, and its index
        in it."""
        self.pending_bytes += len(line) + 1
        return self.routing.stream_of_line(key, line).batcher.add_line(line, now_s, headers)

    def hold(self, key: str | None, line: bytes, now_s: float, headers: dict[str, str] | None = None) -> Placeholder[D]:
        """Reserves the position of a message whose payload is being uploaded; only `line` of it is buffered."""
        self.pending_bytes += len(line) + 1
        batcher = self.routing.stream_of_line(key, line).batcher
        batch = batcher.hold(len(line) + 1, now_s)
        batch.trace(headers)
        return Placeholder(batcher, batch)

    def add_rows(self, routed: Sequence[RoutedRows[D]], now_s: float) -> list[D]:
        """Adds rows that the current `routing` has cut. Returns a delivery for each, which others may share."""
        self.pending_bytes += sum(len(each.content) for each in routed)
        return [each.through.batcher.add_stream(each.content, each.rows, now_s, each.head) for each in routed]

    def close_open(self) -> Callable[[], bool]:
        """Closes all open batches. Returns a function that tells whether all messages up to now are answered."""
        marks = []
        for stream in self._streams:
            stream.batcher.close_open()
            marks.append((stream.batcher, stream.batcher.accepted))
        return lambda: all(batcher.finished >= accepted for batcher, accepted in marks)

    def ready_in_s(self, now_s: float) -> float | None:
        """Returns the seconds until a batch may be sent: 0 for now, None while no batch may."""
        waits = [wait_s for stream in self._streams if (wait_s := stream.ready_in_s(now_s)) is not None]
        return min(waits, default=None)

    def next_batch(self, now_s: float) -> tuple[ProducerStream[D], ProducerBatch[D]]:
        """Returns the next batch and its stream. Call it only when `ready_in_s` is 0."""
        stream = next(stream for stream in self._streams if stream.ready_in_s(now_s) == 0)
        self._streams.remove(stream)
        self._streams.append(stream)
        if stream is self.routing.keyless:
            stream.urls = (*stream.urls[1:], *stream.urls[:1])
        batch = stream.batcher.next_batch()
        if batch.rows is not None and batch.count >= FEWEST and self._rule and self._rule.takes(batch.rows.is_binary):
            batch.content_type = ARROW
        return stream, batch

    def finish(self, stream: ProducerStream[D], batch: ProducerBatch[D]) -> None:
        """Records that a batch succeeded or failed."""
        stream.batcher.finish()
        self.pending_bytes -= batch.size
        if batch.is_unfit:
            self._rule = None  # until `follow` brings one, all go as lines: none is to be sent twice
        self._forget_idle()

    @property
    def idle(self) -> bool:
        """Tells whether all accepted messages are answered."""
        return all(stream.idle for stream in self._streams)

    def follow(self, seen: SegmentMap, rule: KeyRule | None = None, given: Sequence[str] = ()) -> None:
        """Sends messages to the owners of this map from now on. `given` are the brokers that the user named."""
        self._rule = rule or self._rule
        if self.routing.keys is not None and rule and rule != self.routing.keys.rule:
            # The topic is another one now, whose keys are found by another rule, so each key may be in any of the
            # present streams: all goes through one stream again, after all that was accepted.
            before = [*self._streams]
            for stream in before:
                stream.batcher.close_open()
            whole = self._stream(before)
            self.routing = Routing((0,), (whole,), whole, None)
        if self.routing.keys is None and len(seen.owners) <= 1:
            # The owner's address may be none for us; with one owner, it is not worth finding that out.
            whole, urls = self.routing.keyless, tuple(seen.urls.values())
            whole.urls = urls if set(urls) <= set(given) else ()
            whole.segments = frozenset(segment.id for segment in seen.segments)
            return
        if self.routing.keys is None:
            self._reroute(seen, Keys(self._rule or KeyRule()))
        else:
            self._reroute(seen, self.routing.keys)
        self._aim(seen)
        self._forget_idle()

    def _stream(self, after: Iterable[ProducerStream[D]] = ()) -> ProducerStream[D]:
        stream = ProducerStream(self._new_id(), Batcher(self._limits, self._new_delivery), after)
        self._streams.append(stream)
        return stream

    def _reroute(self, seen: SegmentMap, keys: Keys) -> None:
        before = self.routing
        ranges = _overlay(before, seen)
        parts = dict.fromkeys((stream, owner) for _, stream, owner in ranges)
        anew = len(parts) > STREAMS_PER_OWNER * len(seen.owners)
        owners = Counter(stream for stream, _ in parts)
        next_of: dict[tuple[ProducerStream[D], str | None], ProducerStream[D]] = {}
        if anew:
            for owner in dict.fromkeys(owner for _, owner in parts):
                olds = [old for old, whose in parts if whose == owner]
                next_of |= dict.fromkeys(((old, owner) for old in olds), self._stream(olds))
        else:
            for old, owner in parts:
                stays = owners[old] == 1 and old is not before.keyless
                next_of[old, owner] = old if stays else self._stream([old])
        keyless = self._stream([before.keyless]) if before.keyless in before.streams else before.keyless
        merged = [
            next(group) for _, group in groupby(((low, next_of[old, owner]) for low, old, owner in ranges), _second)
        ]
        self.routing = Routing(tuple(low for low, _ in merged), tuple(stream for _, stream in merged), keyless, keys)
        for stream in {*before.streams} - {*self.routing.streams}:
            stream.batcher.close_open()

    def _aim(self, seen: SegmentMap) -> None:
        urls = tuple(sorted(set(seen.urls.values())))
        segments: dict[str | None, set[int]] = {}
        for segment in seen.segments:
            segments.setdefault(segment.owner, set()).add(segment.id)
        for stream, owner in dict.fromkeys((stream, owner) for _, stream, owner in _overlay(self.routing, seen)):
            url = seen.urls.get(owner or "")
            at = urls.index(url) if url else 0
            stream.urls = urls[at:] + urls[:at]
            stream.segments = frozenset(segments.get(owner, ()))
        self.routing.keyless.urls = urls
        self.routing.keyless.segments = frozenset(segment.id for segment in seen.segments)

    def _forget_idle(self) -> None:
        living = {*self.routing.streams, self.routing.keyless}
        self._streams = [stream for stream in self._streams if stream in living or not stream.idle]


def _overlay(routing: Routing[D], seen: SegmentMap) -> list[tuple[int, ProducerStream[D], str | None]]:
    """Cuts the key space by both: the low end of each range, its stream, its owner (None in a gap of the map)."""
    owners: dict[int, str | None] = {0: None}
    for segment in seen.segments:
        owners[segment.low] = segment.owner
        owners.setdefault(segment.high, None)
    lows = sorted(low for low in {*owners, *routing.bounds} if low < KEY_SPACE)
    owner_lows = sorted(owners)
    return [
        (
            low,
            routing.streams[bisect_right(routing.bounds, low) - 1],
            owners[owner_lows[bisect_right(owner_lows, low) - 1]],
        )
        for low in lows
    ]
