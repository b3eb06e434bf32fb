"""What all producers share: how a batch is sent, and what became of each of its messages. No I/O."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from seaweedq.client.batching import Batch
from seaweedq.client.calls import publish_request
from seaweedq.client.effects import NDJSON, Steps
from seaweedq.client.retry import Patience
from seaweedq.client.wire import Published, decode_published
from seaweedq.errors import InvalidMessages


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: published, apart from the `rejected` indexes, or all failed with `error`."""

    published: Published | None = None
    error: Exception | None = None
    rejected: tuple[int, ...] = ()

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
            raise LookupError("a table's rows are published without naming their ids")
        return self.published.ids[at]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a producer's batches go, and as whom."""

    topic: str
    producer_id: str
    patience: Patience

    def deliver(self, batch: Batch[Any]) -> Steps[Outcome]:
        """Publish a batch until it is taken: every attempt carries the same id and sequence, so that none doubles.

        Where the broker names all messages that are not valid, it took none, and the others go again without them.
        """
        try:
            return Outcome((yield from self._publish(batch, batch.lines)))
        except InvalidMessages as error:
            rejected = _rejected(error)
            if batch.content_type != NDJSON or len(rejected) in (0, batch.count):
                raise
            valid = [line for index, line in enumerate(batch.lines) if index not in rejected]
            return Outcome((yield from self._publish(batch, valid)), error, rejected)

    def _publish(self, batch: Batch[Any], lines: list[bytes]) -> Steps[Published]:
        identity = {"Producer-Id": self.producer_id, "Producer-Sequence": str(batch.sequence)}
        request = publish_request(self.topic, batch.content_type, b"\n".join(lines), identity)
        reply = yield from self.patience.send(request, batch.opened_s)
        return decode_published(reply.body)


def _rejected(error: InvalidMessages) -> tuple[int, ...]:
    """The indexes of all messages that are not valid; none where the broker could not name them all."""
    rows = error.fields.get("errors", [])
    return tuple(sorted(row["index"] for row in rows)) if len(rows) == error.fields.get("invalid") else ()
