"""Who stops carries nothing out any more: no task of its goes on when its folder is another life's."""

import asyncio
from pathlib import Path

from in_process import Gate, held, make_topic, publish, running


async def test_nothing_is_begun_again_while_a_broker_stops(tmp_path: Path) -> None:
    gate = Gate()

    async def committing(writes) -> None:
        if any(b'"committed"' in getattr(put, "value", b"") for put in writes):
            await gate()

    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        held(broker).before = committing
        await broker.planner.plan(topic, [0], [1 << 30])
        await gate.reached.wait()
        await broker.stop()
        await asyncio.sleep(0.05)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "reshaping t"]
        assert broker.reshaper.under_way == 0
        gate.open.set()
