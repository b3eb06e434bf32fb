"""The data source `seaweedq`, where Spark finds it by itself.

Spark imports every top-level module whose name begins with `pyspark_`, and an import that fails switches off all Python
sources of the session. So this one imports nothing but Spark's own; what else is missing is said once a source is made.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from seaweedq.spark.source import Source


class DefaultSource(DataSource):
    """A topic as a source and a sink of batches and streams; docs/do/spark.md has the options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        try:
            make: Callable[[dict[str, str]], Source] = import_module("seaweedq.spark.source").Source
        except ImportError as error:
            from seaweedq.extras import install_command

            raise ImportError(f"the source seaweedq needs {error.name}: {install_command('spark')}") from error
        self._source = make(options)

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "seaweedq"

    def schema(self) -> "StructType":
        """Returns the columns that are read."""
        return self._source.schema()

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Returns the reader of a batch."""
        return self._source.reader(schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Returns the reader of a stream."""
        return self._source.stream_reader(schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Returns the writer of a batch."""
        return self._source.writer(schema, overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        """Returns the writer of a stream."""
        return self._source.stream_writer(schema, overwrite)
