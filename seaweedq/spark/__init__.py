"""Spark: a topic as a DataFrame, and payloads of messages."""

from seaweedq.spark.payloads import with_payloads
from seaweedq.spark.topic_table import read_topic

__all__ = ["read_topic", "with_payloads"]
