"""`_cluster.json`: names the store's cluster and format. Created once, checked at every start, never changed."""

from datetime import UTC, datetime

import msgspec

from seaweedq.clock import Clock
from seaweedq.errors import Damaged, UnfitStore
from seaweedq.formats import Format
from seaweedq.storage.interface import ObjectStore

NAME = "_cluster.json"
STORE = Format("stores", {1: 1})  # levels have objects of their own: this one never changes


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
        f"the store has format version {version}; this program knows only version {STORE.newest}",
        found=version,
        known=STORE.newest,
    )
