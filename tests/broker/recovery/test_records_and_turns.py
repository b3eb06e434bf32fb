"""A recovery reads the records of what the dead broker had, and no others; one that waits for its turn has fenced."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.recovery.journal_recovery import REPLAYS
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Page
from seaweedq.coordination.records.cluster import JournalRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.journal.interface import Claim
from seaweedq.segments.commits import Commit
from tests.broker.recovery.test_replay_in_batches import rows, subscribed
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process import make_topic, running
from tests.support.journal.claims import reading, replay_of


async def test_records_of_other_topics_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as broker:
        topic, _ = await subscribed(broker)
        await make_topic(broker, "other", 3)
        await deaf(broker)
        coordination = broker.process.coordination
        asked: list[str] = []
        read = coordination.range

        async def note(prefix: str, after: str = "", limit: int = 500) -> Page:
            asked.append(prefix)
            return await read(prefix, after, limit)

        monkeypatch.setattr(coordination, "range", note)
        replay = replay_of(broker)
        done = await replay.replay(broker.id, reading([Commit(0, (rows(topic, 0, 0), rows(topic, 1, 0)))]))
        assert (done.rows, done.segments) == (2, 2)
        place = ("t", topic.record.incarnation)
        assert set(asked) == {keys.TOPICS.key("t"), keys.SEGMENTS.prefix(*place), keys.STARTS.prefix(*place)}


class Dead:
    """A dead journal that can be fenced, and whose commits never come."""

    def __init__(self, fenced: list[int], number: int) -> None:
        self._fenced, self._number = fenced, number

    async def fence(self) -> None:
        self._fenced.append(self._number)

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        await asyncio.Event().wait()
        yield Commit(0, ())

    async def close(self) -> None:
        pass


async def test_a_journal_that_waits_for_its_turn_is_fenced_already(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        recovery: Any = inside.recovery(broker)
        fenced: list[int] = []
        recovery._journals = type("Journals", (), {"open_dead": lambda _, name, record: Dead(fenced, int(name))})()
        journal = Versioned.new(JournalRecord("file", "elsewhere"))
        tasks = [asyncio.create_task(recovery.recover(str(number), journal)) for number in range(REPLAYS + 3)]
        await asyncio.sleep(0.05)
        assert fenced == list(range(REPLAYS + 3))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
