"""The sync subscriber: an iterator that pulls, and a thread that sends the answers."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from seaweedq.client.core.effects import Steps
from seaweedq.client.core.message import Item, Origin
from seaweedq.client.core.pulling import ACK_BATCH, ACK_LINGER_S, Pulling, PullResult, ids_of

T = TypeVar("T")
Run = Callable[[Steps[Any]], Any]

# So long the thread waits for more before it ends; the next answer starts another.
_IDLE_S = 1.0


class Acker:
    """Collects acks and other answers to messages, and sends them in batches in the background: when ACK_BATCH answers
    are waiting, after ACK_LINGER_S seconds, or when asked to hurry."""

    def __init__(self, send: Callable[[list[Item]], object]) -> None:
        self._send = send
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._pending: list[Item] = []
        self._added = self._answered = 0
        self._hurried = False
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def answer(self, item: Item) -> None:
        """Adds an answer."""
        self._check_process()
        with self._changed:
            self._pending.append(item)
            self._added += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_all, name="acker", daemon=True)
                self._thread.start()
            elif len(self._pending) in (1, ACK_BATCH):
                self._changed.notify_all()

    def hurry(self) -> None:
        """Sends the waiting answers immediately. Raises the error of an earlier ack or nack."""
        self._check_process()
        with self._changed:
            if self._pending:
                self._hurried = True
                self._changed.notify_all()
            self._raise_error()

    def flush(self) -> None:
        """Returns once brokers have accepted all acks and nacks so far. Raises the error of a failed ack or nack."""
        self._check_process()
        with self._changed:
            self._hurried = bool(self._pending)
            self._changed.notify_all()
            added = self._added
            self._changed.wait_for(lambda: self._answered >= added)
            self._raise_error()

    def is_idle(self) -> bool:
        """Returns whether every ack and nack so far was accepted or has failed."""
        self._check_process()
        with self._changed:
            return self._answered >= self._added

    def _check_process(self) -> None:
        """Begins anew in a forked process: the thread, and the answers that it is to send, are the parent's."""
        if self._process != os.getpid():
            self._begin()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error

    def _send_all(self) -> None:
        while items := self._next_items():
            error: Exception | None = None
            try:
                self._send(items)
            except Exception as failed:  # the iteration raises it
                error = failed
            with self._changed:
                self._error = self._error or error
                self._answered += len(items)
                self._changed.notify_all()

    def _next_items(self) -> list[Item]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._pending, _IDLE_S):
                self._thread = None
                return []
            self._changed.wait_for(lambda: self._hurried or len(self._pending) >= ACK_BATCH, ACK_LINGER_S)
            items, self._pending, self._hurried = self._pending, [], False
            return items


def deliveries(pulling: Pulling, accept: str, run: Run, acker: Acker, made: Callable[[Any, Origin], T]) -> Iterator[T]:
    """Creates a subscription, and iterates over its messages or batches; `made` converts each item. At the end, sends
    the collected acks and nacks, waits until they are accepted, and gives back the messages that were not yielded."""
    run(pulling.ensure())
    return _deliveries(pulling, accept, run, acker, made)


def _deliveries(pulling: Pulling, accept: str, run: Run, acker: Acker, made: Callable[[Any, Origin], T]) -> Iterator[T]:
    waiting: deque[Any] = deque()
    origin = Origin(acker.answer)
    try:
        while (pulled := _pull(pulling, accept, run, acker)) is not None:
            waiting, origin = deque(pulled.items), Origin(acker.answer, pulled.lease)
            while waiting:
                yield made(waiting.popleft(), origin)
            acker.hurry()
    finally:
        try:
            acker.flush()
        finally:
            run(pulling.give_back(origin.lease, ids_of(waiting)))
            run(pulling.give_back_pull())


def _pull(pulling: Pulling, accept: str, run: Run, acker: Acker) -> PullResult | None:
    """Returns the result of the next pull, or None at the end."""
    is_idle = acker.is_idle()
    pulled: PullResult | None = run(pulling.pull(accept=accept))
    if pulled is None and not is_idle:
        acker.flush()
        pulled = run(pulling.pull_now(accept))
    return pulled
