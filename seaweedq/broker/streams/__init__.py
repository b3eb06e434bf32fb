"""Reads of a whole topic, in the order of each key, of which nothing is kept."""

from seaweedq.broker.streams.streaming import COUNT as COUNT
from seaweedq.broker.streams.streaming import LEAVE as LEAVE
from seaweedq.broker.streams.streaming import NEXT as NEXT
from seaweedq.broker.streams.streaming import LeasedBatch as LeasedBatch
from seaweedq.broker.streams.streaming import OpenStreams as OpenStreams
from seaweedq.broker.streams.streaming import SubscriptionStreams as SubscriptionStreams
from seaweedq.broker.streams.topic_streams import Positions as Positions
from seaweedq.broker.streams.topic_streams import Start as Start
from seaweedq.broker.streams.topic_streams import StartTime as StartTime
from seaweedq.broker.streams.topic_streams import TailWatch as TailWatch
from seaweedq.broker.streams.topic_streams import TopicReader as TopicReader
from seaweedq.broker.streams.topic_streams import TopicStreams as TopicStreams
