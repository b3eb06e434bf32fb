"""Recoveries that the leader asks this broker for, since it cannot read a journal itself (broker/cluster/leader).

The recovery is the same as the leader's own, and several at once are safe (broker/recovery/journal_recovery). This
broker looks itself whether the journal's broker is gone. One that was begun goes on, whether the leader waits or not.
"""

import asyncio

from seaweedq.broker.recovery.journal_recovery import JournalRecovery
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination
from seaweedq.errors import NeedsNewerBroker, NotOwner, Unavailable

ANSWER_S = 5.0


class RequestedRecoveries:
    """The recoveries that were asked for and are under way."""

    def __init__(self, recovery: JournalRecovery, coordination: Coordination) -> None:
        self._recovery = recovery
        self._coordination = coordination
        self._running: dict[str, asyncio.Task[bool]] = {}

    async def recover(self, broker: str) -> bool:
        """Recovers the journal of a broker that is gone. Returns False where that goes on after ANSWER_S.

        Raises NotOwner where that broker lives, NeedsNewerBroker, Unavailable where the journal cannot be reached from
        here, and what the recovery raises.
        """
        running = self._running.get(broker)
        if running is None:
            running = self._running[broker] = asyncio.create_task(self._recover(broker), name=f"recovery of {broker}")
            running.add_done_callback(lambda ended: self._ended(broker, ended))
        done, _ = await asyncio.wait([running], timeout=ANSWER_S)  # not cancelled with us
        return running.result() if done else False

    async def stop(self) -> None:
        """Ends them."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _recover(self, broker: str) -> bool:
        if await self._coordination.get(keys.BROKERS.key(broker)):
            raise NotOwner(f"broker {broker} lives, so its journal is its own")
        there = await self._coordination.get(keys.JOURNALS.key(broker))
        if there is None or await self._recovery.recover(broker, keys.JOURNALS.require(there)):
            return True
        if why := self._recovery.left(broker):
            raise NeedsNewerBroker(why)
        raise Unavailable(f"the journal of {broker} cannot be reached from here")

    def _ended(self, broker: str, ended: asyncio.Task[bool]) -> None:
        del self._running[broker]
        _ = ended.cancelled() or ended.exception()  # may be the one nobody waits for
