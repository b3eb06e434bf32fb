"""Recoveries stay within their share of the memory budget, take turns, never wait for ever, and give all back."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.recovery import recovery_memory, replay
from seaweedq.broker.recovery.recovery_memory import RecoveryMemory
from seaweedq.broker.topics.catalog import Topic
from seaweedq.errors import JournalDamaged, StoreUnavailable
from seaweedq.journal.interface import AHEAD_BYTES, Claim
from seaweedq.segments.chain import Chain
from seaweedq.segments.frames import Commit, Frame, FrameKind
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.segments.terms import FIRST_TERM
from tests.support.brokers.in_process import make_topic, running
from tests.support.journal.claims import replay_of

LIMIT = 1_600
SHARE = LIMIT // 4


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_batch_grows_within_the_share_and_the_budget() -> None:
    budget = Budget(LIMIT)
    with RecoveryMemory(budget).recovery() as held:
        await held.acquire(SHARE - 100)
        assert held.grow(100)
        assert not held.grow(1)
        held.release()
        budget.tails = LIMIT - 150
        await held.acquire(150)
        assert not held.grow(1)
        assert budget.held == LIMIT
    assert budget.recovering == 0


async def test_a_recovery_alone_goes_ahead_whatever_there_is() -> None:
    budget = Budget(LIMIT)
    budget.tails = LIMIT
    with RecoveryMemory(budget).recovery() as held:
        await held.acquire(1)
        assert held.grow(SHARE // 4 - 1), "a file for each commit would be worse"
        assert not held.grow(1)
        held.release()
        await held.acquire(10 * LIMIT)


async def test_a_recovery_begins_once_tails_were_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recovery has let go of anything meanwhile."""
    monkeypatch.setattr(recovery_memory, "PATIENCE_S", 60.0)
    budget = Budget(LIMIT)
    memory = RecoveryMemory(budget)
    with memory.recovery() as first, memory.recovery() as second:
        await first.acquire(100)
        budget.tails = LIMIT - 100
        taking = asyncio.create_task(second.acquire(100))
        await settle()
        assert not taking.done()
        budget.tails = 0
        async with asyncio.timeout(20):
            await taking
    assert budget.recovering == 0


async def test_recoveries_take_turns_in_the_order_in_which_they_came() -> None:
    budget = Budget(LIMIT)
    memory, begun = RecoveryMemory(budget), []

    async def recover(name: str) -> None:
        with memory.recovery() as held:
            for _ in range(3):
                await held.acquire(SHARE)
                begun.append(name)
                assert budget.recovering == SHARE, "one at a time"
                await asyncio.sleep(0)
                held.release()

    await asyncio.gather(*map(recover, "abcd"))
    assert "".join(begun) == "abcd" * 3
    assert budget.recovering == 0


async def test_what_a_recovery_keeps_makes_nobody_wait() -> None:
    budget = Budget(LIMIT)
    memory = RecoveryMemory(budget)
    with memory.recovery() as one, memory.recovery() as other:
        one.keep(SHARE)
        await other.acquire(1)
        assert budget.recovering == SHARE + 1
    assert budget.recovering == 0


async def test_a_wait_ends_where_the_other_recovery_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery_memory, "PATIENCE_S", 0.01)
    memory = RecoveryMemory(Budget(LIMIT))
    with memory.recovery() as hangs, memory.recovery() as held:
        await hangs.acquire(SHARE)
        await held.acquire(SHARE)
    assert "now takes" in caplog.text


async def test_one_that_is_cancelled_while_it_waits_gives_its_turn_away() -> None:
    budget = Budget(LIMIT)
    memory = RecoveryMemory(budget)

    async def recover() -> None:
        with memory.recovery() as held:
            await held.acquire(SHARE)

    with memory.recovery() as first:
        await first.acquire(SHARE)
        cancelled, last = asyncio.create_task(recover()), asyncio.create_task(recover())
        await settle()
        cancelled.cancel()
        await settle()
        first.release()
        await last
    assert cancelled.cancelled()
    assert budget.recovering == 0


def row(topic: Topic, first: int, size: int) -> Frame:
    rows = rows_of_singles([Single("k", b"x" * size, None, 1, None)], topic.layout)
    return Frame(FrameKind.ROWS, topic.name, 0, first, 1, mask_of(rows), 0, (), 1, rows.serialize(), FIRST_TERM)


@pytest.mark.parametrize("tails", [0, 1 << 20])
async def test_four_recoveries_hold_their_share_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tails: int
) -> None:
    monkeypatch.setattr(replay, "AHEAD_BYTES", 0)
    async with running(tmp_path) as broker:
        budget = Budget(1 << 20)
        budget.tails = tails
        share, most = budget.limit_bytes // 4, 0
        replays = replay_of(broker, budget)

        async def recover(name: str) -> int:
            topic = await make_topic(broker, name)

            async def journal(claim: Claim) -> AsyncGenerator[Commit, None]:
                nonlocal most
                for number in range(40):
                    made = Commit(number, (row(topic, number, 4_000),))
                    await claim(made.size_bytes)
                    most = max(most, budget.recovering)
                    yield made

            return (await replays.replay(broker.id, journal)).rows

        async with asyncio.timeout(60):
            assert await asyncio.gather(*map(recover, "abcd")) == [40] * 4
        assert budget.recovering == 0
        assert share // 8 < most <= (share // 4 if tails else share) + 20_000, "a commit that is read is there already"
        for name in "abcd":
            chain = Chain(broker.process.store, name, 0)
            await chain.open()
            assert chain.last is not None
            assert chain.last.sequence < 30, "a batch holds several commits, however full the budget is"


@pytest.mark.parametrize("fails", ["read", "order", "store", "cancelled"])
async def test_a_recovery_that_fails_midway_gives_all_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        budget = Budget(1 << 30)
        replays = replay_of(broker, budget)
        waits = asyncio.Event()

        async def journal(claim: Claim) -> AsyncGenerator[Commit, None]:
            for number in range(3):
                await claim(1_000)
                assert budget.recovering > AHEAD_BYTES
                yield Commit(0 if fails == "order" else number, (row(topic, number, 10),))
            if fails == "read":
                raise JournalDamaged("as told", path="", position=0)
            if fails == "cancelled":
                waits.set()
                await asyncio.Event().wait()

        async def refuse(*_: object) -> int:
            raise StoreUnavailable("as told")

        if fails == "store":
            monkeypatch.setattr(replays, "_append_all", refuse)
        replaying = asyncio.create_task(replays.replay(broker.id, journal))
        if fails == "cancelled":
            await waits.wait()
            replaying.cancel()
        await asyncio.wait([replaying], timeout=10)
        assert replaying.cancelled() or isinstance(replaying.exception(), JournalDamaged | StoreUnavailable)
        assert budget.recovering == 0
