"""What all producers share: how a batch is sent, and what became of each of its messages. No I/O."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from seaweedq.client.core.batching import Batch
from seaweedq.client.core.calls import publish_request
from seaweedq.client.core.effects import NDJSON, Steps
from seaweedq.client.core.offload import Offload
from seaweedq.client.core.retry import Patience
from seaweedq.client.core.segment_map import KeyRule, SegmentMap, fetch_map, fetch_rule
from seaweedq.client.core.streams import Stream
from seaweedq.client.core.uploading import abort
from seaweedq.client.core.wire import Published, decode_published
from seaweedq.errors import InvalidMessages, MessageTooLarge, SeaweedqError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: published, apart from the `rejected` indexes, or all failed with `error`.

    `strayed`: something was not where the producer believed it to be, so that its segment map may be old.
    """

    published: Published | None = None
    error: Exception | None = None
    rejected: tuple[int, ...] = ()
    strayed: bool = False

    def error_of(self, index: int) -> Exception | None:
        """Why message number `index` was not published; None if it was."""
        return self.error if self.published is None or index in self.rejected else None

    def id_of(self, index: int) -> str:
        """The id of message number `index`; raises its error."""
        if error := self.error_of(index):
            raise error
        assert self.published is not None
        at = index - bisect_left(self.rejected, index)
        if self.published.ids is None:
            raise LookupError(
                "the ids of a table's rows are unknown: send_table publishes rows without asking for them"
            )
        return self.published.ids[at]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a producer's batches go. `given` are the brokers that the user named."""

    topic: str
    patience: Patience
    new_id: Callable[[], str]
    given: tuple[str, ...] = ()
    offload: Offload | None = None

    def look(self, needs_rule: Callable[[SegmentMap], bool]) -> Steps[tuple[SegmentMap, KeyRule | None]]:
        """The segment map, and where it is needed the rule for keys."""
        seen = yield from fetch_map(self.topic)
        return seen, (yield from fetch_rule(self.topic)) if needs_rule(seen) else None

    def deliver(self, stream: Stream[Any], batch: Batch[Any]) -> Steps[Outcome]:
        """Publish a batch until it is taken: every attempt carries the same id and sequence, so that none doubles.

        Where the broker names all messages that are not valid, it took none, and the others go again without them.
        Where it names one that is too large, those that are go again by reference.
        """
        if batch.error:
            raise batch.error
        try:
            try:
                return (yield from self._publish_valid(stream, batch, batch.lines))
            except MessageTooLarge as error:
                if batch.content_type != NDJSON or self.offload is None:
                    raise
                lines = yield from self.offload.again(batch.lines, error)
            return (yield from self._publish_valid(stream, batch, lines))
        except SeaweedqError:
            if batch.upload_id:  # a broker keeps it if the message is there after all
                yield from abort(self.topic, batch.upload_id)
            raise

    def _publish_valid(self, stream: Stream[Any], batch: Batch[Any], lines: list[bytes]) -> Steps[Outcome]:
        try:
            return (yield from self._publish(stream, batch, lines))
        except InvalidMessages as error:
            rejected = _rejected(error)
            if batch.content_type != NDJSON or len(rejected) in (0, batch.count):
                raise
            valid = [line for index, line in enumerate(lines) if index not in rejected]
            return replace((yield from self._publish(stream, batch, valid)), error=error, rejected=rejected)

    def _publish(self, stream: Stream[Any], batch: Batch[Any], lines: list[bytes]) -> Steps[Outcome]:
        identity = {"Producer-Id": stream.producer_id, "Producer-Sequence": str(batch.sequence)}
        request = publish_request(self.topic, batch.content_type, batch.content(lines), identity)
        request = replace(request, urls=stream.urls, repeatable=True)
        reply = yield from self.patience.send(request, batch.opened_s)
        published = decode_published(reply.body)
        detour = reply.url not in request.urls[:1] if request.urls else False
        return Outcome(published, strayed=detour or _strayed(stream, published))


def _strayed(stream: Stream[Any], published: Published) -> bool:
    known = stream.segments
    return known is not None and any(rows.segment not in known for rows in published.segments)


def _rejected(error: InvalidMessages) -> tuple[int, ...]:
    """The indexes of all messages that are not valid; none where the broker could not name them all."""
    rows = error.fields.get("errors", [])
    return tuple(sorted(row["index"] for row in rows)) if len(rows) == error.fields.get("invalid") else ()
