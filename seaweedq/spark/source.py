"""The data source: what a topic's reads share, and its batch reader.

Spark makes a source anew for each of its steps, in workers of Python on the driver; a reader goes to the executors.
They read files by themselves, and the rows that are in no file from brokers.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from seaweedq.client.core.protocol.effects import Steps
from seaweedq.client.core.protocol.retry import patiently
from seaweedq.client.core.tables.table import TableRead, by_segment, completed, table_schema
from seaweedq.client.core.tables.table_plan import Rows, plan
from seaweedq.client.core.topics.calls import call, segments, topic_path, with_removed
from seaweedq.client.core.topics.topic_files import TopicFile, topic_files
from seaweedq.client.sync.client import Client
from seaweedq.errors import ClientError
from seaweedq.spark.columns import arrow_schema, check_columns, spark_schema_of
from seaweedq.spark.offsets import Known, Loss, Segment, initial, starts
from seaweedq.spark.options import BATCH_ONLY, STREAM_ONLY, Options
from seaweedq.spark.partitions import Work, divided
from seaweedq.spark.versions import check_stream_version, check_version

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)
T = TypeVar("T")


class TopicPartition(InputPartition):
    """The work of one task, and what it needs to know of the topic: readers are made anew for executors."""

    def __init__(self, work: Work, facts: "TopicFacts") -> None:
        super().__init__(work)
        self.work = work
        self.facts = facts


class Source:
    """A topic with the options of a query. Raises ValueError for a wrong option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        check_version()
        self.options = Options.parse(options)

    def schema(self) -> "StructType":
        """Returns the columns that are read: those of the files, with `segment` at the end."""
        with Client(self.options.url) as client:
            schema = TopicFacts.of(client, self.options.topic).schema
        return spark_schema_of(schema, self.options.columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Returns the reader of a batch."""
        self.options.check(*STREAM_ONLY, of="batches")
        if self.options.starting == "latest":
            raise ValueError("startingOffsets is 'latest'; a batch has none of it, so it must be 'earliest' or JSON")
        return BatchReader(self.options, schema)

    def stream_reader(self, schema: "StructType") -> "DataSourceStreamReader":
        """Returns the reader of a stream."""
        check_stream_version()
        self.options.check(*BATCH_ONLY, of="streams, which have no end")
        from seaweedq.spark.stream_reader import StreamReader

        return StreamReader(self.options, schema)


@dataclass(frozen=True)
class TopicFacts:
    """The part of a topic's description that its reads need: the columns of files, and where they are."""

    schema: pa.Schema
    folder: str

    @staticmethod
    def of(client: Client, topic: str) -> "TopicFacts":
        """Asks a broker."""
        facts = ask(client, call("GET", topic_path(topic)))
        return TopicFacts(table_schema(facts), facts["path"])


class PartitionReader:
    """Reads partitions, on executors."""

    def __init__(self, options: Options, schema: "StructType") -> None:
        self.options = options
        self.schema = schema
        self.facts: TopicFacts | None = None

    def describe(self, client: Client) -> TopicFacts:
        """Returns the facts of the topic, asked for once. Raises ValueError for a column that it does not have."""
        if self.facts is None:
            facts = TopicFacts.of(client, self.options.topic)
            check_columns(facts.schema, arrow_schema(self.schema))
            self.facts = facts
        return self.facts

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition."""
        if not isinstance(partition, TopicPartition):
            return
        work, facts = partition.work, partition.facts
        read = TableRead(
            self.options.topic,
            facts.schema,
            arrow_schema(self.schema),
            facts.folder,
            work.files,
            work.tail,
            self.options.storage,
        )
        yield from read.of_files()
        if work.tail:
            with Client(self.options.url) as client:
                for rows in work.tail:
                    batches = client.read_segment(read.topic, rows.segment, rows.start, rows.end)
                    yield from (read.conformed(batch) for batch in batches if batch.num_rows)

    def lose(self, losses: Sequence[Loss]) -> None:
        """Raises ClientError for lost rows, or logs them where the query is to go on."""
        if not losses:
            return
        said = "; ".join(map(str, losses[:10])) + (f"; and {len(losses) - 10} others" if len(losses) > 10 else "")
        detail = f"rows of topic {self.options.topic!r} are gone before they were read: {said}"
        if self.options.fail_on_data_loss:
            raise ClientError(f"{detail}. With the option failOnDataLoss=false the query goes on behind them")
        logger.warning("%s; the query goes on behind them", detail)


class BatchReader(PartitionReader, DataSourceReader):
    """Reads a topic as it is when Spark plans the query."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plans the read: pins first, then the list of files. There is always a partition, as Spark calls `read`
        without one where there is none."""
        options = self.options
        with Client(options.url) as client:
            facts = self.describe(client)
            there = ask(client, segments(options.topic))
            known = ask(client, with_removed(options.topic, there, options.starting, options.ending))
            planned = plan(known, self._starting(client, known), self._ending(client, known), tail=options.include_tail)
            files = list_files(client, options.topic) if planned.files else []
            found = ask(client, completed(options.topic, files, planned.files))
        if isinstance(options.starting, Mapping):
            self.lose([lost(rows) for rows in found.gone])
        tail = (*found.unlisted, *planned.tail)
        work = divided(found.files, tail, options.max_bytes_per_partition, options.min_partitions)
        return [TopicPartition(each, facts) for each in work or [Work()]]

    def _starting(self, client: Client, known: Sequence[Mapping[str, Any]]) -> Mapping[int, int] | None:
        bound = self.options.starting
        if isinstance(bound, datetime):
            return ask(client, by_segment(self.options.topic, known, bound))
        if not isinstance(bound, Mapping):
            return None
        plan(known, bound)  # raises for what is not there
        there = segments_of(known)
        self.lose([Loss(n, offset, there[n].start) for n, offset in bound.items() if offset < there[n].start])
        return starts(there, initial(there, bound))

    def _ending(self, client: Client, known: Sequence[Mapping[str, Any]]) -> Mapping[int, int] | None:
        bound = self.options.ending
        return None if isinstance(bound, str) else ask(client, by_segment(self.options.topic, known, bound))


def list_files(client: Client, topic: str, segment: int | None = None, after: str | None = None) -> list[TopicFile]:
    """Returns the files of a topic, or of a segment behind a file."""
    return ask(client, topic_files(topic, segment, after))


def ask(client: Client, steps: Steps[T]) -> T:
    """Returns what brokers answer, waiting for one up to the client's timeout: a query survives a broker's restart."""
    answer: T = client._run(patiently(steps, client._patience(client._timeout_s)))
    return answer


def lost(rows: Rows) -> Loss:
    """Returns rows as a loss."""
    return Loss(rows.segment, rows.start, rows.end)


def segments_of(known: Sequence[Mapping[str, Any]], tail: bool = True) -> Known:
    """Returns the segments of a map; without their tails, they end where their files do."""
    ends = "end_offset" if tail else "flushed_offset"
    return {
        each["id"]: Segment(
            each["id"],
            each["start_offset"],
            each[ends],
            each["state"] != "open",
            tuple(each["predecessors"]),
            tuple(each["successors"]),
        )
        for each in known
    }
