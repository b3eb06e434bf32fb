"""Renewals on simulated time, late or out of order; and in a thread of their own, while a loop stands still."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from seaweedq.clock import Ids, SystemClock
from seaweedq.coordination import membership
from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.interface import Coordination, Grant
from seaweedq.coordination.keys import BROKERS
from seaweedq.coordination.membership import BrokerIdentity, LeaseThread, Membership
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.errors import CoordinationUnavailable
from tests.support.brokers.machine import SeededIds
from tests.support.brokers.simulated_loop import clock, simulate
from tests.support.processes.etcd_service import EtcdServer
from tests.support.tiers import marked

T = TypeVar("T")
LEASE_S = 5.0
LEASES_S = {"embedded": 1.2, "etcd": 1.5}  # an etcd has leases of whole seconds


class SlowLeases:
    """Leases whose requests take `to_s` to coordination, and their answers `back_s`, each as it is when it is sent."""

    def __init__(self, coordination: MemoryCoordination) -> None:
        self._coordination = coordination
        self.to_s = self.back_s = 0.0
        self.extra_s = 0.0  # of each grant
        self.sent_s: list[float] = []

    async def grant(self, ttl_s: float) -> Grant:
        return await self._carried(lambda: self._coordination.grant(ttl_s + self.extra_s))

    async def renew(self, lease: int) -> bool:
        self.sent_s.append(clock().time())
        return await self._carried(lambda: self._coordination.renew(lease))

    async def revoke(self, lease: int) -> None:
        await self._coordination.revoke(lease)

    async def _carried(self, work: Callable[[], Awaitable[T]]) -> T:
        to_s, back_s = self.to_s, self.back_s
        await asyncio.sleep(to_s)
        answer = await work()
        await asyncio.sleep(back_s)
        return answer


class Scene:
    """A member whose coordination is slow. `lost` says when its lease was lost."""

    def __init__(self) -> None:
        self.coordination = MemoryCoordination(clock())
        self.leases = self.coordination.leases = SlowLeases(self.coordination)
        self.lost: list[float] = []
        identity = BrokerIdentity.new(SeededIds(1), "b", "")
        self.member = Membership(
            self.coordination, clock(), identity, LEASE_S, lambda: self.lost.append(clock().time())
        )

    async def lives_for(self, time_s: float) -> bool:
        """Whether its lease is valid, here and there, all the time."""
        end_s = clock().time() + time_s
        while clock().time() < end_s:
            await asyncio.sleep(0.1)
            there = await self.coordination.get(BROKERS.key(self.member.broker))
            if self.lost or not self.member.valid() or there is None:
                return False
        return True

    async def end(self) -> None:
        await self.member.stop()
        await self.coordination.close()


def in_scene(act: Callable[[Scene], Awaitable[Any]]) -> None:
    async def play() -> None:
        scene = Scene()
        await scene.member.start()
        try:
            await act(scene)
        finally:
            await scene.end()
        assert [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}] == []

    simulate(play())


@pytest.mark.parametrize(("to_s", "back_s"), [(0.0, 1.2), (1.2, 0.0), (0.6, 0.6), (1.9, 1.9)])
def test_answers_that_come_late_end_no_lease(to_s: float, back_s: float) -> None:
    async def act(scene: Scene) -> None:
        scene.leases.to_s, scene.leases.back_s = to_s, back_s
        assert await scene.lives_for(120)
        assert scene.member.missed_renewals == 0

    in_scene(act)


def test_a_pause_of_coordination_that_is_shorter_than_the_lease_ends_none() -> None:
    async def act(scene: Scene) -> None:
        for _ in range(10):
            scene.leases.to_s = 3600
            assert await scene.lives_for(LEASE_S - 2)
            scene.leases.to_s = 0
            assert await scene.lives_for(2)

    in_scene(act)


def test_renewals_are_sent_each_second_whatever_is_answered() -> None:
    async def act(scene: Scene) -> None:
        scene.leases.back_s = 3600
        assert await scene.lives_for(4.8)
        assert [round(at_s, 6) for at_s in scene.leases.sent_s] == [1, 2, 3, 4]
        await asyncio.sleep(60)
        assert not scene.member.valid()
        under_way = [task for task in asyncio.all_tasks() if task.get_name() == "renewal"]
        assert len(under_way) <= 5
        assert not scene.lost, "that nobody answers decides nothing"

    in_scene(act)


def test_the_age_of_the_lease_counts_from_the_newest_answered_sending() -> None:
    async def act(scene: Scene) -> None:
        began_s = clock().time()
        scene.leases.back_s = 2.5  # of the sending after 1 s
        await asyncio.sleep(1.5)
        scene.leases.back_s = 0.2  # of the one after 2 s
        await asyncio.sleep(1)
        scene.leases.to_s = 3600
        await asyncio.sleep(began_s + 6.9 - clock().time())
        assert scene.member.valid(), "the older answer came later, and took nothing back"
        await asyncio.sleep(0.2)
        assert not scene.member.valid()

    in_scene(act)


def test_an_answer_under_way_does_not_revive_a_lease_that_has_ended() -> None:
    async def act(scene: Scene) -> None:
        scene.leases.back_s = 2
        await asyncio.sleep(1.5)
        scene.leases.back_s = 0
        await scene.coordination.revoke(scene.member.lease)
        await asyncio.sleep(3)
        assert not scene.member.valid()
        assert len(scene.lost) == 1

    in_scene(act)


def test_a_longer_grant_counts_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        scene = Scene()
        scene.leases.extra_s = 3
        await scene.member.start()
        scene.leases.to_s = 3600
        await asyncio.sleep(LEASE_S + 2.9)
        assert scene.member.valid()
        await asyncio.sleep(0.2)
        assert not scene.member.valid()
        await scene.end()

    simulate(play())
    assert "leases of 8 s instead of lease_s=5 s" in caplog.text


@pytest.mark.parametrize("error", [CoordinationUnavailable("away"), None])
def test_missed_renewals_are_counted_and_told_of_each_ten_seconds(
    caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    async def act(scene: Scene) -> None:
        async def miss(lease: int) -> bool:
            if error:
                raise error
            await asyncio.sleep(3600)
            return True

        def told() -> list[str]:  # of this broker: those of other tests may still try
            return [text for text in caplog.messages if scene.member.broker in text]

        scene.leases.renew = miss  # type: ignore[method-assign]
        await asyncio.sleep(1.5 if error else LEASE_S + 1.5)
        assert [text.startswith("1 renewals of the lease of") for text in told()] == [True]
        await asyncio.sleep(30)
        assert len(told()) == 4
        assert told()[-1].startswith("10 renewals of the lease of")
        assert scene.member.missed_renewals in (31, 30)

    caplog.set_level(logging.INFO)
    in_scene(act)


def test_a_renewal_that_fails_unforeseen_ends_the_life_loudly(caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        async def fail(lease: int) -> bool:
            raise RuntimeError("a defect")

        scene.leases.renew = fail  # type: ignore[method-assign]
        await asyncio.sleep(1.5)
        assert not scene.member.valid()
        assert len(scene.lost) == 1

    in_scene(act)
    assert "a defect" in caplog.text


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
    return LEASES_S[request.node.callspec.params["coordination"]]


@pytest.fixture
async def join(coordination: Coordination, ids: Ids, lease_s: float) -> AsyncIterator[Callable[..., Any]]:
    made: list[Membership] = []

    async def join(lease_s: float = lease_s, **more: Any) -> Membership:
        while True:
            made.append(Membership(coordination, SystemClock(), BrokerIdentity.new(ids, "b", ""), lease_s, **more))
            with suppress(CoordinationUnavailable):  # on a busy machine the lease may end before it has joined
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
    member = await join(background=LeaseThread if in_thread else None)
    time.sleep(lease_s * 1.5)
    assert member.valid() == in_thread
    assert await member.renew() == in_thread
    async with asyncio.timeout(15):
        while (await coordination.get(BROKERS.key(member.broker)) is not None) != in_thread:
            await asyncio.sleep(0.05)  # etcd ends it up to 1 s later


async def test_a_loop_that_hangs_loses_its_lease_and_learns_it(
    join: Any, coordination: Coordination, lease_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "STALL_LEASES", 0.5)
    told = asyncio.Queue[int]()
    member = await join(background=LeaseThread, on_lost=lambda: told.put_nowait(threading.get_ident()))
    time.sleep(lease_s * 2.2)
    assert not member.valid()
    async with asyncio.timeout(15):
        assert await told.get() == threading.get_ident()
        while await coordination.get(BROKERS.key(member.broker)) is not None:  # etcd ends it up to 1 s later
            await asyncio.sleep(0.05)


async def test_a_revoked_lease_is_told_in_the_loop_of_the_broker(coordination: Coordination, join: Any) -> None:
    told = asyncio.Queue[int]()
    member = await join(60, background=LeaseThread, on_lost=lambda: told.put_nowait(threading.get_ident()))
    await coordination.leases.revoke(member.lease)
    async with asyncio.timeout(20):
        assert await told.get() == threading.get_ident()
    assert not member.valid()


async def test_stopping_ends_the_thread(coordination: Coordination, join: Any) -> None:
    before = renewals()
    told: list[str] = []
    member = await join(60, background=LeaseThread, on_lost=lambda: told.append("lost"))
    assert len(renewals() - before) == 1
    await member.stop()
    assert not renewals() - before
    assert not member.valid()
    assert await coordination.get(BROKERS.key(member.broker)) is None
    assert told == []
