"""An event loop on simulated time: it never waits, but moves its clock on to the next thing that is due."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
        return int(self.time() * 1e6)

    def monotonic_s(self) -> float:
        return self.time()


def clock() -> SimulatedLoop:
    """The loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


def simulate(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)
