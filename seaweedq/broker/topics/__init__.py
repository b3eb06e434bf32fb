"""Topics as records: the catalogue, who owns which segment, intents, creation and deletion."""

from seaweedq.broker.topics.catalog import Catalog as Catalog
from seaweedq.broker.topics.catalog import Topic as Topic
from seaweedq.broker.topics.intents import MAX_SUCCESSORS as MAX_SUCCESSORS
from seaweedq.broker.topics.orphaned_topics import OrphanedTopics as OrphanedTopics
from seaweedq.broker.topics.orphaned_topics import find_orphaned_topics as find_orphaned_topics
from seaweedq.broker.topics.tombstones import Tombstones as Tombstones
from seaweedq.broker.topics.tombstones import check_at_end as check_at_end
from seaweedq.broker.topics.topic_admin import TopicAdmin as TopicAdmin
