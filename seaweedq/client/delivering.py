"""What all producers share: a batch's request and its outcome. No I/O."""

from dataclasses import dataclass
from typing import Any

from seaweedq.client.batching import Batch
from seaweedq.client.calls import publish_request
from seaweedq.client.effects import Steps
from seaweedq.client.retry import Patience
from seaweedq.client.wire import Published, decode_published


@dataclass(frozen=True, slots=True)
class Route:
    """Where a producer's batches go, and as whom."""

    topic: str
    producer_id: str
    patience: Patience

    def deliver(self, batch: Batch[Any]) -> Steps[Published]:
        """Publish a batch until it is taken: every attempt carries the same id and sequence, so that none doubles."""
        identity = {"Producer-Id": self.producer_id, "Producer-Sequence": str(batch.sequence)}
        reply = yield from self.patience.send(publish_request(self.topic, batch.content_type, batch.body, identity))
        return decode_published(reply.body)


def id_of(published: Published, index: int) -> str:
    """The id of message number `index` of a publish."""
    if published.ids is not None:
        return published.ids[index]
    if len(published.segments) != 1:
        raise LookupError("the broker's answer has no ids")
    rows = published.segments[0]
    return f"{rows.segment}-{rows.first_offset + index}"
