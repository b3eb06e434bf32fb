"""Runs a coroutine on an event loop in a thread of its own, so that it continues while the caller's loop is blocked."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

POLL_S = 0.002


class AsideWork(Protocol):
    """Work that was started aside."""

    async def stop(self) -> None:
        """Cancels the work, and waits until it has ended."""


StartAside: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]], str], AsideWork]


class Aside:
    """Runs `work` once, from now on. The work runs in another thread, and must not wait for the caller's loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work(), name=name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Cancels the work, and waits until its thread has ended."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._task.cancel)
        while self._thread.is_alive():  # in no pool of threads: whatever hangs there, a lease is given back
            await asyncio.sleep(POLL_S)

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
        finally:
            self._loop.close()
