"""An answer never says that nothing was taken once an earlier attempt may have given rows to a journal."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seaweedq.broker.publish.local_append import untaken
from seaweedq.broker.publish.remote_append import RemoteAppender
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotOwner, Unavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, running


@pytest.mark.parametrize("lost", [False, True])
async def test_a_last_attempt_that_took_nothing_does_not_speak_for_one_whose_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        deadline = Deadline(broker.process.clock, 0.5)
        tries = 0

        async def append(*arguments: Any) -> None:
            nonlocal tries
            tries += 1
            if lost and tries == 1:
                raise Unavailable("the owner did not answer")
            await asyncio.sleep(0.05)
            raise NotOwner(untaken(deadline).detail)

        monkeypatch.setattr(RemoteAppender, "_append_at_owner", append)
        remote = inside.publisher(broker)._remote
        rows, none = cast(Any, SimpleNamespace(segment=0, indexes=[0])), cast(Any, None)
        (failed,) = cast(Any, await remote._append_slice(topic, rows, none, none, False, deadline))
        assert tries > 1
        assert ("nothing was taken" in failed.error.detail) is not lost
        assert ("is unknown" in failed.error.detail) is lost
