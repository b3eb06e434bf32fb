"""One leader at a time, and a leader that is none any more gets nothing through."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from seaweedq.clock import Ids
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Coordination, Delete, Put, WatchLost
from seaweedq.coordination.keys import LEADER
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import CoordinationUnavailable, Fenced
from tests.support.brokers.stored import record_of

LEASE_S = 3600


class Candidate:
    def __init__(self, coordination: Coordination, clock: Any, ids: Ids, name: str) -> None:
        self.coordination = coordination
        self.member = Membership(coordination, clock, BrokerIdentity.new(ids, name, ""), LEASE_S)
        self.election = Election(coordination, self.member, retry_s=0.01)
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> "Candidate":
        await self.member.start()
        self.task = asyncio.create_task(self.election.run())
        return self

    async def lead(self) -> "Candidate":
        async with asyncio.timeout(30):
            await self.election.elected()
        return self

    async def end_election(self) -> None:
        if self.task:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def stop(self) -> None:
        await self.end_election()
        await self.member.stop()


@pytest.fixture
async def pair(backend: Any, ids: Ids) -> AsyncIterator[list[Candidate]]:
    """A leader, and one who waits."""
    first, second = (Candidate(backend.connect(), backend.clock, ids, name) for name in ("first", "second"))
    await (await first.start()).lead()
    await second.start()
    await second.election.campaign()
    yield [first, second]
    await first.stop()
    await second.stop()


async def leader_of(coordination: Coordination) -> str | None:
    entry = await coordination.get(LEADER.key())
    return record_of(LEADER, entry.value).broker if entry else None


async def test_the_first_leads_and_the_second_waits(pair: list[Candidate]) -> None:
    first, second = pair
    assert (first.election.is_leader, second.election.is_leader) == (True, False)
    assert await leader_of(second.coordination) == first.member.broker
    with pytest.raises(Fenced):
        second.election.leader_compare()
    assert await first.coordination.commit([first.election.leader_compare()], [Put("plan", b"")])


async def test_of_many_candidates_one_leads(backend: Any, ids: Ids) -> None:
    candidates = [Candidate(backend.connect(), backend.clock, ids, f"b{n}") for n in range(5)]
    await asyncio.gather(*(candidate.member.start() for candidate in candidates))
    await asyncio.gather(*(candidate.election.campaign() for candidate in candidates))
    await asyncio.gather(*(candidate.election.campaign() for candidate in candidates))
    leaders = [candidate.member.broker for candidate in candidates if candidate.election.is_leader]
    assert leaders == [await leader_of(backend.connect())]
    await asyncio.gather(*(candidate.stop() for candidate in candidates))


async def test_the_other_takes_over_when_the_leader_stops(pair: list[Candidate]) -> None:
    first, second = pair
    await first.stop()
    await second.lead()
    assert not first.election.is_leader
    assert await leader_of(second.coordination) == second.member.broker


async def test_the_transaction_of_a_zombie_leader_is_refused(pair: list[Candidate]) -> None:
    zombie, second = pair
    await zombie.end_election()  # it learns nothing any more
    held = zombie.election.leader_compare()
    await second.coordination.leases.revoke(zombie.member.lease)
    await second.lead()
    assert zombie.election.is_leader
    assert await zombie.coordination.commit([held], [Put("plan", b"of the zombie")]) is None
    assert await zombie.coordination.commit([zombie.election.leader_compare()], [Put("plan", b"zombie")]) is None
    assert await second.coordination.commit([second.election.leader_compare()], [Put("plan", b"new")])
    entry = await zombie.coordination.get("plan")
    assert entry is not None
    assert entry.value == b"new"


async def test_a_lapsed_leader_knows_that_it_leads_no_more(backend: Any, pair: list[Candidate]) -> None:
    first, second = pair
    assert await second.member.renew()
    await backend.advance(LEASE_S / 2)
    assert await second.member.renew()
    await backend.advance(LEASE_S / 2)
    assert not first.election.is_leader
    with pytest.raises(Fenced):
        first.election.leader_compare()
    await second.lead()


async def test_a_broker_whose_lease_ended_is_not_elected(pair: list[Candidate]) -> None:
    first, second = pair
    await first.coordination.leases.revoke(second.member.lease)
    await first.stop()
    await second.election.campaign()
    assert await leader_of(second.coordination) is None
    assert not second.election.is_leader


async def test_a_deposed_leader_that_lives_stands_again(pair: list[Candidate]) -> None:
    first, second = pair
    await second.stop()
    await first.coordination.commit([], [Put(LEADER.key(), LEADER.encode(Versioned.new(LEADER.record("nobody"))))])
    await first.election.campaign()
    assert not first.election.is_leader
    await first.coordination.commit([], [Delete(LEADER.key())])
    await first.lead()


@pytest.mark.parametrize("error", [WatchLost("compacted"), CoordinationUnavailable("away")])
async def test_a_lost_watch_is_begun_again(
    pair: list[Candidate], ids: Ids, backend: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first, second = pair
    third = Candidate(backend.connect(), backend.clock, ids, "third")
    failed = asyncio.Event()
    real = third.coordination.watch

    def watch(prefix: str, revision: int) -> Any:
        if failed.is_set():
            return real(prefix, revision)
        failed.set()
        raise error

    monkeypatch.setattr(third.coordination, "watch", watch)
    await second.stop()
    await third.start()
    async with asyncio.timeout(30):
        await failed.wait()
    await first.stop()
    await third.lead()
    await third.stop()
