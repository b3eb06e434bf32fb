"""The payloads of dead letters: each letter has a copy of its own, below its own topic.

So it stays readable whatever becomes of the source: its retention takes payloads with their rows, its deletion takes
them all. The copy stays as long as the topic for dead letters does. The store makes it (a link in a folder). Its name
follows from the message, so that a second try makes the same one. A crash before the letter leaves a copy that the next
try names.
"""

from dataclasses import replace

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads import rules
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.failpoints import reach
from seaweedq.segments.rows import Reference
from seaweedq.storage.interface import PayloadStore


class PayloadCopies:
    """Copies payloads to the topics of dead letters."""

    def __init__(self, payloads: Payloads, store: PayloadStore) -> None:
        self._payloads = payloads
        self._store = store

    async def copy(self, source: Topic, reference: Reference, target: Topic, message: str) -> Reference:
        """Returns the reference of a letter. It is the message's own where the store has that payload no more, or it is
        none of the topic's. Raises StoreUnavailable."""
        name = self._payloads.name_of(source, reference.uri)
        if name is None:
            return reference
        upload = rules.copied_id(name, target.record.incarnation, message)
        copied = rules.object_name(target.name, upload)
        try:
            await self._store.copy(name, copied)
        except FileNotFoundError:
            return reference
        reach("letter.copied")
        return replace(reference, uri=self._store.uri(copied))
