"""`_levels/{n}`: an object for each level at which the store's cluster writes, or has begun to.

It is created before coordination knows the level, and never removed. So a store whose coordination was lost still says
which level its readers need: the highest one that is here, or 1 where there is none.
"""

from seaweedq.storage.interface import ObjectStore

FOLDER = "_levels/"


async def mark_level(store: ObjectStore, level: int) -> None:
    """Creates the object of a level, unless it exists. Raises StoreUnavailable."""
    await store.create(f"{FOLDER}{level}", b"")


async def marked_level(store: ObjectStore) -> int:
    """Returns the highest level that the store names. Raises StoreUnavailable."""
    names = await store.list(FOLDER)
    numbers = [name.removeprefix(FOLDER) for name in names]
    return max((int(number) for number in numbers if number.isascii() and number.isdecimal()), default=1)
