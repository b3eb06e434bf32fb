"""Who stops carries nothing out any more: no task of its goes on when its folder is another life's."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.reshape.reshaper import Reshaper
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, held, make_topic, publish, running


async def test_nothing_is_begun_again_while_a_broker_stops(tmp_path: Path) -> None:
    gate = Gate()

    async def committing(writes) -> None:
        if any(b'"committed"' in getattr(put, "value", b"") for put in writes):
            await gate()

    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        held(broker).before = committing
        await inside.planner(broker).plan(topic, [0], [1 << 30])
        await gate.reached.wait()
        await broker.stop()
        await asyncio.sleep(0.05)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "reshaping t"]
        assert inside.reshaper(broker).under_way == 0
        gate.open.set()


async def test_a_broker_that_can_carry_nothing_out_any_more_begins_a_new_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has committed would wait for ever at a broker that lives."""

    def fails(self: Reshaper) -> None:
        raise RuntimeError("nobody foresaw this")

    async with running(tmp_path) as broker:
        await make_topic(broker)
        monkeypatch.setattr(Reshaper, "_begin", fails)
        async with asyncio.timeout(5):
            await broker.lost.wait()
