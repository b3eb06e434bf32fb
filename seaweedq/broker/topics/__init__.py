"""Topics as records: the catalogue, the owners of segments, creation and deletion."""

from seaweedq.broker.topics.catalog import Catalog as Catalog
from seaweedq.broker.topics.catalog import Topic as Topic
from seaweedq.broker.topics.catalog import check_at_end as check_at_end
from seaweedq.broker.topics.ownership import OrphanedTopics as OrphanedTopics
from seaweedq.broker.topics.ownership import find_orphaned_topics as find_orphaned_topics
from seaweedq.broker.topics.schema_versions import SchemaVersions as SchemaVersions
from seaweedq.broker.topics.topic_admin import TopicAdmin as TopicAdmin
