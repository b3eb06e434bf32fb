"""Spark's versions and types: which versions read topics, how columns are seen there, and the registration of the data
source in a session that does not find it by itself, such as one of Spark Connect.
"""

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seaweedq.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_WIDER: dict[Any, tuple[Any, ...]] = {
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}


def spark_schema_of(schema: pa.Schema, columns: Sequence[str] | None = None) -> "StructType":
    """Returns columns as Spark reads them: all nullable. Raises ValueError for one that is not there."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    names = list(columns) if columns is not None else schema.names
    _check_names(schema, names)
    return StructType([StructField(name, from_arrow_type(schema.field(name).type), True) for name in names])


def arrow_schema(schema: "StructType") -> pa.Schema:
    """Returns the Arrow schema that Spark expects of a reader with this schema, to the last nullability."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def check_columns(schema: pa.Schema, wanted: pa.Schema) -> None:
    """Raises ValueError for a column that the topic does not have, or has of a type that is not narrower."""
    _check_names(schema, wanted.names)
    of_topic = arrow_schema(spark_schema_of(schema, wanted.names))
    for column in wanted:
        own = of_topic.field(column.name).type
        wider = column.type in _WIDER.get(own, ())
        if pa.types.is_decimal(own) and pa.types.is_decimal(column.type):
            more = column.type.precision - column.type.scale
            wider = column.type.scale >= own.scale and more >= own.precision - own.scale
        if own != column.type and not wider:
            raise ValueError(
                f"column {column.name!r} has the type {own}; it can be read with this type or a wider "
                f"type, but not as {column.type}"
            )


def _check_names(schema: pa.Schema, names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in schema.names]:
        raise ValueError(f"the topic has no columns {unknown}; its columns are {schema.names}")


OLDEST = (4, 0)
OLDEST_WRITES = (4, 2)  # 4.1 has the Arrow writers of streams; with an older one than this nothing was tried
OLDEST_STREAMS = (4, 2)  # which tells a source where a batch begins; before, the order over splits cannot be kept


def check_version(version: str | None = None) -> None:
    """Raises ClientError for a Spark that is too old; by default the one that is installed."""
    _check(version, OLDEST, "reads topics")


def check_stream_version(version: str | None = None) -> None:
    """As `check_version`, for streams."""
    _check(version, OLDEST_STREAMS, "reads topics as streams")


def check_write_version(version: str | None = None) -> None:
    """As `check_version`, for writes."""
    _check(version, OLDEST_WRITES, "writes topics")


def _check(version: str | None, oldest: tuple[int, int], what: str) -> None:
    if version is None:
        import pyspark

        version = str(pyspark.__version__)
    if tuple(map(int, version.split(".")[:2])) < oldest:
        raise ClientError(
            f"Spark {version} is too old: seaweedq {what} only with Spark {oldest[0]}.{oldest[1]} or newer"
        )


def register(spark: "SparkSession") -> None:
    """Registers the data source `seaweedq` in a session that has not found it. A Connect server needs seaweedq, too."""
    try:
        spark.dataSource.register(import_module("pyspark_seaweedq").DefaultSource)
    except Exception as error:  # Spark's own, of which pyspark has several classes
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 says so of one that it has found by itself
            raise
