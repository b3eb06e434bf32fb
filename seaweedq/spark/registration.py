"""The data source in sessions that do not find it by themselves, such as those of Spark Connect."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Registers the data source `seaweedq` in a session, unless it has found it. Its server needs seaweedq, too."""
    try:
        spark.dataSource.register(import_module("pyspark_seaweedq").DefaultSource)
    except Exception as error:  # Spark's own, of which pyspark has several classes
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 says so of one that it has found by itself
            raise
