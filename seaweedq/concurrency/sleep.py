"""A pause that an event cuts short."""

import asyncio
from collections.abc import Awaitable, Callable

Sleep = Callable[[float], Awaitable[None]]


async def sleep_unless(told: asyncio.Event, sleep: Sleep, seconds: float) -> bool:
    """Sleeps, until the event is set at the latest. Returns whether it was. Raises what `sleep` raises."""
    if told.is_set():
        return True
    slept, heard = asyncio.ensure_future(sleep(seconds)), asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait({slept, heard}, return_when=asyncio.FIRST_COMPLETED)
        if slept.done():
            await slept
        return told.is_set()
    finally:
        slept.cancel()
        heard.cancel()
