"""Leases in etcd's own time: here they really end by waiting. Everything else about them is in the contract."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.interface import Change, Put
from tests.support.processes.etcd_service import EtcdServer

pytestmark = pytest.mark.service

# etcd looks for leases that are over each 0.5 s, and ends them through a transaction.
END_S = 3.0


@pytest.fixture
async def coordination(etcd_server: EtcdServer) -> AsyncIterator[EtcdCoordination]:
    coordination = EtcdCoordination(Access([etcd_server.endpoint]), "leases/")
    yield coordination
    await coordination.close()


async def test_a_lease_that_is_not_renewed_ends_with_its_keys(coordination: EtcdCoordination) -> None:
    granted_s = time.monotonic()
    lease = (await coordination.grant(1)).lease
    revision = await coordination.commit([], [Put("a", b"", lease), Put("b", b"", lease), Put("c", b"")])
    assert revision
    async with asyncio.timeout(1 + END_S):
        changes = await anext(coordination.watch("", revision))
    assert time.monotonic() - granted_s >= 1
    assert list(changes) == [Change("a", None, revision + 1), Change("b", None, revision + 1)]
    assert not await coordination.renew(lease)
    assert [entry.key for entry in (await coordination.range("")).entries] == ["c"]
    assert await coordination.commit([], [Put("a", b"", lease)]) is None


async def test_a_lease_that_is_renewed_lives_on(coordination: EtcdCoordination) -> None:
    lease = (await coordination.grant(1)).lease
    await coordination.commit([], [Put("a", b"", lease)])
    end_s = time.monotonic() + 1 + END_S
    while time.monotonic() < end_s:
        assert await coordination.renew(lease)
        await asyncio.sleep(0.1)
    assert await coordination.get("a") is not None
    await coordination.revoke(lease)


async def test_a_part_of_a_second_is_a_whole_one(etcd_server: EtcdServer, coordination: EtcdCoordination) -> None:
    for asked_s, given_s in ((0.2, 1), (1.0, 1), (4.1, 5)):
        lease = (await coordination.grant(asked_s)).lease
        assert f"granted with TTL({given_s}s)" in etcd_server.control("lease", "timetolive", f"{lease:x}")
        await coordination.revoke(lease)


async def test_a_lease_survives_a_restart_of_etcd(etcd_servers: Any) -> None:
    server = etcd_servers()
    coordination = EtcdCoordination(Access([server.endpoint]), "")
    lease = (await coordination.grant(30)).lease
    await coordination.commit([], [Put("a", b"", lease)])
    await coordination.close()
    server.kill()
    server.start()
    coordination = EtcdCoordination(Access([server.endpoint]), "")
    entry = await coordination.get("a")
    assert entry is not None
    assert entry.lease == lease
    assert await coordination.renew(lease)
    await coordination.close()
