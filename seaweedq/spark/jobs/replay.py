"""`replay`: the rows of a topic that a condition selects, as a stream into another topic, once.

The order: the topics and the condition are checked, then a batch looks for rows by reference, which no write takes.
Then the checkpoint gets its *mark*, which says what is replayed into what, and the stream begins. It ends at the ends
that the topic had when the stream began. Started again with its checkpoint, it goes on from there: brokers decide on a
batch that was cut off by the query's id and the batch's number (seaweedq/spark/writer).

A row by reference that was published behind the look fails its batch, of which nothing is written then.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from seaweedq.client.core.calls import call, topic_path
from seaweedq.client.sync.client import Client
from seaweedq.errors import ClientError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "seaweedq"
MARK = "replay"  # a folder of the checkpoint, beside those of Spark
BATCH_ROWS = 1_000_000
_KEPT = 100_000  # reports of batches, which have the counts
_OF_READS = ("_offset", "segment", "_reference")  # which no write takes


class BadCondition(ClientError):
    """Spark does not take the condition of a replay."""


@dataclass(frozen=True)
class Replay:
    """The rows of `topic` for which `where` is true, into the topic `into`; of the stream's checkpoint, and with rows
    by reference left out or not. `storage` are options of fsspec for files."""

    url: str
    topic: str
    into: str
    where: str
    checkpoint: str
    skip_references: bool = False
    batch_rows: int = BATCH_ROWS
    storage: Mapping[str, Any] = field(default_factory=dict)

    def read_options(self) -> dict[str, str]:
        """Returns the options of the source."""
        storage = {"storageOptions": json.dumps(self.storage)} if self.storage else {}
        return {"url": self.url, "topic": self.topic, **storage}


@dataclass(frozen=True)
class Replayed:
    """The counts of a run: rows written, rows by reference left out, batches."""

    rows: int
    references: int
    batches: int


@dataclass(frozen=True)
class _Mark:
    """The replay that a checkpoint is of: its topics, each with the time of its creation, and its condition."""

    topic: str
    created_at: str
    into: str
    into_created_at: str
    where: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r}, created at {self.created_at}, into {self.into!r}, created at "
            f"{self.into_created_at}, where {self.where}"
        )


def replay(spark: "SparkSession", asked: Replay) -> Replayed:
    """Replays all that there is now and was not replayed before with this checkpoint.

    Raises BadCondition, TopicNotFound, ClientError for rows by reference, for topics of which one is the other, and for
    a checkpoint of another replay, and the errors of Spark.
    """
    if asked.topic == asked.into:
        raise ClientError(f"a replay of {asked.topic!r} into itself would never end; choose another topic")
    with Client(asked.url) as client:
        facts, target = (client.run(call("GET", topic_path(name))) for name in (asked.topic, asked.into))
    mark = _Mark(asked.topic, facts["created_at"], asked.into, target["created_at"], asked.where)
    options = {**asked.read_options(), "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(asked.batch_rows)}
    rows = _selected(spark.readStream.format(FORMAT).options(**options).load(), asked.where)
    if not asked.skip_references:
        _refuse_references(spark, asked)
    _set_mark(spark, asked.checkpoint, mark)
    return _streamed(spark, asked, rows)


def _selected(frame: "DataFrame", where: str) -> "DataFrame":
    from pyspark.errors import AnalysisException, ParseException

    try:
        return frame.where(where)
    except (AnalysisException, ParseException) as error:
        raise BadCondition(str(error)) from error


def _refuse_references(spark: "SparkSession", asked: Replay) -> None:
    """Raises ClientError if a row to replay is one by reference. Most topics have none, which one column tells."""
    options = asked.read_options()
    reader = spark.read.format(FORMAT).options(**options)
    if not reader.option("columns", "_reference").load().where("_reference IS NOT NULL").limit(1).count():
        return
    rows = spark.read.format(FORMAT).options(**options).load().where(asked.where).where("_reference IS NOT NULL")
    if count := rows.count():
        raise ClientError(
            f"{count:,} of the rows to replay have a payload by reference, which a replay cannot "
            "write; nothing was written. To leave these rows out, use --skip-references"
        )


def _set_mark(spark: "SparkSession", checkpoint: str, mark: _Mark) -> None:
    """Marks a new checkpoint. Raises ClientError for one of another replay, or of another query."""
    folder = checkpoint.rstrip("/")
    place = f"{folder}/{MARK}"
    found = _lines(spark, place)
    if not found and _lines(spark, f"{folder}/metadata"):
        raise ClientError(f"the folder {checkpoint} is the checkpoint of another query; choose another folder")
    if not found:
        line = spark.createDataFrame([(json.dumps(asdict(mark)),)], "value string")
        line.coalesce(1).write.mode("overwrite").text(place)
    elif (before := _Mark(**json.loads(found[0]))) != mark:
        raise ClientError(
            f"the checkpoint {checkpoint} belongs to another replay, {before}, and not to this "
            f"replay, {mark}; choose another folder"
        )


def _lines(spark: "SparkSession", place: str) -> list[str]:
    """Returns the lines of a text file, or of all in a folder; none if it does not exist."""
    from pyspark.errors import AnalysisException

    try:
        return [row.value for row in spark.read.text(place).collect()]
    except AnalysisException:
        return []


def _streamed(spark: "SparkSession", asked: Replay, rows: "DataFrame") -> Replayed:
    from pyspark.sql.functions import count_if, expr

    refused = (
        "raise_error('a row with a payload by reference was published in the meantime; use --skip-references to "
        "leave such rows out')"
    )
    kept = "_reference IS NULL" if asked.skip_references else f"_reference IS NULL OR {refused}"
    counted = rows.observe(
        "replay",
        count_if(expr("_reference IS NULL")).alias("rows"),
        count_if(expr("_reference IS NOT NULL")).alias("references"),
    )
    writer = counted.where(kept).drop(*_OF_READS).writeStream.format(FORMAT)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(_KEPT))
    writer = writer.options(url=asked.url, topic=asked.into).option("checkpointLocation", asked.checkpoint)
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    found = [row for each in query.recentProgress if (row := each.observedMetrics.get("replay"))]
    return Replayed(sum(row["rows"] for row in found), sum(row["references"] for row in found), len(found))
