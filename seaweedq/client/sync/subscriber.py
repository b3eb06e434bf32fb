"""The sync subscriber: an iterator that pulls, and a thread that sends the acks."""

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from seaweedq.client.core.effects import Steps
from seaweedq.client.core.message import Make, Message
from seaweedq.client.core.pulling import ACK_BATCH, ACK_LINGER_S, Pulling

# So long the thread waits for more acks before it ends; the next ack starts another.
_IDLE_S = 1.0


class Acker:
    """Collects acks and sends them together, in the background: at ACK_BATCH, after ACK_LINGER_S, when hurried."""

    def __init__(self, send: Callable[[list[str]], object]) -> None:
        self._send = send
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._pending: list[str] = []
        self._added = self._settled = 0
        self._hurried = False
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def ack(self, id: str) -> None:
        """Adds an ack."""
        self._check_process()
        with self._changed:
            self._pending.append(id)
            self._added += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, name="acker", daemon=True)
                self._thread.start()
            elif len(self._pending) in (1, ACK_BATCH):
                self._changed.notify_all()

    def hurry(self) -> None:
        """Sends the waiting acks at once; raises the error of an earlier ack."""
        self._check_process()
        with self._changed:
            if self._pending:
                self._hurried = True
                self._changed.notify_all()
            self._raise_error()

    def flush(self) -> None:
        """Returns once all acks so far are durable; raises the error of one that failed."""
        self._check_process()
        with self._changed:
            self._hurried = bool(self._pending)
            self._changed.notify_all()
            added = self._added
            self._changed.wait_for(lambda: self._settled >= added)
            self._raise_error()

    def _check_process(self) -> None:
        """Begins anew in a forked process: the thread, and the acks that it is to send, are the parent's."""
        if self._process != os.getpid():
            self._begin()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error

    def _send_all(self) -> None:
        while ids := self._take():
            error: Exception | None = None
            try:
                self._send(ids)
            except Exception as failed:  # whoever iterates learns of it
                error = failed
            with self._changed:
                self._error = self._error or error
                self._settled += len(ids)
                self._changed.notify_all()

    def _take(self) -> list[str]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._pending, _IDLE_S):
                self._thread = None
                return []
            self._changed.wait_for(lambda: self._hurried or len(self._pending) >= ACK_BATCH, ACK_LINGER_S)
            ids, self._pending, self._hurried = self._pending, [], False
            return ids


def messages(
    pulling: Pulling, run: Callable[[Steps[Any]], Any], acker: Acker, message: Make[Message]
) -> Iterator[Message]:
    """Yields the messages of a subscription; ending it sends the acks and waits for them."""
    try:
        while (wires := run(pulling.pull())) is not None:
            for wire in wires:
                yield message(wire, acker.ack)
            acker.hurry()
    finally:
        acker.flush()
