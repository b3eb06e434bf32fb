"""Work that must go on while the caller's event loop stands still: a coroutine on a loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any


class Aside:
    """Runs `work` once, from now on. What it touches is touched from another thread, and it waits for no other loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work(), name=name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Cancel the work, and wait until its thread has ended."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
        finally:
            self._loop.close()
