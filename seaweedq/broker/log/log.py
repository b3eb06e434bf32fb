"""The log of one life of a broker: the journal that makes rows durable, and what brings them from there into files.

Order at a stop: nothing more is taken, the commits under way end, and then everything is flushed. What a stop does not
finish stays in the journal, and a recovery finds it there.
"""

from collections.abc import Callable

from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import DirtySegments, OpenSegment
from seaweedq.broker.log.reader import GroupCache, Reader
from seaweedq.clock import Clock
from seaweedq.errors import Fenced
from seaweedq.journal.interface import Journal


class Log:
    """The journal, its group commit, the flusher, the segments that may have something to flush, and the reader of
    files with its cache.

    `valid` says whether this broker may acknowledge. `grown` is told of each segment that got a file, `fenced` of one
    that another broker has written.
    """

    def __init__(
        self,
        journal: Journal,
        valid: Callable[[], bool],
        entries: EntryWriter,
        budget: Budget,
        cache_bytes: int,
        clock: Clock,
        grown: Callable[[OpenSegment], None],
        fenced: Callable[[OpenSegment, Fenced], None],
    ) -> None:
        self.journal = journal
        self.commit = GroupCommit(journal, clock, valid)
        self.flusher = Flusher(entries, grown, fenced, clock)
        self.dirty = DirtySegments()
        self.cache = GroupCache(budget, cache_bytes)
        self.reader = Reader(self.cache, clock)
