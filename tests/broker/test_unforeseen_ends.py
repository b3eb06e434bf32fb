"""Whatever ends unforeseen ends the life of its broker, and a stop goes on over a step that fails."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.leader import Leader
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.subscriptions.subscribing import Handoff
from seaweedq.errors import Fenced
from seaweedq.journal.file_journal import FileJournal
from seaweedq.segments.chain import Chain
from seaweedq.storage.memory import MemoryStore
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, held, make_topic, publish, running

WITHIN_S = 30


async def test_each_task_of_a_life_ends_it_also_by_a_cancellation_from_inside(tmp_path: Path) -> None:
    async with running(tmp_path / "names") as broker:
        names = [task.get_name() for task in privates.tasks(broker)]
    assert {"catalog", "group commit", "election", "leader", "ticks", "checkpoints", "loads", "imports"} <= set(names)
    for name in names:
        async with running(tmp_path / name) as broker:
            (task,) = [task for task in privates.tasks(broker) if task.get_name() == name]
            task.cancel()
            await asyncio.wait_for(broker.lost.wait(), WITHIN_S)


async def test_no_election_runs_unwatched_beside_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[set[str]] = []
    first_round = Leader.round

    async def observed(leader: Leader) -> None:
        found.append({task.get_name() for task in asyncio.all_tasks()})
        await first_round(leader)

    monkeypatch.setattr(Leader, "round", observed)
    async with running(tmp_path) as broker:
        names = {task.get_name() for task in privates.tasks(broker)}
    assert "election" in names
    assert "election" not in found[0]


@pytest.mark.parametrize("how", ["returns", "raises"])
async def test_a_task_that_ends_by_itself_ends_the_life_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    gate = Gate()

    async def end(self: Handoff) -> None:
        await gate()
        if how == "raises":
            raise RuntimeError("a defect")

    monkeypatch.setattr(Handoff, "run", end)
    async with running(tmp_path) as broker:
        assert not broker.lost.is_set()
        gate.open.set()
        await asyncio.wait_for(broker.lost.wait(), WITHIN_S)
    assert "handover ended unexpectedly" in caplog.text
    assert ("a defect" in caplog.text) == (how == "raises")


async def test_a_stop_in_order_is_no_unforeseen_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as broker:
        await publish(broker, await make_topic(broker), "1")
    assert not broker.lost.is_set()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_broker_whose_segment_was_taken_begins_again(tmp_path: Path) -> None:
    async with running(tmp_path, store := MemoryStore()) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        segment = topic.opened[0]
        chain = Chain(store, "t", 0)  # as a recovery sees it
        await chain.open()
        rows = [(buffered.first, buffered.rows) for buffered in segment.tail.head(1)]
        taken = segment.source, chain, rows, segment.producers, segment.max_timestamp_us, None
        await inside.entry_writer(broker).append(*taken)
        with pytest.raises(Fenced):
            await inside.flusher(broker).flush(segment)
        assert broker.lost.is_set()
        assert not broker.readiness.can_take_work


@pytest.mark.parametrize(
    ("kind", "step"),
    [(Broker, "_put_away"), (Broker, "_end_work"), (Peers, "close"), (FileJournal, "close")],
)
@pytest.mark.parametrize("error", [RuntimeError("a defect"), OSError("the disk has gone")])
async def test_a_stop_whose_step_fails_gives_lease_and_folder_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    step: str,
    error: Exception,
) -> None:
    real = getattr(kind, step)

    async def fail(self: Any, *arguments: Any) -> Any:
        if step != "_put_away":
            await real(self, *arguments)
        raise error

    async with running(tmp_path) as broker:
        await publish(broker, await make_topic(broker), "1")
        with monkeypatch.context() as patch:
            patch.setattr(kind, step, fail)
            await broker.stop()
        assert await held(broker).get(f"brokers/{broker.id}") is None
        broker.lock()
    assert str(error) in caplog.text
