"""The objects of an object journal as a listing, a read and a deletion meet them. Decides nothing."""

import asyncio
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
BATCH = 16
"""Requests under way at a time."""


async def list_slots(store: ObjectStore, broker: str) -> list[int]:
    """The numbers of all slots that are there, rising. Raises JournalDamaged for a name that is no slot's."""
    names: list[str] = []
    while True:
        page = await store.list(journal_folder(broker), after=names[-1] if names else "", limit=PAGE)
        names += page
        if len(page) < PAGE:
            return sorted(map(slot_number, names))


async def read_header(store: ObjectStore, broker: str, number: int) -> SlotHeader:
    """What a slot says of itself. Raises FileNotFoundError, JournalDamaged, StoreUnavailable."""
    name = slot_name(broker, number)
    return decode_header(await store.read(name, 0, HEADER_BYTES), name)


async def delete_slots(store: ObjectStore, broker: str, numbers: Sequence[int]) -> None:
    """Delete a batch; where one fails the others are still tried. Raises StoreUnavailable."""
    deletions = (store.delete(slot_name(broker, number)) for number in numbers)
    for result in await asyncio.gather(*deletions, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """The numbers in their order, BATCH at a time."""
    for at in range(0, len(numbers), BATCH):
        yield numbers[at : at + BATCH]
