"""An open segment: its tail, the group commit, the flusher, the reader, and the memory that they share."""

from seaweedq.broker.log.flusher import Log as Log
from seaweedq.broker.log.memory_budget import Budget as Budget
from seaweedq.broker.log.open_segment import OpenSegment as OpenSegment
from seaweedq.broker.log.reader import Pieces as Pieces
from seaweedq.broker.log.reader import fitting as fitting
