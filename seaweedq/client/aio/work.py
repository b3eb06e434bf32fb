"""A bounded pool of tasks that handle the messages of a subscription.

One task pulls, one extends leases, the acker's sends the acks. At the end no more is begun, what is not begun is given
back, and what runs is finished; a cancellation cancels what runs, too, and gives that back as well.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from seaweedq.client.aio.subscriber import AsyncAcker
from seaweedq.client.core.calls import MAX_WAIT_S
from seaweedq.client.core.effects import Steps
from seaweedq.client.core.held_messages import (
    Job,
    Worked,
    failure_of,
    failure_text,
    held_messages,
    ids_by_lease,
    is_reject,
    without_reject,
)
from seaweedq.client.core.message import Answer, AsyncMessage, Item, Make, Origin, extension_of, nack_of, return_of
from seaweedq.client.core.pulling import Pulling
from seaweedq.errors import BadRequest, NoDeadLetters, SeaweedqError

logger = logging.getLogger(__name__)


class AsyncWork:
    """One call of `AsyncClient.work`."""

    def __init__(
        self,
        pulling: Pulling,
        handler: Callable[[AsyncMessage], object],
        message: Make[AsyncMessage],
        run: Callable[[Steps[Any]], Coroutine[Any, Any, Any]],
        workers: int,
        max_extension_s: float,
    ) -> None:
        self._pulling, self._handler, self._message, self._run = pulling, handler, message, run
        self._workers = workers
        self._acker = AsyncAcker(lambda items: run(pulling.answer(items)))
        self._monotonic_s = pulling.patience.monotonic_s
        self._shown: dict[str, Any] = {}
        self._held = held_messages({}, pulling.wanted, max_extension_s)
        self._max_extension_s = max_extension_s
        self._is_ending = False
        self._error: BaseException | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        self._room, self._finished = asyncio.Event(), asyncio.Event()
        self._puller: asyncio.Task[None] | None = None
        self._worked = Worked()

    async def run(self) -> Worked:
        """Handles messages until no message has arrived for `idle_timeout_s`, or until `stop` is called."""
        try:
            self._shown = await self._run(self._pulling.shown())
            self._held = held_messages(self._shown, self._pulling.wanted, self._max_extension_s)
            await self._pull_and_handle()
            if self._error:
                raise self._error
        finally:
            self._finished.set()
        self._worked.unknown = self._pulling.late.total
        return self._worked

    def stop(self) -> None:
        """Stops the work: running handlers finish, and no other handler starts."""
        self._is_ending = True
        if self._puller is not None:
            self._puller.cancel()

    async def wait(self) -> None:
        """Waits until the work has ended, unless called from one of its own tasks."""
        if asyncio.current_task() not in self._running:
            await self._finished.wait()

    async def _pull_and_handle(self) -> None:
        puller = self._puller = asyncio.create_task(self._pull_all(), name="pull")
        extender = asyncio.create_task(self._extend(), name="extend")
        if self._is_ending:
            puller.cancel()
        try:
            await asyncio.wait([puller])
            self._is_ending = True
            await self._give_back(self._held.clear())
            while self._running:
                await asyncio.wait(self._running)
        finally:
            self._is_ending = True
            tasks = [puller, extender, *self._running, *self._returning]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._give_back(self._held.clear())
            await self._run(self._pulling.give_back_pull())
            try:
                await self._acker.flush()  # also after an error: a client that is closed next sends nothing more
            except SeaweedqError as error:
                self._error = self._error or error
        if not puller.cancelled():
            puller.result()

    async def _pull_all(self) -> None:
        wanted, idle_s = self._pulling.wanted, 0.0
        limit_s = wanted.idle_timeout_s
        while not self._is_ending:
            wait_s = self._held.wait_s(MAX_WAIT_S, limit_s, idle_s)
            was_empty = self._held.is_empty  # else what is handled may come again
            self._held.begin_pull()
            is_settled = self._acker.is_idle()  # else what is behind those acks may be held up by them
            pulled = await self._run(self._pulling.pull_once(wanted.max_messages - self._held.waiting, wait_s))
            stale = self._held.add(pulled, self._monotonic_s())
            is_idle = was_empty and not pulled.items and self._held.is_empty
            self._begin_jobs()
            await self._give_back(stale)
            self._acker.hurry()
            idle_s = idle_s + wait_s if is_idle else 0.0
            if is_idle and limit_s is not None and idle_s >= limit_s:
                if is_settled:
                    return
                await self._acker.flush()  # and the next pull waits no more
            await self._until_room(wanted.max_messages // 2)

    async def _until_room(self, half: int) -> None:
        """Waits until at most half of what may wait does, and makes room if a slow lane leaves workers with nothing
        to do."""
        while self._held.waiting > half and not self._is_ending:
            self._room.clear()
            is_crowded = self._held.is_crowded(self._workers)
            if not is_crowded or self._held.pause_s:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), self._held.pause_s if is_crowded else None)
            if self._held.waiting > half and self._held.is_crowded(self._workers):
                await self._return(self._held.make_room(half))

    async def _return(self, jobs: list[Job]) -> None:
        """Gives back what nobody has begun, and insists: what is behind it must not overtake it."""
        if jobs:
            await self._run(self._pulling.answer([return_of(job.wire.id, job.lease) for job in jobs]))
        self._held.returned(jobs)

    def _begin_jobs(self) -> None:
        while not self._is_ending and len(self._running) < self._workers:
            job = self._held.next(self._monotonic_s())
            if job is None:
                break
            task = asyncio.create_task(self._work(job), name=f"work on {job.wire.id}")
            self._running.add(task)
            task.add_done_callback(self._end_job)
        if lost := self._held.pop_lost():
            task = asyncio.create_task(self._return_lost(lost), name="return what was lost")
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)
        self._room.set()

    async def _return_lost(self, lost: list[Job]) -> None:
        try:
            await self._return(lost)
        except Exception as error:
            self._fail(error)

    def _end_job(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._fail(error)
        self._begin_jobs()

    async def _give_back(self, jobs: list[Job]) -> None:
        for lease, ids in ids_by_lease(jobs):
            await self._run(self._pulling.give_back(lease, ids))

    async def _work(self, job: Job) -> None:
        try:
            with self._pulling.processing(job.wire):
                done = self._handler(self._message(job.wire, Origin(partial(self._on_answer, job), job.lease)))
                if inspect.isawaitable(done):
                    await done
            verdict = job.verdict
        except Exception as error:
            verdict = failure_of(job, error)
            if not is_reject(verdict):
                logger.warning("%s", failure_text(job, self._pulling, self._shown), exc_info=True)
        except asyncio.CancelledError:
            await self._finish(job, nack_of(job.wire.id, job.lease, 0))
            raise
        await self._finish(job, verdict)

    def _on_answer(self, job: Job, item: Item) -> None:
        """Takes what a handler says itself of its message: a nack counts once it returns."""
        if isinstance(item, Answer) and item.verb == "nack":
            job.verdict = item
        elif isinstance(item, Answer):
            self._acker.answer(item)

    async def _finish(self, job: Job, verdict: Answer | None) -> None:
        if verdict is None:
            self._acker.answer(job.wire.id)
            self._worked.acked += 1
            self._held.finish(job)
            return
        is_rejected = False
        try:
            is_rejected = is_reject(verdict) and await self._reject(verdict)
            if not is_rejected:
                await self._nack(job, verdict)
        finally:
            self._worked.rejected += is_rejected
            self._worked.failed += not is_rejected
            self._held.finish(job)

    async def _reject(self, verdict: Answer) -> bool:
        """Rejects a message; returns False if that cannot be, or if its lease has ended."""
        try:
            answered = await self._run(self._pulling.answer([verdict]))
            return not answered.unknown
        except NoDeadLetters as error:
            logger.error("message %s will be redelivered: %s", verdict.id, error)
        return False

    async def _nack(self, job: Job, verdict: Answer) -> None:
        """Nacks a message, which comes again, with what is behind it; on its last attempt that alone does."""
        dropped = self._held.fail(job)
        await self._run(self._pulling.answer([without_reject(verdict)]))
        await self._give_back(dropped)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._held.ack_deadline_s / 3)
            sent_s = self._monotonic_s()
            jobs = self._held.to_extend(sent_s)
            if not jobs:
                continue
            try:
                answered = await self._run(
                    self._pulling.answer([extension_of(job.wire.id, None, None) for job in jobs])
                )
            except BadRequest as error:
                logger.warning("cannot extend leases: %s", error)
                return
            except SeaweedqError as error:
                logger.warning("leases could not be extended (%s); trying again soon", error)
                continue
            self._held.record_extension(jobs, set(answered.unknown), sent_s)
