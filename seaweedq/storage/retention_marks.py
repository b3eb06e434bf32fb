"""`_retention/{n}`: an object that names the number of retention's newest round in this store.

A round commits its number in coordination first, then creates the object, and removes the one before. So a store whose
number is above coordination's says that coordination was restored. The object's time is the store's own.
"""

from seaweedq.storage.interface import ObjectStore

FOLDER = "_retention/"


async def newest_round(store: ObjectStore) -> int:
    """Returns the highest number in the store, 0 where there is none. Raises StoreUnavailable."""
    return max((number for number, _ in await _rounds(store)), default=0)


async def mark_round(store: ObjectStore, number: int) -> int | None:
    """Creates the object of a round, and removes those before it. Returns the store's own time of it, in microseconds
    since 1970; None where the object is there already, or one of a later round. Raises StoreUnavailable."""
    if not await store.create(f"{FOLDER}{number:010d}", b""):
        return None
    found = dict(await _rounds(store))
    if number not in found or max(found) > number:
        return None
    for before in found:
        if before < number:
            await store.delete(f"{FOLDER}{before:010d}")
    return found[number]


async def _rounds(store: ObjectStore) -> list[tuple[int, int]]:
    found = [(each.name.removeprefix(FOLDER), each.modified_us) for each in await store.listed(FOLDER)]
    return [(int(name), time_us) for name, time_us in found if name.isascii() and name.isdecimal()]
