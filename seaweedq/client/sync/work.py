"""A bounded pool of threads that handle the messages of a subscription.

The caller's thread pulls, the pool's threads handle, one thread extends leases, the acker's sends the acks. At the end,
whatever the reason, no more is begun, what is not begun is given back, and what runs is finished; a second interrupt
leaves what runs to the ends of its leases.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from seaweedq.client.core.held_messages import (
    WAIT_S,
    Job,
    Worked,
    failure_of,
    failure_text,
    held_messages,
    ids_by_lease,
    is_reject,
    without_reject,
)
from seaweedq.client.core.message import Answer, Item, Make, Message, Origin, extension_of, return_of
from seaweedq.client.core.pulling import Pulling
from seaweedq.client.sync.subscriber import Acker, Run
from seaweedq.errors import BadRequest, NoDeadLetters, SeaweedqError

logger = logging.getLogger(__name__)


class Work:
    """One call of `Client.work`."""

    def __init__(
        self,
        pulling: Pulling,
        handler: Callable[[Message], object],
        message: Make[Message],
        run: Run,
        workers: int,
        max_extension_s: float,
    ) -> None:
        self._pulling, self._handler, self._message, self._run = pulling, handler, message, run
        self._workers = workers
        self._acker = Acker(lambda items: run(pulling.answer(items)))
        self._monotonic_s = pulling.patience.monotonic_s
        self._shown: dict[str, Any] = {}
        self._held = held_messages({}, pulling.wanted, max_extension_s)
        self._max_extension_s = max_extension_s
        self._changed = threading.Condition()
        self._is_ending = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._over, self._finished = threading.Event(), threading.Event()
        self._worked = Worked()

    def run(self) -> Worked:
        """Handles messages until no message has arrived for `idle_timeout_s`, or until `stop` is called."""
        try:
            self._shown = self._run(self._pulling.shown())
            self._held = held_messages(self._shown, self._pulling.wanted, self._max_extension_s)
            self._begin()
            try:
                self._pull_all()
            finally:
                self._end()
            if self._error:
                raise self._error
        finally:
            self._over.set()
            self._finished.set()
        self._worked.unknown = self._pulling.late.total
        return self._worked

    def stop(self) -> None:
        """Stops the work: running handlers finish, and no other handler starts."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until the work has ended, unless called from one of its own threads."""
        if threading.current_thread() not in self._threads:
            self._finished.wait()

    def _begin(self) -> None:
        self._threads = [threading.Thread(target=self._work, name=f"worker-{n}") for n in range(self._workers)]
        for thread in (*self._threads, threading.Thread(target=self._extend, name="extender")):
            thread.daemon = True
            thread.start()

    def _pull_all(self) -> None:
        wanted, idle_s = self._pulling.wanted, 0.0
        limit_s = wanted.idle_timeout_s
        while self._has_room():
            with self._changed:
                wait_s = self._held.wait_s(WAIT_S, limit_s, idle_s)
                most = wanted.max_messages - self._held.waiting
                was_empty = self._held.is_empty  # else what is handled may come again
                self._held.begin_pull()
            is_settled = self._acker.is_idle()  # else what is behind those acks may be held up by them
            pulled = self._run(self._pulling.pull_once(most, wait_s))
            with self._changed:
                stale = self._held.add(pulled, self._monotonic_s())
                is_idle = was_empty and not pulled.items and self._held.is_empty
                self._changed.notify_all()
            self._give_back(stale)
            self._acker.hurry()
            idle_s = idle_s + wait_s if is_idle else 0.0
            if is_idle and limit_s is not None and idle_s >= limit_s:
                if is_settled:
                    return
                self._acker.flush()  # and the next pull waits no more

    def _has_room(self) -> bool:
        """Waits until at most half of what may wait does, and makes room if a slow lane leaves workers with nothing
        to do; returns False at the end."""
        half = self._pulling.wanted.max_messages // 2

        def has_room() -> bool:
            return self._is_ending or self._held.waiting <= half

        def is_crowded() -> bool:
            return self._held.is_crowded(self._workers)

        while True:
            with self._changed:
                self._changed.wait_for(lambda: has_room() or is_crowded())
                if has_room() or self._changed.wait_for(has_room, self._held.pause_s):
                    return not self._is_ending
                crowd = self._held.make_room(half) if is_crowded() else []
            self._return(crowd)

    def _end(self) -> None:
        with self._changed:
            self._is_ending = True
            rest = self._held.clear()
            self._changed.notify_all()
        self._give_back(rest)
        self._run(self._pulling.give_back_pull())
        for thread in self._threads:
            thread.join()
        try:
            self._acker.flush()  # also after an error: a client that is closed next sends nothing more
        except SeaweedqError as error:
            self._fail(error)

    def _give_back(self, jobs: list[Job]) -> None:
        for lease, ids in ids_by_lease(jobs):
            self._run(self._pulling.give_back(lease, ids))

    def _return(self, jobs: list[Job]) -> None:
        """Gives back what nobody has begun, and insists: what is behind it must not overtake it."""
        if jobs:
            self._run(self._pulling.answer([return_of(job.wire.id, job.lease) for job in jobs]))
        with self._changed:
            self._held.returned(jobs)

    def _work(self) -> None:
        while job := self._next():
            try:
                with self._pulling.processing(job.wire):
                    self._handler(self._message(job.wire, Origin(partial(self._on_answer, job), job.lease)))
                verdict = job.verdict
            except Exception as error:
                verdict = failure_of(job, error)
                if not is_reject(verdict):
                    logger.warning("%s", failure_text(job, self._pulling, self._shown), exc_info=True)
            except BaseException as error:
                verdict = failure_of(job, error)
                self._fail(error)
            self._finish(job, verdict)

    def _next(self) -> Job | None:
        while True:
            with self._changed:
                job = None if self._is_ending else self._held.next(self._monotonic_s())
                lost = self._held.pop_lost()
                if job or lost:
                    self._changed.notify_all()  # there may be room for a pull
                elif self._is_ending:
                    return None
                else:
                    self._changed.wait()
            if lost:
                self._return_lost(lost)
            if job:
                return job

    def _return_lost(self, lost: list[Job]) -> None:
        try:
            self._return(lost)
        except Exception as error:
            self._fail(error)

    def _on_answer(self, job: Job, item: Item) -> None:
        """Takes what a handler says itself of its message: a nack counts once it returns."""
        if isinstance(item, Answer) and item.verb == "nack":
            job.verdict = item
        elif isinstance(item, Answer):
            self._acker.answer(item)

    def _finish(self, job: Job, verdict: Answer | None) -> None:
        if verdict is None:
            self._acker.answer(job.wire.id)
            with self._changed:
                self._worked.acked += 1
                self._held.finish(job)
                self._changed.notify_all()
            return
        is_rejected = False
        try:
            is_rejected = is_reject(verdict) and self._reject(verdict)
            if not is_rejected:
                self._nack(job, verdict)
        except Exception as error:
            self._fail(error)
        with self._changed:
            self._worked.rejected += is_rejected
            self._worked.failed += not is_rejected
            self._held.finish(job)
            self._changed.notify_all()

    def _reject(self, verdict: Answer) -> bool:
        """Rejects a message; returns False if that cannot be, or if its lease has ended."""
        try:
            return not self._run(self._pulling.answer([verdict])).unknown
        except NoDeadLetters as error:
            logger.error("message %s will be redelivered: %s", verdict.id, error)
        return False

    def _nack(self, job: Job, verdict: Answer) -> None:
        """Nacks a message, which comes again, with what is behind it; on its last attempt that alone does."""
        with self._changed:
            dropped = self._held.fail(job)
        self._run(self._pulling.answer([without_reject(verdict)]))
        self._give_back(dropped)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._is_ending = True
            self._changed.notify_all()

    def _extend(self) -> None:
        while not self._over.wait(self._held.ack_deadline_s / 3):
            with self._changed:
                sent_s = self._monotonic_s()
                jobs = self._held.to_extend(sent_s)
            if not jobs:
                continue
            try:
                answered = self._run(self._pulling.answer([extension_of(job.wire.id, None, None) for job in jobs]))
            except BadRequest as error:
                logger.warning("cannot extend leases: %s", error)
                return
            except SeaweedqError as error:
                logger.warning("leases could not be extended (%s); trying again soon", error)
                continue
            with self._changed:
                self._held.record_extension(jobs, set(answered.unknown), sent_s)
