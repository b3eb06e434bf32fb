"""The positions of a topic's segments."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.read import positions
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, running


async def test_positions_are_there_once_all_owners_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited PAUSE_S before it saw that nothing was missing: 0.1 s in each look at a topic or subscription."""
    monkeypatch.setattr(positions, "PAUSE_S", 60.0)
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        async with asyncio.timeout(15):
            found = await inside.positions(broker).positions(topic)
        assert [one.end for one in found.values()] == [1]
