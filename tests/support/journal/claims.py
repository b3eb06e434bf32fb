"""Dead journals without a bound on memory, and journals of given commits, replayed by a broker."""

from collections.abc import AsyncGenerator, Sequence

from seaweedq.broker.broker import Broker
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.recovery.recovery_memory import RecoveryMemory
from seaweedq.broker.recovery.replay import Read, Replay
from seaweedq.journal.interface import Claim
from seaweedq.segments.frames import Commit, Frame
from tests.support.brokers import inside


async def unbounded(size: int) -> None:
    """Grants a reader of commits all that it claims."""


def committed(frames: Sequence[Frame]) -> Read:
    """Returns what reads a journal of one commit."""
    return reading([Commit(0, tuple(frames))])


def reading(journal: Sequence[Commit]) -> Read:
    """Returns what reads a journal of these commits."""

    async def commits(claim: Claim) -> AsyncGenerator[Commit, None]:
        for commit in journal:
            await claim(commit.size_bytes)
            yield commit

    return commits


def replay_of(broker: Broker, budget: Budget | None = None) -> Replay:
    """The replay of a broker, with its budget or another one."""
    environment, entries = broker.process, inside.entry_writer(broker)
    memory = RecoveryMemory(budget or inside.budget(broker))
    return Replay(inside.catalog(broker), environment.coordination, environment.store, entries, memory)
