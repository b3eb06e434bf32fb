"""The data source, its batch reader, and the checks before a write.

Spark makes a source anew for each of its steps, in workers of Python on the driver.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from seaweedq.client.core.calls import call, segment_map, topic_files, topic_path, with_removed
from seaweedq.client.core.table import bounds_by_segment, cover_rows, expiry_time, plan
from seaweedq.client.sync.client import Client
from seaweedq.clock import SystemClock
from seaweedq.spark.compat import check_stream_version, check_version, check_write_version, spark_schema_of
from seaweedq.spark.offsets import Loss, initial, segments_of, starts
from seaweedq.spark.options import BATCH_ONLY, STREAM_ONLY, Options, WriteOptions
from seaweedq.spark.partition_reader import PartitionReader, TaskShare, TopicFacts, TopicPartition, divide, loss_of
from seaweedq.spark.row_checks import check_frame

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class Source:
    """The data source for one query over a topic. Each method raises ValueError for a wrong option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_version()
        self._given = options
        self._facts: TopicFacts | None = None  # of the topic that the frame was made of; readers notice another one

    @cached_property
    def options(self) -> Options:
        """The options of a read; a write has others."""
        return Options.parse(self._given)

    def schema(self) -> "StructType":
        """Returns the columns that are read: those of the files, with `segment` at the end."""
        with Client(self.options.url) as client:
            self._facts = TopicFacts.fetch(client, self.options.topic)
        return spark_schema_of(self._facts.schema, self.options.columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Returns the reader of a batch."""
        self.options.check(*STREAM_ONLY, of="batches")
        if self.options.starting == "latest":
            raise ValueError(
                "startingOffsets must be 'earliest' or JSON, not 'latest': a batch query would read nothing"
            )
        return BatchReader(self.options, schema, self._facts)

    def stream_reader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Returns the reader of a stream."""
        check_stream_version()
        self.options.check(*BATCH_ONLY, of="streams, which never end")
        from seaweedq.spark.stream_reader import StreamReader

        return StreamReader(self.options, schema, self._facts)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Returns the writer of a batch. Raises ValueError for columns that the topic does not take."""
        options, facts = self._writing(schema, overwrite)
        from seaweedq.spark.writer import BatchWriter

        return BatchWriter(options, facts)

    def stream_writer(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        """Returns the writer of a stream. Raises as `writer`."""
        options, facts = self._writing(schema, overwrite)
        if options.write_id is not None:
            raise ValueError(
                "the option writeId cannot be used for streams, because a stream's writes are "
                "identified by the ids of the query and the batch"
            )
        from seaweedq.spark.writer import StreamWriter

        return StreamWriter(options, facts)

    def _writing(self, schema: "StructType", overwrite: bool) -> tuple[WriteOptions, Mapping[str, Any]]:
        check_write_version()
        options = WriteOptions.parse(self._given)
        if overwrite:
            raise ValueError(
                "a write cannot replace a topic's messages; use mode('append') for a batch, or "
                "outputMode('append') for a stream"
            )
        with Client(options.url) as client:
            facts = client.run(call("GET", topic_path(options.topic)))
            if options.invalid_rows:
                kind = client.run(call("GET", topic_path(options.invalid_rows)))["format"]
                if kind != "json":
                    detail = f"invalidRows must be a json topic, but {options.invalid_rows!r} is a {kind} topic"
                    raise ValueError(detail)
        check_frame(schema, facts, SystemClock().now_us())
        return options, facts


class BatchReader(PartitionReader, DataSourceReader):
    """Reads a topic as it is when Spark plans the query."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the read: pins first, then the list of files. There is always a partition, as Spark calls `read`
        without one if there is none."""
        options = self.options
        with Client(options.url) as client:
            answer = client.run(segment_map(options.topic))
            there = answer["segments"]
            facts = self.describe(client)  # after the map: of a topic that was created anew meanwhile, all is new
            facts.check_same(there)
            known = client.run(with_removed(options.topic, there, options.starting, options.ending))
            planned = plan(known, self._starting(client, known), self._ending(client, known), tail=options.include_tail)
            files = client.run(topic_files(options.topic)) if planned.files else []
            found = client.run(cover_rows(options.topic, files, planned.files))
        if isinstance(options.starting, Mapping):
            self.lose([loss_of(rows) for rows in found.gone])
        tail = (*found.unlisted, *planned.tail)
        shares = divide(found.files, tail, options.max_bytes_per_partition, options.min_partitions)
        as_of = expiry_time(answer, options.expired)
        return [TopicPartition(each, facts, as_of) for each in shares or [TaskShare()]]

    def _starting(self, client: Client, known: Sequence[Mapping[str, Any]]) -> Mapping[int, int] | None:
        bound = self.options.starting
        if isinstance(bound, datetime):
            return client.run(bounds_by_segment(self.options.topic, known, bound))
        if not isinstance(bound, Mapping):
            return None
        plan(known, bound)  # raises for an unknown segment or offset
        there = segments_of(known)
        self.lose([Loss(n, offset, there[n].start) for n, offset in bound.items() if offset < there[n].start])
        return starts(there, initial(there, bound))

    def _ending(self, client: Client, known: Sequence[Mapping[str, Any]]) -> Mapping[int, int] | None:
        bound = self.options.ending
        return None if isinstance(bound, str) else client.run(bounds_by_segment(self.options.topic, known, bound))
