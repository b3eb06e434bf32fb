"""The data source in sessions that do not find it by themselves, such as those of Spark Connect."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Registers the data source `seaweedq` in a session. Its server needs seaweedq, too."""
    spark.dataSource.register(import_module("pyspark_seaweedq").DefaultSource)
