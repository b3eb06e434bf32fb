"""Ends the coroutines of a dead process without another step, so that its memory comes back during a run.

A coroutine that is dropped runs its `finally` clauses, and a process that was killed runs none. So each coroutine and
generator of the dead is marked as completed first, in CPython's own structure: the interpreter then only drops the
variables of its frame. An interpreter whose structure is another one keeps the dead to the end of the run.
"""

import asyncio
import ctypes
import gc
from collections import deque
from collections.abc import Iterable
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any

HELD = (CoroutineType, GeneratorType, AsyncGeneratorType)
COMPLETED, CLEARED = 1, 4  # states of a frame; those below 0 have steps to come
WAYS = {"async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper", "FutureIter"}
PASSED = (MethodType, tuple, deque, _GeneratorContextManager, _AsyncGeneratorContextManager)


def _state_at() -> int | None:
    """Where in a coroutine its state is."""

    async def nothing() -> None:
        pass

    one, size = nothing(), CoroutineType.__basicsize__
    before = ctypes.string_at(id(one), size)
    try:
        one.send(None)
    except StopIteration:
        pass
    after = ctypes.string_at(id(one), size)
    found = [at for at in range(size) if before[at] > 0xF0 and after[at] == CLEARED]
    return found[0] if len(found) == 1 else None


STATE_AT = _state_at()


def bury(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Ends tasks, none of which is in a step: they can be dropped then."""
    assert STATE_AT is not None
    left: list[Any] = []
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        if task.done() and not task.cancelled():
            task.exception()  # whoever was to see it is dead
        left.append(task.get_coro())
    seen = set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, HELD):
            state = ctypes.c_int8.from_address(id(one) + STATE_AT)
            if state.value < 0:
                state.value = COMPLETED
        elif isinstance(one, asyncio.Future) and not isinstance(one, asyncio.Task):
            if one.done() and not one.cancelled():
                one.exception()  # as that of a gather that was cancelled in the moment of the death
            continue
        elif not isinstance(one, PASSED) and type(one).__name__ not in WAYS:
            continue
        left += gc.get_referents(one)
