"""The columns of a read in Spark: the topic's, some of them, or those of a schema that widens some."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
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
        if own != column.type and not _widens(own, column.type):
            raise ValueError(
                f"column {column.name!r} is {own}; it can be read as that or a wider type, not {column.type}"
            )


def _check_names(schema: pa.Schema, names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in schema.names]:
        raise ValueError(f"the topic has no columns {unknown}; it has {schema.names}")


def _widens(own: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_decimal(own) and pa.types.is_decimal(wanted):
        return bool(wanted.scale >= own.scale and wanted.precision - wanted.scale >= own.precision - own.scale)
    return wanted in _WIDER.get(own, ())
