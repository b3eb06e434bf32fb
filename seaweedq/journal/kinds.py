"""Several backends of journals behind one interface: a broker writes one kind, and recovers all kinds that it knows."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping

from seaweedq.coordination.records import JournalRecord
from seaweedq.formats import needs_newer
from seaweedq.journal.interface import Claim, DeadJournal, Journal, Journals
from seaweedq.segments.commits import Commit


class JournalKinds:
    """The backends by the kind that a journal's key names; `own` is the kind of this process's broker."""

    def __init__(self, backends: Mapping[str, Journals], own: str) -> None:
        self._backends = backends
        self._own = backends[own]

    def describe(self, broker: str) -> JournalRecord:
        return self._own.describe(broker)

    def create(self, broker: str) -> Journal:
        return self._own.create(broker)

    def is_exclusive(self, record: JournalRecord) -> bool:
        backend = self._backends.get(record.kind)
        return backend is not None and backend.is_exclusive(record)

    def open_dead(self, broker: str, record: JournalRecord) -> DeadJournal:
        backend = self._backends.get(record.kind)
        return backend.open_dead(broker, record) if backend else _UnknownJournal(broker, record.kind)

    async def sweep(self, read_known: Callable[[], Awaitable[Container[str]]]) -> int:
        return sum([await backend.sweep(read_known) for backend in self._backends.values()])


class _UnknownJournal:
    """A journal of a kind that this process does not know. A newer broker may know it; it is never empty."""

    def __init__(self, broker: str, kind: str) -> None:
        self._broker = broker
        self._kind = kind

    async def fence(self) -> None:
        raise needs_newer(f"the journal of {self._broker} is of kind {self._kind!r}, which this broker does not know")

    async def commits(self, claim: Claim) -> AsyncGenerator[Commit, None]:
        raise AssertionError("the journal was not fenced")
        yield

    async def remove(self) -> None:
        raise AssertionError("the journal was not fenced")

    async def close(self) -> None:
        pass
