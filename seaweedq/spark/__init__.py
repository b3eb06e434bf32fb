"""Spark: a topic as a DataFrame, the data source `seaweedq`, and payloads of messages."""

from seaweedq.spark.compat import register
from seaweedq.spark.payloads import with_payloads
from seaweedq.spark.topic_table import read_topic

__all__ = ["read_topic", "register", "with_payloads"]
