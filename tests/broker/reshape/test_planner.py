"""A chain that has grown long ends, and goes on in a segment of the same range."""

from pathlib import Path

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.reshape import planner
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import CoordinationUnavailable
from seaweedq.segments.layout import Single
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until

pytestmark = pytest.mark.brokers

LONG = 5


async def flushed(broker: Broker, count: int) -> None:
    """So many messages, each in an entry of its own."""
    topic = inside.topic(broker, "t")
    for _ in range(count):
        number, _, _ = await inside.publisher(broker).single(
            topic, Single("k", b"1", None, broker.process.clock.now_us(), None), None
        )
        await inside.flusher(broker).flush(topic.opened[number])


async def test_a_long_segment_gives_way_to_one_on_its_range_a_short_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        monkeypatch.setattr(inside.roller(broker), "_entries", LONG)
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        await flushed(broker, LONG - 2)  # its creation put one entry
        assert list(inside.catalog(broker).segments(topic)) == [0]
        await flushed(broker, 1)
        await until(lambda: inside.catalog(broker).segments(topic)[0].state == "sealed")
        records = inside.catalog(broker).segments(topic)
        assert (records[0].end_offset, records[0].successors) == (LONG - 1, (1,))
        assert (records[1].low, records[1].high) == (records[0].low, records[0].high)
        await flushed(broker, LONG)
        await until(lambda: inside.catalog(broker).segments(topic)[1].state == "sealed")
        assert sum(record.end_offset or 0 for record in inside.catalog(broker).segments(topic).values()) == 2 * LONG - 1


async def test_one_that_can_not_roll_now_rolls_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "AGAIN", 2)
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        monkeypatch.setattr(inside.roller(broker), "_entries", LONG)
        await inside.topic_admin(broker).create("t", TopicConfig())
        topic = inside.topic(broker, "t")
        plan, refused = inside.planner(broker).plan, []

        async def refuse(*_: object) -> None:
            refused.append(None)
            raise CoordinationUnavailable("not now")

        monkeypatch.setattr(inside.planner(broker), "plan", refuse)
        await flushed(broker, LONG)
        await until(lambda: len(refused) == 1)
        monkeypatch.setattr(inside.planner(broker), "plan", plan)
        assert list(inside.catalog(broker).segments(topic)) == [0]
        await flushed(broker, 1)
        await until(lambda: inside.catalog(broker).segments(topic)[0].state == "sealed")
