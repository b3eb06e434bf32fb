"""The log of one life of a broker: the journal that makes rows durable, and what brings them from there into files."""

from dataclasses import dataclass

from seaweedq.broker.log.dirty_segments import DirtySegments
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.group_commit import GroupCommit
from seaweedq.journal.interface import Journal


@dataclass(frozen=True)
class SegmentLog:
    """The journal, its group commit, the flusher, and the segments that may have something to flush."""

    journal: Journal
    commit: GroupCommit
    flusher: Flusher
    dirty: DirtySegments
