"""Removal of payloads: of one upload, and of a whole topic.

Only an object whose record says `removed`, which no publish can take back, or an object of a dead incarnation is
deleted.
"""

import asyncio

import msgspec

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads import rules as plan
from seaweedq.broker.uploads.record_store import UploadRecords
from seaweedq.coordination import keys
from seaweedq.coordination.records.uploads import UploadRecord
from seaweedq.failpoints import reach
from seaweedq.storage.interface import PayloadStore

PAGE = 200
AT_ONCE = 16


async def clear(store: PayloadStore, record: UploadRecord) -> None:
    """Deletes what a removed upload has in the store. Its parts go first: without them nobody can make the object."""
    if record.parts is not None:
        await store.abort_parts(record.name, record.parts)
    await store.delete(record.name)


def cleared(record: UploadRecord) -> UploadRecord:
    """Returns the record of a removed upload whose object was deleted."""
    return msgspec.structs.replace(record, cleared=True)


async def remove_topic(records: UploadRecords, store: PayloadStore, topic: Topic) -> None:
    """Removes all uploads and payloads of a topic that is being deleted. Repeatable. Raises NeedsNewerBroker."""
    async for entry in records.of(topic):
        reach("delete.uploads")
        await records.change(topic, keys.UPLOADS.parse(entry.key)[2], plan.dead, keys.UPLOADS.require(entry))
    reach("delete.payloads")
    await clear_folder(store, topic.name, topic.record.incarnation + 1)


async def clear_folder(store: PayloadStore, topic: str, below: int) -> int:
    """Deletes a topic's payloads of all incarnations below one, a page at a time. Returns their number. Objects with
    other names stay."""
    gone, after = 0, ""
    while names := await store.list(plan.folder(topic), after, PAGE):
        after = names[-1]
        doomed = [name for name in names if _incarnation(topic, name) < below]
        for start in range(0, len(doomed), AT_ONCE):
            await asyncio.gather(*map(store.delete, doomed[start : start + AT_ONCE]))
            reach("delete.payload")
        gone += len(doomed)
    return gone


def _incarnation(topic: str, name: str) -> float:
    upload = plan.id_of(topic, name)
    found = plan.incarnation_of(upload) if upload else None
    return float("inf") if found is None else found
