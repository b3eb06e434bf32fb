"""The leader: has the journal of every dead broker recovered, and gives every segment a living owner.

It is level triggered and keeps nothing that it cannot read again: each round looks at the present state and does the
next step. A round costs as much as is wrong, not as much as there is, and waits for coordination alone: work that may
take long goes on beside it (recoveries, and the periodic tasks: broker/cluster/periodic_tasks). Every transaction
compares the leader's key, and the key of each broker that it names an owner; one that takes a segment from a dead
broker also compares that this broker is gone. Before, its journal was recovered, or is being replayed by this leader
and nothing of the segment remains in it (broker/recovery/replay): so the first segments have an owner long before the
last ones. The broker's key and its journal's are read again before, since the views may be behind: they existed before
it owned anything, and never come back.

A journal may be of a later version than the leader, or of a kind that it lacks. Its segments need not wait while a
broker lives that reads it. The leader asks those that read the levels that it reads itself, the highest first, each
once in its life: a broker that cannot read a journal never will. Safety does not rest on the broker that recovers, nor
on their number. If nobody reads it, the journal's record says so (`needs_newer`): a request for the segments is told
that a newer broker is needed. That is a hint, and goes once a broker was found.

Or the leader cannot reach a journal: a mirror of it does not answer. Then it asks others, the mirrors first, at each
try again. If nobody reaches the journal at two tries in a row, the record says since when it is `unknown`: a hint, too.
"""

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from seaweedq import levels
from seaweedq.balancer.placement import SegmentId
from seaweedq.broker.cluster.accepted_loss import AcceptedLoss
from seaweedq.broker.cluster.balancing import Rebalancer
from seaweedq.broker.cluster.periodic_tasks import PeriodicTask
from seaweedq.broker.context import ClusterView
from seaweedq.broker.rebuild import LeaderLook
from seaweedq.broker.recovery.journal_recovery import ANSWER_S, JournalRecovery
from seaweedq.broker.recovery.replay import RemainingSegments
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import RecoverCall
from seaweedq.checks import InvariantViolated, reach
from seaweedq.clock import Clock
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import JournalRecord, SegmentRecord, UnknownJournal
from seaweedq.coordination.roster import Roster, is_replayed
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import Fenced, NeedsNewerBroker, PeerTooOld, SeaweedqError, Unavailable
from seaweedq.journal.interface import JournalUnreachable
from seaweedq.segments.terms import next_term

MARGIN_S = 5.0
logger = logging.getLogger(__name__)
PAGE = 40  # segments in a transaction: twice that, their new owners and four more comparisons stay below 128
GIVES = 4  # transactions at a time: publishes to the first segments would hold up those behind them
ROUND_S = 1.0
FIRST_AGAIN_S, LAST_AGAIN_S = 1.0, 5.0
REACHERS = 8  # brokers that are asked in one try to reach a journal, beside its mirrors; the next try asks others


class Recoveries:
    """Recoveries by this broker `me`, which leads, or by others."""

    def __init__(
        self,
        recovery: JournalRecovery,
        roster: Roster,
        peers: Peers,
        coordination: Coordination,
        me: str,
        clock: Clock,
        losses: AcceptedLoss,
    ) -> None:
        self._losses = losses
        self._clock = clock
        self._recovery = recovery
        self._roster = roster
        self._peers = peers
        self._coordination = coordination
        self._me = me
        self._unable: dict[str, set[str]] = {}  # by broker: those that cannot read its journal
        self._asked: dict[str, str | None] = {}  # by broker: whom this one has asked last
        self._unreached_us: dict[str, int] = {}  # by broker: since when nobody reaches its journal
        self._reachers: dict[str, int] = {}  # by broker: how many were asked to reach its journal

    def is_of_here(self, journal: Versioned[JournalRecord]) -> bool:
        """As JournalRecovery.is_of_here."""
        return self._recovery.is_of_here(journal)

    async def recover(
        self, broker: str, journal: Versioned[JournalRecord] | Unreadable, remaining: RemainingSegments | None = None
    ) -> bool:
        """As JournalRecovery.recover; returns False also if another broker is still at it, or nobody reads or reaches
        it. One whose record this broker cannot read is for others alone."""
        if isinstance(journal, Unreadable):
            return await self._ask_others(broker, None, journal.why)
        if await self._recovery.recover(broker, journal, remaining, self._losses.end_segments):
            return True
        if why := self._recovery.left(broker):
            return await self._ask_others(broker, journal, why)
        if unreached := self._recovery.unreached(broker):
            elsewhere = unreached.silent or journal.record.path  # the folder of another broker's machine
            if elsewhere and await self._ask_to_reach(broker, unreached):
                return True
            await self._note_unknown(broker, journal, unreached)
        return False

    def forget_except(self, journals: Container[str]) -> None:
        """Forgets journals that are not among those that still exist."""
        self._recovery.forget_except(journals)
        self._unable = {broker: unable for broker, unable in self._unable.items() if broker in journals}
        self._asked = {broker: asked for broker, asked in self._asked.items() if broker in journals}
        self._unreached_us = {broker: since for broker, since in self._unreached_us.items() if broker in journals}
        self._reachers = {broker: asked for broker, asked in self._reachers.items() if broker in journals}

    async def _ask_others(self, broker: str, journal: Versioned[JournalRecord] | None, why: str) -> bool:
        unable = self._unable.setdefault(broker, {self._me, broker})
        for other, url in self._able(unable):
            try:
                await self._note(broker, journal, other)
                return await self._peers.call(url, "recover", RecoverCall(broker), bool, ANSWER_S + MARGIN_S)
            except (NeedsNewerBroker, PeerTooOld):
                unable.add(other)
            except SeaweedqError as error:  # another try may do better
                logger.warning("broker %s has not yet recovered the journal of broker %s: %s", other, broker, error)
                return False
        await self._note(broker, journal, None, why)
        return False

    async def _ask_to_reach(self, broker: str, unreached: JournalUnreachable) -> bool:
        """Asks others for the recovery of a journal that this broker cannot reach: the mirrors, and REACHERS others,
        which follow those of the last try. Returns whether one has ended or begun it."""
        unable = {self._me, broker, *self._unable.get(broker, ())}
        able = self._able(unable)
        others = [one for one in able if one[0] not in unreached.mirrors]
        asked = self._reachers.get(broker, 0) % max(1, len(others))
        self._reachers[broker] = asked + REACHERS
        mirrors = [one for one in able if one[0] in unreached.mirrors]
        for other, url in mirrors + (others[asked:] + others[:asked])[:REACHERS]:
            try:
                await self._peers.call(url, "recover", RecoverCall(broker), bool, ANSWER_S + MARGIN_S)
            except SeaweedqError as error:
                logger.debug("broker %s cannot reach the journal of %s: %s", other, broker, error)
            else:
                logger.info(
                    "broker %s has begun to recover the journal of broker %s, because the leader (this broker) "
                    "cannot reach that journal",
                    other,
                    broker,
                )
                self._unreached_us.pop(broker, None)
                return True
        return False

    async def _note_unknown(
        self, broker: str, journal: Versioned[JournalRecord], unreached: JournalUnreachable
    ) -> None:
        """Records since when nobody reaches a journal, if that was so at the last try, too."""
        since_us = self._unreached_us.setdefault(broker, now_us := self._clock.now_us())
        if since_us < now_us and journal.record.unknown is None:
            logger.error(
                "segments stay unavailable, because no running broker can reach the journal of broker %s: %s",
                broker,
                unreached,
            )
            noted = journal.replace(unknown=UnknownJournal(since_us, str(unreached)))
            put = Put(keys.JOURNALS.key(broker), keys.JOURNALS.encode(noted))
            await self._coordination.commit([Compare(put.key, journal.revision)], [put])

    def _able(self, unable: Container[str]) -> list[tuple[str, str]]:
        """Returns the living brokers that may read more than this one, with their URLs."""
        found = {broker: known.record for broker, known in self._roster.brokers.items() if broker not in unable}
        able = [broker for broker, record in found.items() if record.highest >= levels.HIGHEST and not record.starting]
        return [(one, found[one].url) for one in sorted(able, key=lambda broker: (-found[broker].highest, broker))]

    async def _note(
        self, broker: str, journal: Versioned[JournalRecord] | None, other: str | None, why: str = ""
    ) -> None:
        """Says once whom this broker asks, or that there is nobody."""
        if other != self._asked.get(broker, ""):
            self._asked[broker] = other
            if other:
                logger.info(
                    "asking broker %s to recover the journal of broker %s, because this broker cannot read the journal",
                    other,
                    broker,
                )
            else:
                logger.error(
                    "no running broker can read the journal of broker %s (%s); the segments of the dead broker stay "
                    "unavailable until you start a broker that can read the journal",
                    broker,
                    why,
                )
        if journal and journal.record.needs_newer != (other is None):
            put = Put(keys.JOURNALS.key(broker), keys.JOURNALS.encode(journal.replace(needs_newer=other is None)))
            await self._coordination.commit([Compare(put.key, journal.revision)], [put])


@dataclass(frozen=True, slots=True)
class _Unassigned:
    segment: SegmentId
    known: Versioned[SegmentRecord]


@dataclass(slots=True)
class _Again:
    """The time at which a journal's recovery may be tried again, and the pause after a further failure."""

    at_s: float = float("-inf")
    pause_s: float = FIRST_AGAIN_S


class Leader:
    """The leadership of one broker; `run` is its loop, which does nothing while another broker leads."""

    def __init__(
        self,
        view: ClusterView,
        coordination: Coordination,
        election: Election,
        recoveries: Recoveries,
        rebalancer: Rebalancer,
        tasks: Sequence[PeriodicTask],
        look: LeaderLook,
    ) -> None:
        self._look = look
        self._catalog = view.catalog
        self._roster = view.roster
        self._coordination = coordination
        self._election = election
        self._recoveries = recoveries
        self._rebalancer = rebalancer
        self._tasks = tasks
        self._clock = view.clock
        self._wake = asyncio.Event()
        self._recovering: dict[str, asyncio.Task[bool]] = {}
        self._remaining: dict[str, RemainingSegments] = {}  # by the broker whose journal this one replays
        self._again: dict[str, _Again] = {}
        self._died: set[str] = set()
        self._note_dead()

    def wake(self) -> None:
        """Begins the next round at once, since something has changed."""
        self._note_dead()
        self._wake.set()

    def _note_dead(self) -> None:
        """Notes the brokers that were given up for dead: they have left a journal. A put of theirs may still land, and
        coordination may have forgotten what for. Not those of this folder: their processes are gone for certain, for
        longer than anybody needs to restore coordination."""
        there = self._roster.journals
        left = [broker for broker in there if not self._recoveries.is_of_here(there[broker])]
        left += self._roster.unreadable_journals
        self._died.update(broker for broker in left if not self._roster.alive(broker))

    async def run(self) -> None:
        """Leads whenever this broker is elected, for ever."""
        try:
            while True:
                await self._election.elected()
                self._wake.clear()
                await self._try_round()
                with suppress(TimeoutError):  # wait_for of Python 3.11 may swallow the cancellation that ends this loop
                    async with asyncio.timeout(ROUND_S):
                        await self._wake.wait()
        finally:
            await self.stop()

    async def round(self) -> None:
        """Looks at everything once, and does the next step of each; nothing if coordination went back."""
        if not await self._look.is_clear():
            return
        await self._recover()
        await self._assign_unassigned()
        for task in self._tasks:
            task.begin()

    async def _try_round(self) -> None:
        try:
            await self.round()
        except (Fenced, Unavailable) as error:
            logger.warning("the leader's periodic work was interrupted: %s", error)
        except SeaweedqError:
            logger.exception("the leader's periodic work failed")

    async def stop(self) -> None:
        """Ends the tasks beside the rounds."""
        for task in self._recovering.values():
            task.cancel()
        await asyncio.gather(*self._recovering.values(), *(task.stop() for task in self._tasks), return_exceptions=True)

    async def _recover(self) -> None:
        """Begins the recovery of each journal whose broker is gone."""
        journals: dict[str, Versioned[JournalRecord] | Unreadable] = {**self._roster.unreadable_journals}
        journals |= self._roster.journals
        self._again = {broker: again for broker, again in self._again.items() if broker in journals}
        self._recoveries.forget_except(journals)
        for broker, journal in journals.items():
            again = self._again.get(broker)
            early = again is not None and self._clock.monotonic_s() < again.at_s
            if self._roster.alive(broker) or broker in self._recovering or early or not await self._roster.gone(broker):
                continue
            self._election.leader_compare()
            reach("leader.recover")
            remaining = self._remaining[broker] = RemainingSegments(self.wake)
            recovery = self._recoveries.recover(broker, journal, remaining)
            task = asyncio.create_task(recovery, name=f"recovery of {broker}")
            self._recovering[broker] = task
            task.add_done_callback(partial(self._recovered, broker))

    def _recovered(self, broker: str, task: asyncio.Task[bool]) -> None:
        del self._recovering[broker], self._remaining[broker]
        again = self._again.setdefault(broker, _Again())
        again.at_s = self._clock.monotonic_s() + again.pause_s
        again.pause_s = min(2 * again.pause_s, LAST_AGAIN_S)
        if not task.cancelled() and (error := task.exception()):
            unforeseen = None if isinstance(error, SeaweedqError) else error
            logger.error("the journal of broker %s has not been recovered yet: %s", broker, error, exc_info=unforeseen)
        self._wake.set()

    async def _assign_unassigned(self) -> None:
        for owner in self._catalog.owners():
            if self._roster.alive(owner) or not (segments := self._owned_by(owner)):
                continue
            released, free = await self._released(owner, segments)
            if free:
                with suppress(InvariantViolated):  # logged; the segments of other owners, and the tasks, go on
                    await self._give(free, released)

    async def _released(
        self, owner: str | None, segments: Sequence[_Unassigned]
    ) -> tuple[list[Compare], Sequence[_Unassigned]]:
        """Returns those of a dead owner's segments that may be given away by now, and the comparisons under which.

        Asks for nothing as long as the views show nothing new: a replay may take many rounds.
        """
        if owner is None:
            return [], segments
        if not self._free(owner, self._roster.journal(owner), segments):
            return [], []
        broker = keys.BROKERS.key(owner)
        there = await self._coordination.get(keys.JOURNALS.key(owner))
        if await self._coordination.get(broker):
            return [], []
        free = self._free(owner, keys.JOURNALS.read(there) if there else None, segments)
        return [Compare(broker, 0)], free  # from now on the journal is only replayed further, and goes

    def _free(
        self, owner: str, journal: Versioned[JournalRecord] | Unreadable | None, segments: Sequence[_Unassigned]
    ) -> Sequence[_Unassigned]:
        """Returns the segments of which nothing is left in a dead owner's journal."""
        if journal is None:
            return segments
        left = self._remaining.get(owner)
        replayed = {topic: is_replayed(journal, topic) for topic in dict.fromkeys(one.segment[0] for one in segments)}
        return [
            one
            for one in segments
            if replayed[one.segment[0]] or (left is not None and (one.segment[0], one.segment[2]) not in left)
        ]

    async def _give(self, unassigned: Sequence[_Unassigned], released: list[Compare]) -> None:
        ordered = sorted(unassigned, key=lambda one: one.segment)
        targets = await self._rebalancer.assign([one.segment for one in ordered])
        given = [one for one in ordered if one.segment in targets]
        pages = [given[start : start + PAGE] for start in range(0, len(given), PAGE)]
        if not all(await gather_bounded(GIVES, partial(self._give_page, targets, released), pages)):
            logger.warning(
                "segments or brokers changed while the leader was assigning segments to brokers; checking again"
            )
            await asyncio.gather(self._catalog.load(), self._roster.load())
            self._wake.set()

    async def _give_page(
        self, targets: Mapping[SegmentId, str], released: list[Compare], page: Sequence[_Unassigned]
    ) -> bool:
        """Gives some segments away in one transaction. False: something has changed."""
        writes = [self._owned(one, targets[one.segment]) for one in page]
        compares = [
            self._election.leader_compare(),
            *released,
            *map(self._roster.compare, dict.fromkeys(targets[one.segment] for one in page)),
            *(Compare(put.key, one.known.revision) for put, one in zip(writes, page, strict=True)),
        ]
        reach("leader.give")
        return await self._catalog.commit(compares, writes) is not None

    def _owned_by(self, owner: str | None) -> list[_Unassigned]:
        """Returns the owner's segments of topics that exist."""
        found = []
        for name, incarnation, number in self._catalog.owned_by(owner):
            topic = self._catalog.get(name)
            if topic and topic.record.incarnation == incarnation:
                found.append(_Unassigned((name, incarnation, number), self._catalog.segment(topic, number)))
        return found

    def _owned(self, one: _Unassigned, owner: str) -> Put:
        """Returns the write that gives a segment to an owner, who owes an entry behind one that was given up for
        dead (segments/terms)."""
        record = one.known.record
        term = next_term(record.term, self._catalog.generation)
        entry_from = term[1] if record.owner in self._died else record.entry_from
        given = one.known.replace(owner=owner, term=term, entry_from=entry_from)
        return Put(keys.SEGMENTS.key(*one.segment), keys.SEGMENTS.encode(given))
