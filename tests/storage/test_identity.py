"""`_cluster.json`: created once, the same for all, refused where it is not understood."""

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest

from seaweedq.clock import Clock, Ids
from seaweedq.errors import Damaged, StoreUnavailable, UnfitStore
from seaweedq.storage.identity import cluster_identity
from seaweedq.storage.interface import ObjectStore
from seaweedq.storage.memory import MemoryStore


async def test_all_who_start_at_once_get_one_identity(store: ObjectStore, ids: Ids, clock: Clock) -> None:
    first, *others = await asyncio.gather(*(cluster_identity(store, ids.nonce(), clock) for _ in range(8)))
    assert all(other == first for other in others)
    assert first == await cluster_identity(store, ids.nonce(), clock)
    assert await store.list("") == ["_cluster.json"]


async def test_the_object_is_plain_json(store: ObjectStore, ids: Ids, clock: Clock) -> None:
    identity = await cluster_identity(store, ids.nonce(), clock, "a mark")
    assert identity.created == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert msgspec.json.decode(await store.read("_cluster.json")) == {
        "cluster": identity.cluster,
        "format_version": 1,
        "created": "2023-11-14T22:13:20Z",
        "store": "a mark",
    }


async def test_another_format_version_is_refused_and_both_are_named(ids: Ids, clock: Clock) -> None:
    store = MemoryStore()
    await store.create("_cluster.json", b'{"format_version": 2, "clusters": []}')
    with pytest.raises(UnfitStore, match=r"version 2.*can read only version 1") as caught:
        await cluster_identity(store, ids.nonce(), clock)
    assert caught.value.fields == {"found": 2, "known": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format_version": 1}', b"\xff"])
async def test_an_unreadable_identity_is_damage(ids: Ids, clock: Clock, content: bytes) -> None:
    store = MemoryStore()
    await store.create("_cluster.json", content)
    with pytest.raises(Damaged, match=r"_cluster\.json cannot be read"):
        await cluster_identity(store, ids.nonce(), clock)


async def test_a_reset_after_the_creation_keeps_the_identity(ids: Ids, clock: Clock) -> None:
    def reset(moment: str, name: str) -> None:
        if moment == "after create":
            raise StoreUnavailable("reset")

    store = MemoryStore(reset)
    with pytest.raises(StoreUnavailable):
        await cluster_identity(store, ids.nonce(), clock)
    stored = msgspec.json.decode(await store.read("_cluster.json"))
    assert (await cluster_identity(store, ids.nonce(), clock)).cluster == stored["cluster"]
