"""An event loop on simulated time: it never waits, but moves its clock on to the next thing that is due.

So nothing may come from another thread: how far the clock has moved by then is up to the machine, and not to the seed.
"""

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from seaweedq.concurrency.futures import fail, resolve

T = TypeVar("T")
BEGAN_US = 1_700_000_000_000_000


class _Selector(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits, and nothing is due"
            self.now_s += max(0.0, timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Also a `Clock`. `strangers` are the threads that something came from."""

    def __init__(self) -> None:
        self.strangers: set[str] = set()
        self._thread = threading.current_thread()
        self._hands = _Selector()
        super().__init__(self._hands)

    def time(self) -> float:
        return self._hands.now_s

    def now_us(self) -> int:
        return BEGAN_US + int(self.time() * 1e6)

    def monotonic_s(self) -> float:
        return self.time()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Runs the function at once, in this thread; its future ends in a later turn, as with a thread."""
        done = self.create_future()
        try:
            self.call_soon(settle, done, func(*args), None)
        except Exception as error:
            self.call_soon(settle, done, None, error)
        return done

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        if (thread := threading.current_thread()) is not self._thread:
            self.strangers.add(thread.name)
        return super().call_soon_threadsafe(callback, *args, context=context)


def settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    """Ends the future of a call that was run."""
    if error:
        fail(done, error)
    else:
        resolve(done, result)


def clock() -> SimulatedLoop:
    """The loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


def simulate(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        result = runner.run(work)
        loop = runner.get_loop()
        assert isinstance(loop, SimulatedLoop)
        assert not loop.strangers, f"threads took part: {loop.strangers}"
        return result
