"""The sweep leaves what a plan has promised: files that appear under those ids while it looks are a successor's."""

from pathlib import Path

import pytest

from seaweedq.broker.topics import topic_admin as topics
from seaweedq.coordination.records import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until


@pytest.mark.brokers
async def test_the_sweep_removes_nothing_of_successors_to_be(tmp_path: Path, monkeypatch) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        held: set[tuple[str, int, int]] = set()
        monkeypatch.setattr(inside.catalog(broker), "locked", lambda: held)  # nobody carries the plan out yet
        intent = await inside.planner(broker).plan(topic, [0], [1 << 30])
        early = f"topics/t/segment={intent.successors[1].id}/00000000-0000000000000000.parquet"
        await together.store.create(early, b"a successor's first entry, as it were")
        assert await inside.topic_admin(broker).sweep() == 0
        assert await together.store.list(early) == [early]
        await together.store.delete(early)
        monkeypatch.undo()
        inside.catalog(broker).locking.wake()
        await until(lambda: inside.catalog(broker).segments(topic)[0].state == "sealed")
        assert await inside.topic_admin(broker).sweep() == 0


def test_an_id_that_nobody_has_or_is_to_have_is_dead() -> None:
    assert topics._dead({}, 3) == {0, 1, 2}
