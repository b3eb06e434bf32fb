"""What every Coordination promises of leases, over all backends."""

from typing import Any

import pytest

from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Entry, Put


async def leased(coordination: Coordination, key: str, ttl_s: float = 5) -> int:
    lease = (await coordination.leases.grant(ttl_s)).lease
    assert await coordination.commit([], [Put(key, b"", lease)])
    return lease


async def test_a_leased_key_names_its_lease(coordination: Coordination) -> None:
    lease = (await coordination.leases.grant(5)).lease
    assert lease > 0
    revision = await coordination.commit([], [Put("a", b"", lease)])
    assert await coordination.get("a") == Entry("a", b"", revision or 0, lease)
    assert (await coordination.range("a")).entries[0].lease == lease


async def test_keys_of_an_ended_lease_are_gone_for_all_readers(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    await leased(one, "a/1")
    await leased(one, "a/2", ttl_s=7)
    await one.commit([], [Put("a/3", b"")])
    await backend.advance(4.9)
    assert await other.get("a/1") is not None
    await backend.advance(0.2)
    assert await other.get("a/1") is None
    assert [entry.key for entry in (await other.range("a/")).entries] == ["a/2", "a/3"]


async def test_a_key_of_an_ended_lease_compares_as_absent(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    await leased(one, "a")
    revision = (await one.get("a")).revision
    await backend.advance(5)
    assert await other.commit([Compare("a", revision)], [Put("b", b"")]) is None
    assert await other.commit([Compare("a", 0)], [Put("a", b"mine")]) is not None


async def test_renewal_starts_the_time_anew(backend: Any, coordination: Coordination) -> None:
    lease = await leased(coordination, "a")
    for _ in range(3):
        await backend.advance(4)
        assert await coordination.leases.renew(lease)
    assert await coordination.get("a") is not None


async def test_an_ended_lease_never_comes_back(backend: Any, coordination: Coordination) -> None:
    lease = await leased(coordination, "a")
    await backend.advance(5)
    assert not await coordination.leases.renew(lease)
    assert await coordination.commit([], [Put("b", b"", lease)]) is None
    assert (await coordination.leases.grant(5)).lease != lease
    assert not await coordination.leases.renew(lease)


async def test_a_put_under_an_ended_lease_stops_the_whole_transaction(backend: Any, coordination: Coordination) -> None:
    ended = (await coordination.leases.grant(1)).lease
    living = (await coordination.leases.grant(9)).lease
    await backend.advance(2)
    assert await coordination.commit([], [Put("a", b"", living), Put("b", b"", ended)]) is None
    assert await coordination.commit([], [Put("a", b"", 12345)]) is None
    assert (await coordination.range("")).entries == ()


async def test_revocation_deletes_the_keys_at_once(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    lease = await leased(one, "a")
    await other.leases.revoke(lease)
    assert await one.get("a") is None
    assert not await one.leases.renew(lease)
    await one.leases.revoke(lease)
    await one.leases.revoke(12345)
    await one.commit([], [Put("kept", b"")])
    await one.leases.revoke(0)
    assert await one.get("kept"), "a key without a lease has no lease that ends"


@pytest.mark.parametrize("instead", [Put("a", b"kept"), Delete("a")])
async def test_a_key_written_anew_belongs_to_its_new_lease(
    backend: Any, coordination: Coordination, instead: Put | Delete
) -> None:
    await leased(coordination, "a")
    await coordination.commit([], [instead])
    before = (await coordination.range("")).revision
    await backend.advance(6)
    page = await coordination.range("")
    assert page.revision == before
    assert [entry.key for entry in page.entries] == (["a"] if isinstance(instead, Put) else [])


async def test_the_end_of_a_lease_is_one_new_revision_in_watches(backend: Any) -> None:
    one, other = backend.connect(), backend.connect()
    lease = (await one.leases.grant(5)).lease
    revision = await one.commit([], [Put("a/1", b"", lease), Put("a/2", b"", lease), Put("b", b"", lease)])
    watch = other.watch("a/", revision)
    await backend.advance(5)
    assert list(await anext(watch)) == [Change("a/1", None, revision + 1), Change("a/2", None, revision + 1)]
    await watch.aclose()
    assert (await one.range("")).revision == revision + 1
