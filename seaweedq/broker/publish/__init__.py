"""A publish: the batch is split, appended here, or forwarded to the owners."""

from seaweedq.broker.publish.batch_split import AppendedRows as AppendedRows
from seaweedq.broker.publish.local_append import in_time as in_time
from seaweedq.broker.publish.publisher import INLINE_ROWS as INLINE_ROWS
from seaweedq.broker.publish.publisher import Producer as Producer
from seaweedq.broker.publish.publisher import Publisher as Publisher
from seaweedq.broker.publish.publisher import PublishResult as PublishResult
