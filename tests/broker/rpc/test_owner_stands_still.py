"""An owner that stands still, and whose lease ends: who asked it turns to the next owner, and waits for no answer."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from seaweedq.api.app import Application
from seaweedq.coordination.records.topics import TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until


@pytest.mark.parametrize("ask", ["positions", "flush", "delete"])
async def test_what_concerns_a_whole_topic_goes_on_without_it(tmp_path: Path, ask: str) -> None:
    reached = asyncio.Event()

    async def stands_still(scope: Any, *anything: Any) -> None:
        if scope["path"] in ("/internal/positions", "/internal/close"):
            reached.set()
        await asyncio.Event().wait()

    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        here = next(one for one in together.brokers if inside.election(one).is_leader)
        still = next(one for one in together.brokers if one is not here)
        await inside.topic_admin(here).create("t", TopicConfig(initial_segments=4))
        topic = inside.topic(here, "t")
        together.apps[still.process.url] = cast(Application, stands_still)
        if ask == "delete":
            asking = asyncio.create_task(inside.deletion(here).delete(topic))
        else:
            asking = asyncio.create_task(inside.positions(here).positions(topic, flush=ask == "flush"))
        await reached.wait()
        await together.crash(still)
        await until(asking.done, "it still waits for the one that is gone")
        found = asking.result()
        assert ask == "delete" or sorted(found) == [0, 1, 2, 3]
