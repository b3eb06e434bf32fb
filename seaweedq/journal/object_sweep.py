"""The sweep of object journals: deletes what dead brokers have left below `_journals/` when nobody needs it.

A recovery leaves a fence, since a put of the dead broker may still be under way; a late twin of a hedged put comes back
behind a recovery, or behind the clean stop of its broker. A journal is *forgotten* if coordination has neither its key
nor its broker's. A broker has both before it puts its first slot, and its id never comes back: so what was listed
before the keys were read, and has none, is needed by nobody.

It stays for a week behind its newest object, by the store's clock: no put is under way for so long. The slots go in
their order, the fence among the last; a sweep that is cut off leaves some of them for the next one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container

from seaweedq.errors import JournalDamaged, NeedsNewerBroker
from seaweedq.failpoints import reach
from seaweedq.journal.object_format import JOURNALS_FOLDER, slot_name
from seaweedq.journal.object_listing import batches, delete_slots, list_slots, read_header
from seaweedq.storage.folders import folders
from seaweedq.storage.interface import ObjectStore

KEPT_S = 7 * 86_400.0
logger = logging.getLogger(__name__)


async def sweep(store: ObjectStore, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
    """Deletes the slots of journals that are forgotten: `read_known` reads which brokers live, or have a journal.
    Returns the number of slots."""
    found = [folder async for folder in folders(store, JOURNALS_FOLDER)]
    known = await read_known()
    removed = 0
    for folder in found:
        broker = folder.removeprefix(JOURNALS_FOLDER).removesuffix("/")
        if broker not in known:
            removed += await _remove(store, broker)
    return removed


async def _remove(store: ObjectStore, broker: str) -> int:
    numbers = await list_slots(store, broker)
    try:
        if not numbers or not await _is_old(store, broker, numbers):
            return 0
    except FileNotFoundError:  # another leader's sweep is at it
        return 0
    except (JournalDamaged, NeedsNewerBroker) as error:
        logger.warning("%d objects of a journal that is forgotten stay: %s", len(numbers), error)
        return 0
    for batch in batches(numbers):
        reach("journals.sweep")
        await delete_slots(store, broker, batch)
    return len(numbers)


async def _is_old(store: ObjectStore, broker: str, numbers: list[int]) -> bool:
    """Returns whether all of these are slots of that broker, and none is younger than a week."""
    for batch in batches(numbers[::-1]):
        names = [slot_name(broker, number) for number in batch]
        if min(await asyncio.gather(*map(store.age_s, names))) < KEPT_S:
            return False
        headers = await asyncio.gather(*(read_header(store, broker, number) for number in batch))
        if any(header.broker != broker for header in headers):
            raise JournalDamaged(f"{names[0]} and others are not slots of that broker", path=names[0], position=0)
    return True
