"""Pools of threads, one for each purpose and each bounded, so that a call that hangs in one does not hold up another.

A read of a black hole may last for ever, and no thread can be cancelled. So reads of the store, its writes, and
payloads have threads of their own; coordination and journals have theirs where they are made. The loop's default pool
(`asyncio.to_thread`) is `compute`: calls there only compute, and always end.

An error leaves its thread without the variables of its frames, so that a call holds no memory once it has ended.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from seaweedq.concurrency.futures import empty_frames

T = TypeVar("T")
READS, WRITES, PAYLOADS = 8, 8, 2


class Pool(ThreadPoolExecutor):
    """At most `threads` threads for one purpose. `unfinished` counts the calls that wait or run."""

    def __init__(self, purpose: str, threads: int) -> None:
        super().__init__(threads, thread_name_prefix=purpose)
        self.purpose = purpose
        self.threads = threads
        self.unfinished = 0
        self._counting = threading.Lock()

    @property
    def waiting(self) -> int:
        """The calls that wait for a thread."""
        return max(0, self.unfinished - self.threads)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Calls `work` in a thread, in the caller's context, and returns its result."""
        call = partial(contextvars.copy_context().run, work, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self, call)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As Executor, and counts the call."""
        future = super().submit(_call, fn, args, kwargs)
        with self._counting:
            self.unfinished += 1
        future.add_done_callback(self._ended)
        return future

    def close(self) -> None:
        """Takes no more calls, and drops those that wait. Does not wait for those that run."""
        self.shutdown(wait=False, cancel_futures=True)

    def _ended(self, future: Future[Any]) -> None:
        with self._counting:
            self.unfinished -= 1


def _call(work: Callable[..., T], arguments: tuple[Any, ...], named: dict[str, Any]) -> T:
    """Calls `work`; an error brings nothing of its frames, nor of this one."""
    try:
        return work(*arguments, **named)
    except BaseException as error:
        empty_frames(error)
        del work, arguments, named
        raise


class Pools:
    """The pools of one life of a broker."""

    def __init__(self) -> None:
        self.reads = Pool("store reads", READS)
        self.writes = Pool("store writes", WRITES)
        self.payloads = Pool("payloads", PAYLOADS)
        self.compute = Pool("compute", (os.cpu_count() or 1) + 4)
        self.all = [self.reads, self.writes, self.payloads, self.compute]

    def add(self, pool: Pool) -> None:
        """Adds a pool that was made elsewhere."""
        self.all.append(pool)

    def close(self) -> None:
        """Closes all."""
        for pool in self.all:
            pool.close()

    def hanging(self) -> list[str]:
        """Returns the pools that still work, with the number of calls in each."""
        return [f"{pool.unfinished} in {pool.purpose}" for pool in self.all if pool.unfinished]
