"""Publishes that wait for an owner that has gone look at coordination together, and not each for itself."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from seaweedq.broker.publish.remote_append import LOOK_S, RemoteAppender
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotOwner
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, running


async def test_many_publishes_that_wait_look_once_together(tmp_path: Path, monkeypatch: Any) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker, segments=4)
        looks: list[int] = []

        async def gone(*arguments: Any) -> None:
            raise NotOwner("its broker has gone")

        async def look(name: str, segment: int) -> None:
            looks.append(segment)

        monkeypatch.setattr(RemoteAppender, "_append_at_owner", gone)
        monkeypatch.setattr(inside.catalog(broker), "look", look)
        remote, clock = inside.publisher(broker)._remote, broker.process.clock
        assert isinstance(remote, RemoteAppender)
        slices = [cast(Any, SimpleNamespace(segment=n % 4, indexes=[n])) for n in range(40)]
        none = cast(Any, None)
        deadline = Deadline(clock, 4 * LOOK_S)
        waiting = (remote._append_slice(topic, one, none, none, False, deadline) for one in slices)
        for (failed,) in cast(Any, await asyncio.gather(*waiting)):
            assert isinstance(failed.error, NotOwner)
        assert 1 <= len(looks) <= 5
