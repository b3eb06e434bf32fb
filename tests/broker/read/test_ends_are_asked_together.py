"""Thousands of readers that must know an owner's ends now share a few calls."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.read.readable_segments import ReadableSegments
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import by_id, make
from tests.support.brokers.reshaped import records as topic_records

pytestmark = pytest.mark.brokers


async def test_readers_who_ask_at_once_share_a_call_that_begins_after_they_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path) as together:
        topic = await make(together.brokers[0])
        await until(lambda: all(inside.catalog(one).find("t") for one in together.brokers))
        owner = by_id(together, topic_records(together.brokers[0])[0].owner)
        (other,) = [one for one in together.brokers if one is not owner]
        there = inside.topic(other, "t")
        await until(lambda: 0 in inside.catalog(other).records(there))
        readables, calls, gate = inside.readables(other), 0, Gate()
        ends = ReadableSegments._ends

        async def counted(self: ReadableSegments, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            await gate()
            return await ends(self, *arguments)

        monkeypatch.setattr(ReadableSegments, "_ends", counted)
        first = asyncio.create_task(readables.refresh(there, [0]))
        await gate.reached.wait()
        others = [asyncio.create_task(readables.refresh(there, [0])) for _ in range(100)]
        await asyncio.sleep(0.05)
        assert calls == 1
        others[0].cancel()
        gate.open.set()
        assert await first == {0}
        assert await asyncio.gather(*others[1:]) == [{0}] * 99
        assert calls == 2, "one for all who asked while the first was under way"
        assert topic.name == "t"
