"""Renewal in a thread of its own: a loop that stands still keeps its lease for a while, one that hangs does not."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from seaweedq.clock import Ids, SystemClock
from seaweedq.coordination import membership
from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.keys import BROKERS
from seaweedq.coordination.membership import Aside, BrokerIdentity, Membership
from seaweedq.coordination.sqlite import EmbeddedCoordination
from tests.support.processes.etcd_service import EtcdServer
from tests.support.tiers import marked

LEASE_S = {"embedded": 0.5, "etcd": 1.5}  # an etcd has leases of whole seconds


@pytest.fixture(params=["embedded", marked("etcd", "service", "long")])
async def coordination(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Coordination]:
    """In real time, since a clock that stands still ends no lease."""
    coordination: Coordination
    if request.param == "etcd":
        server: EtcdServer = request.getfixturevalue("etcd_server")
        coordination = EtcdCoordination(Access([server.endpoint]), f"{tmp_path}/")
    else:
        coordination = EmbeddedCoordination(tmp_path / "file", SystemClock())
    yield coordination
    await coordination.close()


@pytest.fixture
def lease_s(request: pytest.FixtureRequest) -> float:
    return LEASE_S[request.node.callspec.params["coordination"]]


@pytest.fixture
async def join(coordination: Coordination, ids: Ids, lease_s: float) -> AsyncIterator[Callable[..., Any]]:
    made: list[Membership] = []

    async def join(**more: Any) -> Membership:
        made.append(Membership(coordination, SystemClock(), BrokerIdentity.of(ids, "b", ""), lease_s, **more))
        await made[-1].start()
        return made[-1]

    yield join
    for member in made:
        await member.stop()


def renewals() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lease-renewal"}


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_loop_that_stands_still_keeps_its_lease_only_with_the_thread(
    coordination: Coordination, join: Any, lease_s: float, in_thread: bool
) -> None:
    member = await join(aside=Aside if in_thread else None)
    time.sleep(lease_s * 3)
    assert member.valid() == in_thread
    assert await member.renew() == in_thread
    assert (await coordination.get(BROKERS.key(member.broker)) is not None) == in_thread


async def test_a_loop_that_hangs_loses_its_lease_and_learns_it(
    join: Any, coordination: Coordination, lease_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "STALL_LEASES", 0.5)
    told = asyncio.Queue[int]()
    member = await join(aside=Aside, on_lost=lambda: told.put_nowait(threading.get_ident()))
    time.sleep(lease_s * 2.5)
    assert not member.valid()
    async with asyncio.timeout(5):
        assert await told.get() == threading.get_ident()
        while await coordination.get(BROKERS.key(member.broker)) is not None:  # etcd ends it up to 1 s later
            await asyncio.sleep(0.05)


async def test_a_revoked_lease_is_told_in_the_loop_of_the_broker(
    coordination: Coordination, join: Any, lease_s: float
) -> None:
    told = asyncio.Queue[int]()
    member = await join(aside=Aside, on_lost=lambda: told.put_nowait(threading.get_ident()))
    await coordination.leases.revoke(member.lease)
    async with asyncio.timeout(lease_s * 3 + 1):
        assert await told.get() == threading.get_ident()
    assert not member.valid()


async def test_stopping_ends_the_thread(coordination: Coordination, join: Any) -> None:
    before = renewals()
    told: list[str] = []
    member = await join(aside=Aside, on_lost=lambda: told.append("lost"))
    assert len(renewals() - before) == 1
    await member.stop()
    assert renewals() == before
    assert not member.valid()
    assert await coordination.get(BROKERS.key(member.broker)) is None
    assert told == []
