"""A successor that stays at its owner is opened from what that one knows, and only if nobody can have written to it."""

from pathlib import Path

import pytest

from seaweedq.broker.topics.ownership import Holder
from seaweedq.segments.producers import ProducerTables
from tests.support.brokers import inside
from tests.support.reshape.scene import scene

# Who is killed between two steps leaves coroutines behind that never began.
pytestmark = [pytest.mark.brokers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


async def test_publishes_after_a_split_ask_the_store_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as here:
        owner = await here.owner(0)
        asked: list[str] = []
        await here.go()
        here.cluster.store.faults = lambda moment, name: asked.append(f"{moment} {name}")
        here.plan([0], [2**30])
        await here.until_sealed(0)
        await here.more(20)
        topic = inside.topic(owner, "t")
        successors = inside.catalog(owner).segment(topic, 0).record.successors
        assert [topic.opened[number].chain.last for number in successors] == [None, None]
        folders = tuple(f"topics/t/segment={number}/" for number in successors)
        assert [one for one in asked if one.startswith(("before list", "before open")) and one.endswith(folders)] == []


async def test_what_somebody_may_have_written_to_is_opened_at_the_store(tmp_path: Path) -> None:
    async with scene(tmp_path, 1) as here:
        owner = await here.owner(0)
        topic = inside.topic(owner, "t")
        opened = await inside.ownership(owner).opened(topic, 0)
        del topic.opened[0]
        revision = inside.catalog(owner).segment(topic, 0).revision
        tables = [ProducerTables.empty(0, opened.source.key_range)]
        inside.ownership(owner).begin(topic, 0, revision - 1, tables)
        assert 0 not in topic.opened, "its record has changed since"
        moving = Holder("it moves")
        inside.ownership(owner).locks.take(topic, [0], moving)
        inside.ownership(owner).begin(topic, 0, revision, tables)
        assert 0 not in topic.opened, "it is on its way to another broker"
        inside.ownership(owner).locks.release(topic, [0], moving)
        inside.ownership(owner).begin(topic, 0, revision, tables)
        assert topic.opened.pop(0).end == 0
        topic.opened[0] = opened
