"""A broker's lease as the broker sees it: valid, lapsed, lost."""

import asyncio
from typing import Any

import pytest

from seaweedq.clock import Ids
from seaweedq.coordination import membership
from seaweedq.coordination.interface import Coordination, Grant, Put
from seaweedq.coordination.keys import BROKERS
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.errors import CoordinationUnavailable
from tests.support.brokers.stored import record_of

LEASE_S = 3600  # the task sleeps for ever: tests renew by hand


class Interrupted:
    """Leases whose renewals take time, or get no answer."""

    def __init__(self, coordination: Coordination) -> None:
        self._leases = coordination.leases
        self.before: Any = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)

    async def renew(self, lease: int) -> bool:
        self.before()
        return await self._leases.renew(lease)


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
async def member(coordination: Coordination, clock: Any, ids: Ids, lost: list[str]) -> Any:
    member = Membership(
        coordination,
        clock,
        BrokerIdentity.new(ids, "broker", "http://here"),
        LEASE_S,
        on_lost=lambda: lost.append("lost"),
    )
    await member.start()
    yield member
    await member.stop()


async def test_a_member_is_seen_by_others_until_it_stops(backend: Any, member: Membership, lost: list[str]) -> None:
    other = backend.connect()
    (entry,) = (await other.range(BROKERS.prefix())).entries
    assert entry.key == f"brokers/{member.broker}"
    assert member.broker == "broker.0000000000000001"
    assert entry.lease == member.lease
    record = record_of(BROKERS, entry.value)
    assert (record.name, record.url, record.started_us) == ("broker", "http://here", 1_000_000_000)
    assert member.valid()
    await member.stop()
    assert (await other.range(BROKERS.prefix())).entries == ()
    assert not member.valid()
    assert lost == []


async def test_each_life_has_an_id_of_its_own(coordination: Coordination, clock: Any, ids: Ids) -> None:
    lives = [Membership(coordination, clock, BrokerIdentity.new(ids, "broker", ""), LEASE_S) for _ in range(2)]
    assert lives[0].broker != lives[1].broker


async def test_its_comparison_holds_as_long_as_it_lives(coordination: Coordination, member: Membership) -> None:
    assert await coordination.commit([member.compare()], [Put("mine", b"")])
    await coordination.leases.revoke(member.lease)
    assert await coordination.commit([member.compare()], [Put("mine", b"")]) is None


@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
async def test_its_comparison_holds_again_behind_a_lost_answer(
    coordination: Coordination, member: Membership, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Each of its transactions failed, without end. The write may land behind a look that did not see it."""
    under_way: list[Any] = []

    async def commit(*arguments: Any) -> int | None:
        if not under_way:
            under_way.append(arguments)
            if not late:
                await stored(*arguments)
            raise CoordinationUnavailable("the answer is lost")
        if late and len(under_way) == 1:
            under_way.append(await stored(*under_way[0]))
        return await stored(*arguments)

    stored = coordination.commit
    monkeypatch.setattr(membership, "AGAIN_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(coordination, "commit", commit)
        with pytest.raises(CoordinationUnavailable):
            await member.end_exemption()
        async with asyncio.timeout(10):
            while (late and len(under_way) < 2) or not await stored([member.compare()], [Put("mine", b"")]):
                await asyncio.sleep(0.01)
    assert await member.drain()
    (entry,) = (await coordination.range(BROKERS.prefix())).entries
    record = record_of(BROKERS, entry.value)
    assert (record.draining, record.suspicion_exempt) == (True, False)


async def test_renewal_keeps_it_valid(backend: Any, member: Membership) -> None:
    for _ in range(3):
        await backend.advance(LEASE_S * 0.9)
        assert member.valid()
        assert await member.renew()
    await backend.advance(LEASE_S)
    assert not member.valid()


async def test_age_counts_from_sending_the_renewal(
    backend: Any, coordination: Coordination, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Interrupted(coordination)
    monkeypatch.setattr(coordination, "leases", leases)

    def slow() -> None:
        backend.clock.seconds += LEASE_S * 0.6

    leases.before = slow
    assert await member.renew()
    await backend.advance(LEASE_S * 0.39)
    assert member.valid()
    await backend.advance(LEASE_S * 0.02)
    assert not member.valid()


async def test_without_an_answer_it_lapses_but_is_not_lost(
    backend: Any, coordination: Coordination, member: Membership, monkeypatch: pytest.MonkeyPatch, lost: list[str]
) -> None:
    leases = Interrupted(coordination)
    monkeypatch.setattr(coordination, "leases", leases)

    def fail() -> None:
        raise CoordinationUnavailable("away")

    leases.before = fail
    await backend.advance(LEASE_S * 0.5)
    with pytest.raises(CoordinationUnavailable):
        await member.renew()
    assert member.valid()
    leases.before = lambda: None
    assert await member.renew()
    await backend.advance(LEASE_S * 0.9)
    assert member.valid()
    assert lost == []


async def test_an_ended_lease_is_lost_for_good(coordination: Coordination, member: Membership) -> None:
    await coordination.leases.revoke(member.lease)
    assert member.valid()
    assert not await member.renew()
    assert not member.valid()
    assert not await member.renew()


async def test_the_task_renews_and_reports_a_lost_lease_once(
    coordination: Coordination, clock: Any, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases, renewals, failures = Interrupted(coordination), asyncio.Semaphore(0), iter([True])

    def count() -> None:
        renewals.release()
        if next(failures, False):
            raise CoordinationUnavailable("away")

    leases.before = count
    monkeypatch.setattr(coordination, "leases", leases)
    lost = asyncio.Queue[str]()
    member = Membership(
        coordination, clock, BrokerIdentity.new(ids, "b", ""), 0.03, on_lost=lambda: lost.put_nowait("lost")
    )
    await member.start()
    async with asyncio.timeout(30):
        for _ in range(3):
            await renewals.acquire()
        assert member.valid()
        assert lost.empty()
        await coordination.leases.revoke(member.lease)
        assert await lost.get() == "lost"
    assert not member.valid()
    await member.stop()
    assert lost.empty()


async def test_a_start_whose_lease_ends_meanwhile_says_so(
    backend: Any, coordination: Coordination, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Interrupted(coordination)
    monkeypatch.setattr(coordination, "leases", leases)

    async def grant(ttl_s: float) -> Grant:
        lease = await leases._leases.grant(ttl_s)
        await backend.advance(ttl_s)
        return lease

    monkeypatch.setattr(leases, "grant", grant, raising=False)
    member = Membership(coordination, backend.clock, BrokerIdentity.new(ids, "b", ""), LEASE_S)
    with pytest.raises(CoordinationUnavailable, match="expired before"):
        await member.start()
    assert not member.valid()
    await member.stop()
