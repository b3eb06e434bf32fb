"""What the leader says of a recovery that fails: a line for what may happen, a traceback for what nobody foresaw; and
of a journal that can not be reached, that it is so and that it is over.
"""

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.errors import StoreUnavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.folder_lock import FolderLock
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until


@pytest.mark.parametrize("error", [StoreUnavailable("the store is away"), RecursionError("too deep")])
async def test_only_an_unforeseen_failure_has_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with in_loop(tmp_path, 2, journal="object") as together:
        leader, dead = together.brokers

        async def fail(*_: object) -> bool:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(inside.recovery(leader), "recover", fail)
            await together.crash(dead)
            await until(lambda: any("not recovered yet" in r.getMessage() for r in caplog.records))
        said = next(r for r in caplog.records if "not recovered yet" in r.getMessage())
        assert bool(said.exc_info) is isinstance(error, RecursionError)


@pytest.mark.parametrize("end", ["reached again", "recovered by another"])
async def test_a_journal_out_of_reach_is_told_when_that_begins_and_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    caplog.set_level(logging.INFO, "seaweedq.broker.recovery.journal_recovery")

    def said(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    async with in_loop(tmp_path, 2) as together:
        leader, dead = together.brokers
        broker = dead.id
        await together.crash(dead)
        lock = FolderLock(dead.process.settings.home, Disk())  # as a process does that stands still
        lock.acquire()
        await until(lambda: said("can not be reached"))
        journal = inside.roster(leader).journals[broker]
        for _ in range(3):
            assert not await inside.recovery(leader).recover(broker, journal)
        assert said("can not be reached") == 1
        if end == "reached again":
            lock.release()
            assert await inside.recovery(leader).recover(broker, journal)
        else:
            key = keys.JOURNALS.key(broker)
            done = keys.JOURNALS.encode(Versioned.new(replace(journal.record, recovered=True)))
            await together.coordination.commit([], [Put(key, done)])
            await together.coordination.commit([], [Delete(key)])
        await until(lambda: said(end))
        await until(lambda: broker not in inside.roster(leader).journals)
        lock.release()
        assert (said("can not be reached"), said(end)) == (1, 1)
