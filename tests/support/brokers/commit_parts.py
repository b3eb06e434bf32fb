"""Objects around a group commit, without a broker: a clock that stands still, open segments, appends, messages."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pyarrow as pa

from seaweedq.broker.log.entry_writer import Source
from seaweedq.broker.log.group_commit import Append, EncodedRows, GroupCommit
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import OpenSegment, Waiter
from seaweedq.concurrency.futures import Signal
from seaweedq.journal.interface import Journal
from seaweedq.segments.chain import Chain
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.layout import TIMESTAMP, Format, Layout
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.rows import Single, assemble
from seaweedq.storage.memory import MemoryStore

LAYOUT = Layout.from_format(Format.BYTES)


class StillClock:
    def __init__(self, at_s: float = 100.0) -> None:
        self._at_s = at_s

    def now_us(self) -> int:
        return 1_700_000_000_000_000

    def monotonic_s(self) -> float:
        return self._at_s


def segment(number: int = 0) -> OpenSegment:
    source = Source("t", number, KeyRange(0, KEY_SPACE), LAYOUT, owner="me")
    producers = ProducerTables.empty(number, source.key_range)
    chain = Chain(MemoryStore(), "t", number)
    return OpenSegment(source, chain, producers, Budget(1 << 30), Signal(), lambda _: None)


def append(to: OpenSegment, *values: bytes) -> Append:
    times = pa.array([1_700_000_000_000_000] * len(values), TIMESTAMP)
    rows = EncodedRows.encode(assemble(LAYOUT, times, None, None, None, [pa.array(values, pa.binary())]))
    return Append(to, rows, [Waiter(0, len(values), asyncio.get_running_loop().create_future(), 0)])


def give(commit: GroupCommit, *appends: Append) -> asyncio.Future[list[int]]:
    """Gives a request to the commit: the first offset of each append."""
    commit.append(appends)
    return asyncio.gather(*(waiter.offset for each in appends for waiter in each.waiters))


def single(value: bytes) -> Single:
    return Single(None, value, None, 1_700_000_000_000_000, None)


def values(of: OpenSegment) -> list[bytes]:
    """What the tail holds, in order."""
    return [v for piece in of.tail.since(0) for v in piece.rows.column("value").to_pylist()]


@asynccontextmanager
async def running(
    journal: Journal, valid: list[bool] | None = None, check_first: Callable[[], Awaitable[None]] | None = None
) -> AsyncIterator[GroupCommit]:
    """A group commit over a journal; it may acknowledge as long as `valid` is not [False]."""
    commit = GroupCommit(journal, StillClock(), lambda: not valid or valid[0], check_first)
    loop = asyncio.create_task(commit.run())
    try:
        yield commit
    finally:
        loop.cancel()
        await asyncio.wait([loop])
