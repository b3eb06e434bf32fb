"""One attempt to append rows at the owner of their segment, which may be this broker."""

from seaweedq.broker.publish.batch_split import Slice
from seaweedq.broker.publish.forwarder import Forwarder
from seaweedq.broker.publish.local_append import LocalAppender, untaken
from seaweedq.broker.rpc.client import ask_while
from seaweedq.broker.rpc.forward_frames import ForwardFrame, ForwardHeader, Outcome
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.ownership import Ownership
from seaweedq.concurrency.deadline import Deadline
from seaweedq.coordination.roster import Roster
from seaweedq.errors import NotOwner, Unavailable
from seaweedq.segments.layout import mask_of
from seaweedq.segments.producers import Sequences


class OwnerAppender:
    """Appends rows at the owner that a segment's record names."""

    def __init__(
        self, catalog: Catalog, ownership: Ownership, roster: Roster, local: LocalAppender, forwarder: Forwarder
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._roster = roster
        self._local = local
        self._forwarder = forwarder

    async def append(self, topic: Topic, rows: Slice, sequences: Sequences, deadline: Deadline) -> Outcome:
        """Tries once. Raises NotOwner where the rows were certainly not appended, another Unavailable where nobody
        knows."""
        if self._ownership.has(topic, rows.segment):
            try:
                opened = await deadline.bound(self._ownership.opened(topic, rows.segment))
            except TimeoutError:
                raise NotOwner(untaken(deadline).detail) from None  # certainly not appended
            return await self._local.append(opened, rows.part, rows.encoded, sequences, deadline)
        owner = self._catalog.segment(topic, rows.segment).record.owner
        url = self._roster.url(owner)
        if url is None:
            self._roster.check_journal(owner)
            detail = f"segment {rows.segment} of {topic.name!r} belongs to broker {owner}, which has gone"
            raise NotOwner(detail, owner=owner)

        def check_owner() -> None:
            record = self._catalog.segment(topic, rows.segment).record
            if record.owner != owner or not self._roster.alive(owner):
                detail = f"broker {owner} lost the segment, or has gone, before it answered"
                raise Unavailable(f"{detail}; whether it took the rows is unknown")

        sent = self._forwarder.send(url, _frame(topic, rows, sequences))
        try:
            return await ask_while(check_owner, sent, deadline)
        except TimeoutError:
            raise Unavailable(
                f"broker {owner} has not answered within publish_timeout_s={deadline.time_s:g}; "
                "whether it took the rows is unknown"
            ) from None


def _frame(topic: Topic, rows: Slice, sequences: Sequences) -> ForwardFrame:
    header = ForwardHeader(
        topic.name,
        topic.record.incarnation,
        rows.segment,
        rows.part,
        mask_of(rows.encoded.rows),
        sequences.producer,
        sequences.low,
        sequences.high,
        rows.encoded.payload.size,
    )
    return ForwardFrame(header, rows.encoded.payload)
