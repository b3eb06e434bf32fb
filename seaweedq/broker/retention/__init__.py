"""Retention: which files are due, the raise of start offsets, and the deletion of files, by the leader."""

from seaweedq.broker.retention.files import Preview as Preview
from seaweedq.broker.retention.files import TopicFiles as TopicFiles
from seaweedq.broker.retention.retention import Retention as Retention
from seaweedq.broker.retention.rounds import REASONS as REASONS
from seaweedq.broker.retention.topic_deletion import TopicDeletion as TopicDeletion
