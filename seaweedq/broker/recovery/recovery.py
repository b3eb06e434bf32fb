"""Recovery: what the journals of the dead hold becomes files and cursors; and the key of this broker's own journal."""

from seaweedq.broker.context import Context
from seaweedq.broker.recovery.journal_recovery import JournalRecovery, RequestedRecoveries
from seaweedq.broker.recovery.journal_registration import JournalRegistration
from seaweedq.broker.recovery.recovery_memory import RecoveryMemory
from seaweedq.broker.recovery.replay import Replay
from seaweedq.broker.service import Service, Tasks
from seaweedq.errors import NotReady


class Recovery(Service):
    """Recovers `journals`, also those that the leader has `requested`. `home` is the id of this process's folder."""

    def __init__(self, context: Context, home: str) -> None:
        coordination, membership = context.coordination, context.membership
        memory = RecoveryMemory(context.budget)
        replay = Replay(context.catalog, coordination, context.store, context.entries, memory)
        self.journals = JournalRecovery(coordination, membership, replay, context.journals, home)
        self.registration = JournalRegistration(coordination, membership, context.journals.describe(context.broker))
        self.requested = RequestedRecoveries(self.journals, coordination)
        self._membership = membership
        self._roster = context.roster

    async def run(self) -> Tasks:
        """Says that this folder's journals are recovered: from now on the leader may assign segments to this broker.
        Raises NotReady."""
        if not await self._membership.open():
            raise NotReady("this broker's lease expired while it was starting")
        await self._roster.load()
        return {"journals left here": self.journals.recover_left_often()}

    async def stop(self) -> None:
        """Ends the recoveries that the leader has asked for."""
        await self.requested.stop()
