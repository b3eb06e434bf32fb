"""A broker's maintenance of its log: commits, and ticks that flush, let the journal go, make room, and write cursors.

It decides nothing about safety: a tick that fails or comes late costs space and freshness, never a message.
"""

import asyncio
import logging

from seaweedq.broker.context import Context
from seaweedq.broker.log.flusher import FlushLimits, Log, TailFacts, due, pinning
from seaweedq.broker.log.memory_budget import UnusedMemory
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.subscriptions.dispatcher import Dispatcher
from seaweedq.checks import reach
from seaweedq.concurrency.deadline import sleep_unless
from seaweedq.coordination.records import FlushPolicy
from seaweedq.coordination.versioned import UNREADABLE_RECORDS
from seaweedq.errors import SeaweedqError

TICK_S = 0.2
LEAST_CHECKPOINT_S = 1.0  # between two checkpoints, also while acks keep the journal over its bound
logger = logging.getLogger(__name__)


class Maintenance(Service):
    """Commits, flushes, releases and checkpoints."""

    def __init__(self, context: Context, log: Log, dispatcher: Dispatcher) -> None:
        self._settings = context.settings
        self._clock = context.clock
        self._coordination = context.coordination
        self._catalog = context.catalog
        self._budget = context.budget
        self._dispatcher = dispatcher
        self._log = log
        self._released = 0
        self._unused = UnusedMemory(context.budget, context.clock)
        self._flushes: set[asyncio.Task[None]] = set()
        self._needs_checkpoint = asyncio.Event()

    async def run(self) -> Tasks:
        """Begins commits, flushes, releases and checkpoints."""
        return {
            "group commit": self._log.commit.run(),
            "ticks": self._tick_often(),
            "checkpoints": self._checkpoint_often(),
            "unreadable records": UNREADABLE_RECORDS.refresh_often(self._coordination),
        }

    async def put_away(self) -> bool:
        """Brings everything into files and cursors: 1. nothing more is taken, 2. the commits under way end, 3. all is
        flushed, and the cursors are written. Returns whether the journal is of no use any more."""
        log, dispatcher = self._log, self._dispatcher
        log.commit.close()
        await log.commit.wait_until_idle()
        flushes = [log.flusher.flush(segment) for segment in log.dirty]
        for outcome in await asyncio.gather(*flushes, dispatcher.checkpoint(), return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.error("a flush or checkpoint during shutdown failed: %s", outcome)
        return not any(segment.pin is not None for segment in log.dirty) and dispatcher.pin is None

    async def stop(self) -> None:
        """Ends the flushes under way."""
        await self._log.flusher.stop()

    async def _tick_often(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._flush_due()
                self._release()
                if self._budget.over:
                    self._log.cache.shrink()
                if self._unused.is_due():
                    await self._unused.give_back()
            except Exception:
                logger.exception("a round of maintenance failed; continuing")

    async def _checkpoint_often(self) -> None:
        while True:
            await asyncio.sleep(LEAST_CHECKPOINT_S)
            await sleep_unless(self._needs_checkpoint, asyncio.sleep, self._settings.checkpoint_s - LEAST_CHECKPOINT_S)
            self._needs_checkpoint.clear()
            try:
                await self._dispatcher.checkpoint()
            except SeaweedqError as error:
                logger.warning("cannot write subscription cursors to coordination (%s); retrying", error)
            except Exception:
                logger.exception("cannot write subscription cursors to coordination; retrying")

    def _flush_due(self) -> None:
        """Begins the flushes that are due."""
        journal, dirty = self._log.journal, self._log.dirty
        dirty.prune()
        facts = {
            s: TailFacts(s.tail.size_bytes, s.tail.oldest().at_s, s.tail.oldest().commit, self._limits(s))
            for s in dirty
            if s.tail and not s.closed
        }
        chosen = due(facts, self._clock.monotonic_s(), self._budget.excess, self._unreleased_excess)
        if most := journal.most_unreleased:
            chosen += [s for s in pinning(facts, self._log.commit.committed - most) if s not in chosen]
        chosen += [s for s in dirty if s.empty_entry and not s.closed and s not in chosen]
        for segment in chosen:
            if not self._log.flusher.is_flushing(segment):
                task = asyncio.create_task(self._flush(segment))
                self._flushes.add(task)
                task.add_done_callback(self._flushes.discard)

    async def _flush(self, segment: OpenSegment) -> None:
        try:
            await self._log.flusher.flush(segment)
            self._release()  # a mirrored journal has it in memory
        except SeaweedqError as error:
            logger.warning("cannot flush segment %d of topic %s: %s", segment.id, segment.topic, error)
        except Exception:
            logger.exception("cannot flush segment %d of topic %s", segment.id, segment.topic)

    def _limits(self, segment: OpenSegment) -> FlushLimits:
        """Returns the flush policy of a segment's topic, defaults filled in."""
        topic, settings = self._catalog.get(segment.topic), self._settings
        policy = topic.record.config.flush if topic else FlushPolicy()
        return FlushLimits(
            max_bytes=policy.max_bytes or settings.flush_max_bytes,
            min_bytes=settings.flush_min_bytes if policy.min_bytes is None else policy.min_bytes,
            max_age_s=policy.max_age_s or settings.flush_max_age_s,
            patient=policy.max_age_s is None and "flush_max_age_s" not in settings.model_fields_set,
        )

    def _release(self) -> None:
        """Lets the journal forget commits that are in files and in coordination. A checkpoint is due if acks alone keep
        the journal over its bounds."""
        pins = [self._log.commit.committed + 1]  # later commits may have acks that are not counted yet
        pins += [segment.pin for segment in self._log.dirty if segment.pin is not None]
        oldest, of_acks = min(pins), self._dispatcher.pin
        below = oldest if of_acks is None else min(oldest, of_acks)
        if below > self._released:
            self._released = below
            reach("journal.release")
            self._log.journal.release(below)
        most = self._log.journal.most_unreleased or self._log.commit.committed
        if below < oldest and (self._unreleased_excess > 0 or below < self._log.commit.committed - most):
            self._needs_checkpoint.set()

    @property
    def _unreleased_excess(self) -> int:
        """Returns how many bytes the journal is over its bound, at which flushes and checkpoints begin; publishes go
        on."""
        return self._log.journal.unreleased_bytes - self._settings.journal_max_unreleased_bytes
