"""The small objects in which a store says whose it is, and how far its cluster has come.

`_cluster.json` names the store's cluster and format. It is created once, checked at every start, never changed.

`_levels/{n}` is an object for each level at which the store's cluster writes, or has begun to. It is created before
coordination knows the level, and never removed. So a store whose coordination was lost still says which level its
readers need: the highest one that is here, or 1 if there is none.

`_retention/{n}` names the number of retention's newest round. A round commits its number in coordination first, then
creates the object, and removes the one before. So a store whose number is above coordination's says that coordination
was restored. The object's time is the store's own.
"""

from datetime import UTC, datetime

import msgspec

from seaweedq.clock import Clock
from seaweedq.errors import Damaged, UnfitStore
from seaweedq.formats import Format
from seaweedq.storage.interface import ObjectStore

NAME = "_cluster.json"
STORE = Format("stores", {1: 1})  # levels have objects of their own: this one never changes
LEVELS_FOLDER = "_levels/"
ROUNDS_FOLDER = "_retention/"


class Identity(msgspec.Struct, frozen=True):
    """The identity of a store: cluster id (32 hexadecimal digits), format version, time of creation (UTC), and the
    store's own id, which tells it from every other store ever made for the cluster (32 hexadecimal digits)."""

    cluster: str
    format_version: int
    created: datetime
    store: str = ""


class _Version(msgspec.Struct):
    format_version: int


_version, identity_of = msgspec.json.Decoder(_Version), msgspec.json.Decoder(Identity)


async def known_identity(store: ObjectStore) -> Identity | None:
    """Returns the store's identity, if it has one. Raises as `cluster_identity`."""
    try:
        return _decode(await store.read(NAME))
    except FileNotFoundError:
        return None


async def cluster_identity(store: ObjectStore, proposed: str, clock: Clock, mark: str = "") -> Identity:
    """Returns the store's identity. If there is none, creates it with the cluster id `proposed` and the store's own id
    `mark`; concurrent callers all get the same.

    Raises UnfitStore for an unknown format version, Damaged for an unreadable object, StoreUnavailable.
    """
    found = await known_identity(store)
    if found is None:
        created = datetime.fromtimestamp(clock.now_us() // 1_000_000, UTC)
        await store.create(NAME, msgspec.json.encode(Identity(proposed, STORE.newest, created, mark)))
        found = _decode(await store.read(NAME))
    return found


def _decode(data: bytes) -> Identity:
    try:
        version = _version.decode(data).format_version  # first, since a later version may add or drop
        if 1 <= version <= STORE.newest:
            return identity_of.decode(data)
    except msgspec.DecodeError as error:
        raise Damaged(f"{NAME} cannot be read: {error}", name=NAME) from error
    raise UnfitStore(
        f"the store has format version {version}, but this program can read only version {STORE.newest}",
        found=version,
        known=STORE.newest,
    )


async def mark_level(store: ObjectStore, level: int) -> None:
    """Creates the object of a level, unless it exists. Raises StoreUnavailable."""
    await store.create(f"{LEVELS_FOLDER}{level}", b"")


async def marked_level(store: ObjectStore) -> int:
    """Returns the highest level that the store names. Raises StoreUnavailable."""
    names = await store.list(LEVELS_FOLDER)
    numbers = [name.removeprefix(LEVELS_FOLDER) for name in names]
    return max((int(number) for number in numbers if number.isascii() and number.isdecimal()), default=1)


async def newest_round(store: ObjectStore) -> int:
    """Returns the highest number in the store, 0 if there is none. Raises StoreUnavailable."""
    return max((number for number, _ in await _rounds(store)), default=0)


async def mark_round(store: ObjectStore, number: int) -> int | None:
    """Creates the object of a round, and removes those before it. Returns the store's own time of it, in microseconds
    since 1970; None if the object is there already, or one of a later round. Raises StoreUnavailable."""
    if not await store.create(f"{ROUNDS_FOLDER}{number:010d}", b""):
        return None
    found = dict(await _rounds(store))
    if number not in found or max(found) > number:
        return None
    for before in found:
        if before < number:
            await store.delete(f"{ROUNDS_FOLDER}{before:010d}")
    return found[number]


async def _rounds(store: ObjectStore) -> list[tuple[int, int]]:
    found = [(each.name.removeprefix(ROUNDS_FOLDER), each.modified_us) for each in await store.listed(ROUNDS_FOLDER)]
    return [(int(name), time_us) for name, time_us in found if name.isascii() and name.isdecimal()]
