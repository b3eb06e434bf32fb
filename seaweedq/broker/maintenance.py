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
from seaweedq.coordination.records import FlushPolicy
from seaweedq.coordination.versioned import UNREADABLE_RECORDS
from seaweedq.errors import SeaweedqError

TICK_S = 0.2
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
            await asyncio.sleep(self._settings.checkpoint_s)
            try:
                await self._dispatcher.checkpoint()
            except SeaweedqError as error:
                logger.warning("cannot write subscription cursors to coordination; retrying: %s", error)
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
        unreleased = journal.unreleased_bytes - self._settings.journal_max_unreleased_bytes
        chosen = due(facts, self._clock.monotonic_s(), self._budget.excess, unreleased)
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
        """Lets the journal forget commits that are in files and in coordination."""
        pins = [self._log.commit.committed + 1]  # later commits may have acks that are not counted yet
        pins += [segment.pin for segment in self._log.dirty if segment.pin is not None]
        if self._dispatcher.pin is not None:
            pins.append(self._dispatcher.pin)
        below = min(pins)
        if below > self._released:
            self._released = below
            reach("journal.release")
            self._log.journal.release(below)
