"""The recoveries that a leader has done: by itself, and where it cannot read a journal by a broker that can.

A journal may be of a later version than the leader, or of a kind that it lacks. Its segments need not wait while a
broker lives that reads it. The leader asks those that read the levels that it reads itself, the highest first, each
once in its life: what a broker cannot read it never will. Safety does not rest on who recovers, nor on how many do.

If nobody reads it, the journal's record says so (`needs_newer`, from level 2 on): whoever wants the segments is told
that a newer broker is needed. That is a hint, and goes once a broker was found.
"""

import logging
from collections.abc import Container

from seaweedq.broker.recovery.journal_recovery import JournalRecovery
from seaweedq.broker.recovery.remaining import Remaining
from seaweedq.broker.recovery.requested import ANSWER_S
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import RecoverCall
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records.cluster import JournalRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.unreadable import Unreadable
from seaweedq.errors import NeedsNewerBroker, PeerTooOld, SeaweedqError
from seaweedq.formats import Level
from seaweedq.levels import HIGHEST

MARGIN_S = 5.0
RECORD_LEVEL = 2  # of `needs_newer`
logger = logging.getLogger(__name__)


class Recoveries:
    """Recoveries by this broker `me`, which leads, or by others. `level` is the cluster's."""

    def __init__(
        self,
        recovery: JournalRecovery,
        roster: Roster,
        peers: Peers,
        coordination: Coordination,
        me: str,
        level: Level,
    ) -> None:
        self._recovery = recovery
        self._roster = roster
        self._peers = peers
        self._coordination = coordination
        self._me = me
        self._level = level
        self._unable: dict[str, set[str]] = {}  # by broker: those that cannot read its journal
        self._asked: dict[str, str | None] = {}  # by broker: whom this one has asked last

    async def recover(
        self, broker: str, journal: Versioned[JournalRecord] | Unreadable, remaining: Remaining | None = None
    ) -> bool:
        """As JournalRecovery.recover; returns False also where another broker is still at it, or nobody reads it. One
        whose record this broker cannot read is for others alone."""
        if isinstance(journal, Unreadable):
            return await self._ask_others(broker, None, journal.why)
        if await self._recovery.recover(broker, journal, remaining):
            return True
        why = self._recovery.left(broker)
        return why is not None and await self._ask_others(broker, journal, why)

    def forget_except(self, journals: Container[str]) -> None:
        """Forgets journals that are not among those that still exist."""
        self._recovery.forget_except(journals)
        self._unable = {broker: unable for broker, unable in self._unable.items() if broker in journals}
        self._asked = {broker: asked for broker, asked in self._asked.items() if broker in journals}

    async def _ask_others(self, broker: str, journal: Versioned[JournalRecord] | None, why: str) -> bool:
        unable = self._unable.setdefault(broker, {self._me, broker})
        for other, url in self._able(unable):
            try:
                await self._note(broker, journal, other)
                return await self._peers.call(url, "recover", RecoverCall(broker), bool, ANSWER_S + MARGIN_S)
            except (NeedsNewerBroker, PeerTooOld):
                unable.add(other)
            except SeaweedqError as error:  # another try may do better
                logger.warning("broker %s has not recovered the journal of %s: %s", other, broker, error)
                return False
        await self._note(broker, journal, None, why)
        return False

    def _able(self, unable: Container[str]) -> list[tuple[str, str]]:
        """Returns the living brokers that may read what this one cannot, with their URLs."""
        found = {broker: known.record for broker, known in self._roster.brokers.items() if broker not in unable}
        able = [broker for broker, record in found.items() if record.highest >= HIGHEST and not record.starting]
        return [(one, found[one].url) for one in sorted(able, key=lambda broker: (-found[broker].highest, broker))]

    async def _note(
        self, broker: str, journal: Versioned[JournalRecord] | None, other: str | None, why: str = ""
    ) -> None:
        """Says once whom this broker asks, or that there is nobody."""
        if other != self._asked.get(broker, ""):
            self._asked[broker] = other
            if other:
                logger.info(
                    "broker %s is asked to recover the journal of %s, which this one cannot read", other, broker
                )
            else:
                logger.error("no living broker reads the journal of %s, its segments wait for one: %s", broker, why)
        if journal and journal.record.needs_newer != (other is None) and self._level() >= RECORD_LEVEL:
            put = Put(keys.JOURNALS.key(broker), keys.JOURNALS.encode(journal.replace(needs_newer=other is None)))
            await self._coordination.commit([Compare(put.key, journal.revision)], [put])
