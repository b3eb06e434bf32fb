"""A flush for which nobody waits any more fails in silence: whoever closed the segment has said why."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.broker.log.flusher import Flusher
from seaweedq.errors import NotOwner
from tests.support.brokers.commit_parts import StillClock


class Moved:
    """What a flusher asks of a segment with a row in its tail that is another broker's by now."""

    end, tail, empty_entry, sealed, paused = 1, SimpleNamespace(start=0), None, False, False

    def check_open(self) -> None:
        raise NotOwner("it has moved")


async def test_the_error_of_a_flush_that_was_forsaken_is_no_news() -> None:
    strange: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strange.append(context))

    segment: Any = Moved()
    nobody: Any = None
    flusher = Flusher(nobody, nobody, nobody, StillClock(), workers=1)
    async with flusher._ordinary:
        waiting = asyncio.create_task(flusher.flush(segment))
        await asyncio.sleep(0)
        assert flusher.busy(segment)
        waiting.cancel()
        await asyncio.wait([waiting])
        del waiting  # its frame knows the flush
    while flusher.busy(segment):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert strange == []
    with pytest.raises(NotOwner, match="moved"):
        await flusher.flush(segment)
