"""The rounds of retention: nothing is taken or deleted outside one.

Order of writes: 1. the store's newest generation is compared with this life's (storage/generations), and its newest
number read; that must not be above coordination's; 2. the round's number, one
more, is committed in coordination; 3. `_retention/{number}` is created in the store, and the one before removed; 4. the
store's own time of that object is compared with this broker's clock. Then the round may raise starts and delete files.
A crash behind 2 leaves a number that no object has: the next round takes the next one.

*No restore may delete.* Coordination that was restored knows a lower number than the store. It may know older start
offsets, cursors and policies too, so nothing is done until it was rebuilt (broker/rebuild).

*No clock may delete.* All ages are differences of the store's own times. A leader whose clock is more than MAX_SKEW_US
from the store's does nothing: one of the two is wrong.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from seaweedq.checks import reach
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.election import Election
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import Counter
from seaweedq.coordination.versioned import Versioned
from seaweedq.storage.identity import mark_round, newest_round
from seaweedq.storage.interface import ObjectStore

MAX_SKEW_US = 60_000_000
Reason = Literal["", "clock", "restored"]
REASONS: tuple[Reason, ...] = ("clock", "restored")
KEY = keys.RETENTION.key()
logger = logging.getLogger(__name__)


async def known_round(coordination: Coordination) -> Versioned[Counter]:
    """Returns the number of the newest round, as coordination knows it. Raises Unavailable."""
    there = await coordination.get(KEY)
    return keys.RETENTION.require(there) if there else Versioned.new(Counter(0))


class Rounds:
    """Begins the rounds. `held` is the reason why the last one was not allowed to do anything; empty if it was."""

    def __init__(
        self,
        coordination: Coordination,
        store: ObjectStore,
        election: Election,
        clock: Clock,
        check_generation: Callable[[], Awaitable[None]],
    ) -> None:
        self.held: Reason = ""
        self.begun = 0
        self._coordination = coordination
        self._store = store
        self._election = election
        self._clock = clock
        self._check_generation = check_generation

    @property
    def leads(self) -> bool:
        """Whether this broker leads, as far as it knows."""
        return self._election.is_leader

    def leader_compare(self) -> Compare:
        """Returns a comparison that holds as long as this broker leads. Raises Fenced."""
        return self._election.leader_compare()

    async def begin(self) -> int | None:
        """Begins a round. Returns the store's time in microseconds since 1970; None if nothing may be done. Raises
        Unavailable, Fenced."""
        known = await known_round(self._coordination)
        await self._check_generation()
        if await newest_round(self._store) > known.record.next:
            self._hold("restored", "the store has a later retention round than coordination")
            return None
        number = known.record.next + 1
        reach("retention.number")
        put = Put(KEY, keys.RETENTION.encode(known.replace(next=number)))
        if not await self._coordination.commit([self.leader_compare(), Compare(KEY, known.revision)], [put]):
            return None  # another leader, which does its own
        reach("retention.numbered")
        now_us = await mark_round(self._store, number)
        reach("retention.marked")
        if now_us is None:  # perhaps by an earlier try of this very put; the next round looks again
            logger.warning(
                "the store already has a record of retention round %d, so this round deletes nothing; the next round "
                "has a new number",
                number,
            )
            return None
        ahead_us = self._clock.now_us() - now_us
        if abs(ahead_us) > MAX_SKEW_US:
            self._hold("clock", f"this broker's clock is {ahead_us / 1e6:.0f} s ahead of the store's")
            return None
        self.held, self.begun = "", self.begun + 1
        return now_us

    def _hold(self, reason: Reason, why: str) -> None:
        if self.held != reason:
            hint = "; restart the brokers, then run `seaweedq cluster rebuild`" if reason == "restored" else ""
            logger.error("retention is suspended: %s%s", why, hint)
        self.held = reason
