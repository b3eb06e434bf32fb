"""The opening of a segment: those who wait get its error, and nobody is left with one that nobody has got."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from seaweedq.errors import StoreUnavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.http.with_tokens import Http


async def test_an_opening_that_fails_when_nobody_waits_any_more_is_heard_of_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        assert await Http(together, "").status("PUT", "/v1/topics/t", None) == 201
        ownership, topic = inside.ownership(broker), await inside.catalog(broker).known("t")
        topic.opened.clear()
        begun, fails = asyncio.Event(), asyncio.Event()

        async def failing(*_: object) -> None:
            """Fails once it may."""
            begun.set()
            await fails.wait()
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(ownership, "_open", failing)
        asking = [asyncio.create_task(ownership.open(topic, 0)) for _ in range(2)]
        await begun.wait()
        (opening,) = ownership._openings.values()
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        fails.set()
        await asyncio.wait([opening])
        assert not ownership._openings
        asking.clear()
        del opening, one  # nothing else holds the error
        gc.collect()
        assert not heard
        monkeypatch.undo()
        assert await ownership.open(topic, 0) is not None
