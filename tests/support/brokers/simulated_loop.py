"""An event loop on simulated time: it never waits, but moves its clock on to the next thing that is due."""

import asyncio
import selectors
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
    """Also a `Clock`."""

    def __init__(self) -> None:
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
            self.call_soon(_settle, done, func(*args), None)
        except Exception as error:
            self.call_soon(_settle, done, None, error)
        return done


def _settle(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
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
        return runner.run(work)
