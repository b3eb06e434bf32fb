"""Spark: a topic as a DataFrame, the data source `seaweedq`, and payloads of messages."""

from seaweedq.spark.compat import register
from seaweedq.spark.jobs.generations import read_generation
from seaweedq.spark.payloads import with_payloads
from seaweedq.spark.topic_table import read_topic

__all__ = ["read_generation", "read_topic", "register", "with_payloads"]
