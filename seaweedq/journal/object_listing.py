"""The requests to the store by which an object journal is listed, read and deleted. Decides nothing."""

import asyncio
import logging
from collections.abc import Iterator, Sequence

from seaweedq.journal.object_format import (
    HEADER_BYTES,
    SlotHeader,
    decode_header,
    journal_folder,
    slot_name,
    slot_number,
)
from seaweedq.storage.interface import ObjectStore

PAGE = 1_000
NAMED = 10  # objects in a log line
logger = logging.getLogger(__name__)
BATCH = 16
"""Maximum number of concurrent requests."""


async def list_slots(store: ObjectStore, broker: str) -> list[int]:
    """Returns the numbers of all slots that exist, rising. What others have put beside them is passed over."""
    names: list[str] = []
    while True:
        page = await store.list(journal_folder(broker), after=names[-1] if names else "", limit=PAGE)
        names += page
        if len(page) < PAGE:
            break
    numbers = {name: slot_number(name, broker) for name in names}
    if strange := [name for name, number in numbers.items() if number is None]:
        logger.warning(
            "%d objects in %s are no slots of a journal: %s", len(strange), journal_folder(broker), strange[:NAMED]
        )
    return sorted(number for number in numbers.values() if number is not None)


async def read_header(store: ObjectStore, broker: str, number: int) -> SlotHeader:
    """Returns the header of a slot. Raises FileNotFoundError, JournalDamaged, StoreUnavailable."""
    name = slot_name(broker, number)
    return decode_header(await store.read(name, 0, HEADER_BYTES), name)


async def delete_slots(store: ObjectStore, broker: str, numbers: Sequence[int]) -> None:
    """Deletes a batch; where one fails the others are still tried. Raises StoreUnavailable."""
    deletions = (store.delete(slot_name(broker, number)) for number in numbers)
    for result in await asyncio.gather(*deletions, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yields the numbers in their order, BATCH at a time."""
    for at in range(0, len(numbers), BATCH):
        yield numbers[at : at + BATCH]
