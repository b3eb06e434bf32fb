"""The upload threads of a sync producer: a few at a time, started in the order of the messages."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from seaweedq.client.core.producing.offload import Sent
from seaweedq.client.core.producing.streams import Placeholder
from seaweedq.client.core.protocol.effects import Steps
from seaweedq.client.sync.stop import Stop, Stopped

# A producer uploads so many at a time; each may have several parts in flight.
MOST_UPLOADS = 4
_LEAVE_S = 2.0


class Uploads:
    """Runs uploads; the thread of each one calls `done` with its result."""

    def __init__(self, run: Callable[..., Any], done: Callable[[Placeholder[Any], Sent | Exception], None]) -> None:
        self._run, self._done = run, done
        self._lock = threading.Lock()
        self._todo: deque[tuple[Placeholder[Any], Steps[Sent]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._stop = Stop()

    def add(self, held: Placeholder[Any], steps: Steps[Sent]) -> None:
        """Adds an upload; it begins when its turn comes."""
        with self._lock:
            self._todo.append((held, steps))
            if len(self._threads) < MOST_UPLOADS:
                thread = threading.Thread(target=self._upload_all, name="uploads", daemon=True)
                self._threads.add(thread)
                thread.start()

    def leave(self) -> None:
        """Stops all uploads, and allows a moment to abort them at the brokers."""
        self._stop.set()
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(_LEAVE_S / len(threads))

    def _upload_all(self) -> None:
        while job := self._next():
            held, steps = job
            sent: Sent | Exception
            try:
                self._stop.check()
                sent = self._run(steps, self._stop)
            except Stopped:
                sent = Stopped("the upload was interrupted")
            except Exception as error:  # the thread must live on; whoever sends learns of it
                sent = error
            self._done(held, sent)

    def _next(self) -> tuple[Placeholder[Any], Steps[Sent]] | None:
        with self._lock:
            if self._todo:
                return self._todo.popleft()
            self._threads.discard(threading.current_thread())
            return None
