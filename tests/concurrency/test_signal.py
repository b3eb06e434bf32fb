"""Who waits for a signal wakes up in the order of the waits."""

import asyncio

from seaweedq.concurrency.signal import Signal


async def test_waits_end_in_their_order() -> None:
    signal, ended = Signal(), []

    async def wait(number: int) -> None:
        await signal.wait(None)
        ended.append(number)

    waits = [asyncio.create_task(wait(number)) for number in range(100)]
    await asyncio.sleep(0)
    signal.wake()
    await asyncio.gather(*waits)
    assert ended == list(range(100))
