"""Reads of a segment wherever it is, and the positions of a topic."""

from seaweedq.broker.read.cluster_time import AGAIN_S as AGAIN_S
from seaweedq.broker.read.cluster_time import ClusterTime as ClusterTime
from seaweedq.broker.read.positions import MOST as MOST
from seaweedq.broker.read.positions import FilePages as FilePages
from seaweedq.broker.read.positions import Place as Place
from seaweedq.broker.read.positions import Position as Position
from seaweedq.broker.read.positions import TopicFile as TopicFile
from seaweedq.broker.read.positions import TopicPositions as TopicPositions
from seaweedq.broker.read.readable_segments import Readable as Readable
from seaweedq.broker.read.readable_segments import ReadableSegments as ReadableSegments
from seaweedq.broker.read.reading import MAX_BYTES as MAX_BYTES
from seaweedq.broker.read.reading import Fetcher as Fetcher
from seaweedq.broker.read.request_search import OwnerFinder as OwnerFinder
from seaweedq.broker.read.request_search import SearchRequest as SearchRequest
from seaweedq.broker.read.request_search import Target as Target
