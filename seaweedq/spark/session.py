"""A session of Spark: whether its version reads topics, and the data source in one that does not find it by itself, as
one of Spark Connect does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from seaweedq.errors import ClientError

OLDEST = (4, 0)
OLDEST_STREAMS = (4, 2)  # which tells a source where a batch begins; before, the order over splits cannot be kept


def check_version(version: str | None = None) -> None:
    """Raises ClientError for a Spark that is too old; by default the one that is installed."""
    _check(version, OLDEST, "topics")


def check_stream_version(version: str | None = None) -> None:
    """As `check_version`, for streams."""
    _check(version, OLDEST_STREAMS, "topics as streams")


def _check(version: str | None, oldest: tuple[int, int], what: str) -> None:
    if version is None:
        import pyspark

        version = str(pyspark.__version__)
    if tuple(map(int, version.split(".")[:2])) < oldest:
        raise ClientError(f"this is Spark {version}; seaweedq reads {what} with Spark {oldest[0]}.{oldest[1]} or newer")


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Registers the data source `seaweedq` in a session, unless it has found it. Its server needs seaweedq, too."""
    try:
        spark.dataSource.register(import_module("pyspark_seaweedq").DefaultSource)
    except Exception as error:  # Spark's own, of which pyspark has several classes
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 says so of one that it has found by itself
            raise
