"""How threads run the effects of steps that wait (pauses, blocking calls, chunks of a body, parallel steps), and how
they stop.

A thread is stopped between two effects, and between two chunks of a body.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Optional

from seaweedq.client.core.effects import Steps, Together
from seaweedq.client.files import Slice

_POLL_S = 0.05


class Stopped(Exception):
    """The work was cancelled."""


class Stop:
    """A flag that any thread may set once. The flag is also considered set if its `parent` is set."""

    def __init__(self, parent: Optional["Stop"] = None) -> None:
        self._parent, self._set = parent, threading.Event()

    def set(self) -> None:
        """Asks the work to stop."""
        self._set.set()

    def is_set(self) -> bool:
        """Tells whether to stop."""
        return self._set.is_set() or (self._parent is not None and self._parent.is_set())

    def check(self) -> None:
        """Raises Stopped if the flag is set."""
        if self.is_set():
            raise Stopped("stopped")

    def pause(self, seconds: float) -> None:
        """Sleeps for the given time, or until the flag is set."""
        end_s = time.monotonic() + seconds
        if self is NEVER:
            time.sleep(seconds)
        while not self.is_set() and (left_s := end_s - time.monotonic()) > 0:
            self._set.wait(min(left_s, _POLL_S))

    def run_blocking(self, run: Callable[[], Any]) -> Any:
        """Makes a blocking call, here."""
        return run()

    def chunks(self, body: Slice) -> Iterator[bytes]:
        """Yields the chunks of a body. Raises Stopped."""
        for chunk in body.chunks():
            self.check()
            yield chunk

    def together(self, run: Callable[[Steps[None], "Stop"], None], effect: Together) -> None:
        """Runs steps concurrently, in this thread and others. The first error stops the other steps."""
        todo, lock, inner = iter(effect.steps), threading.Lock(), Stop(self)
        errors: list[BaseException] = []

        def run_next() -> None:
            try:
                while not inner.is_set():
                    with lock:
                        steps = next(todo, None)
                    if steps is None:
                        return
                    run(steps, inner)
            except BaseException as error:
                errors.append(error)
                inner.set()

        threads = [threading.Thread(target=run_next, name="together", daemon=True) for _ in range(effect.most - 1)]
        started = []
        for thread in threads:
            with suppress(RuntimeError):  # no thread can start while the program exits: then the caller does it all
                thread.start()
                started.append(thread)
        try:
            run_next()
            for thread in started:
                thread.join()
        except BaseException:
            inner.set()
            for thread in started:
                thread.join()
            raise
        if errors:
            raise errors[0]
        self.check()


NEVER = Stop()
