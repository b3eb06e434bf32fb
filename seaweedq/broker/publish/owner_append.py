"""One attempt to append rows at the owner of their segment, which may be this broker."""

from seaweedq.broker.log.append import EncodedRows
from seaweedq.broker.publish.batch_split import Slice
from seaweedq.broker.publish.forwarder import Outbound
from seaweedq.broker.publish.local_append import Taker
from seaweedq.broker.rpc.client import ask_while
from seaweedq.broker.rpc.forward_frames import Header, Outcome, Parcel
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
        self, catalog: Catalog, ownership: Ownership, roster: Roster, taker: Taker, outbound: Outbound
    ) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._roster = roster
        self._taker = taker
        self._outbound = outbound

    async def append(self, topic: Topic, rows: Slice, sequences: Sequences, deadline: Deadline) -> Outcome:
        """Tries once. Raises NotOwner where the rows were certainly not appended, another Unavailable where nobody
        knows."""
        if self._ownership.has(topic, rows.segment):
            opened = await self._ownership.opened(topic, rows.segment)
            return await self._taker.append(opened, rows.part, rows.encoded, sequences)
        owner = self._catalog.segment(topic, rows.segment).record.owner
        url = self._roster.url(owner)
        if url is None:
            raise NotOwner(f"segment {rows.segment} of {topic.name!r} belongs to {owner}, who is gone", owner=owner)

        def check_owner() -> None:
            record = self._catalog.segment(topic, rows.segment).record
            if record.owner != owner or not self._roster.alive(owner):
                raise Unavailable(f"{owner} is not the owner any more, and has not answered")

        sent = self._outbound.send(url, _parcel(topic, rows.segment, rows.part, rows.encoded, sequences))
        try:
            return await ask_while(check_owner, sent, deadline)
        except TimeoutError:
            raise Unavailable(
                f"{owner} has not answered within publish_timeout_s={deadline.time_s:g}; "
                "whether it took the rows is unknown"
            ) from None


def _parcel(topic: Topic, segment: int, part: int, encoded: EncodedRows, sequences: Sequences) -> Parcel:
    header = Header(
        topic.name,
        topic.record.incarnation,
        segment,
        part,
        mask_of(encoded.rows),
        sequences.producer,
        sequences.low,
        sequences.high,
        encoded.payload.size,
    )
    return Parcel(header, encoded.payload)
