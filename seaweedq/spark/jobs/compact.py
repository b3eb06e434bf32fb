"""The job `compact`: the newest message of each key, as a table.

The newest is the one with the largest (`segment`, `_offset`): a key's messages are in one segment at a time, and what
follows a segment has a higher number. Neither `_timestamp`, which publishers choose, nor the depth in the lineage,
which retention shortens, tells it. Another key than the topic's has no such order, as its rows lie in several segments
at once: it needs columns to order by. Rows that are alike in them are told apart by (`segment`, `_offset`).

Then the newest message decides on its key. A key whose newest message is a tombstone, has expired, or meets
`deleted_where` is left out: no older message comes back. A tombstone is a null value: on `json` topics the JSON `null`.
A message that was published by reference has no value, and is none. `bytes` topics and typed ones take no null.

Each generation is worked out of the whole topic, and not out of the one before:

- It is then a function of the topic and the options alone. Each option may change from run to run, and a tombstone need
  not be kept for a row that comes later and is older by `order_by`.
- What retention has deleted is no longer in it. A generation that grew out of the one before would keep for ever what
  the topic must not have any more.
- It costs a scan of the topic, and the sort of its rows by key, as Spark's own `max_by` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seaweedq.spark.jobs.generation_job import Added, GenerationJob, Snapshot, Target, check_columns
from seaweedq.spark.jobs.session import cause_of
from seaweedq.spark.topic_table import unexpired

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

KEY = "_key"
POSITION = ("segment", "_offset")


@dataclass(frozen=True)
class Rules:
    """The columns of the key, those by which its rows are ordered before their position, and a condition of Spark's SQL
    on the newest row that drops its key."""

    key: tuple[str, ...] = (KEY,)
    order_by: tuple[str, ...] = ()
    deleted_where: str | None = None

    def check(self, columns: Sequence[str]) -> None:
        """Raises ValueError for columns that are not there, and for a key whose rows have no order."""
        check_columns("--key", self.key, columns)
        check_columns("--order-by", self.order_by, columns)
        if self.key != (KEY,) and not self.order_by:
            raise ValueError(
                f"--key {','.join(self.key)} needs --order-by, because only rows with the same `_key` "
                "have an order without it"
            )


def compact(spark: "SparkSession", topic: str, url: str | Sequence[str], target: Target, rules: Rules) -> Added:
    """Writes the newest message of each key as the next generation of a folder. Raises as GenerationJob, and ValueError
    for SQL that cannot be resolved."""
    from pyspark.sql import Observation

    seen = Observation()
    read: list[DataFrame] = []

    def make(rows: "DataFrame", there: Snapshot) -> "DataFrame":
        read.append(rows)
        return compacted(rows, there, rules, seen)

    def without_key(written: int) -> int:
        if written:
            return int(seen.get["without_key"])
        # From a plan that yields no row Spark may drop the observation, and `get` then waits for ever.
        return read[0].where(" OR ".join(f"`{name}` IS NULL" for name in rules.key)).count()

    job = GenerationJob(spark, "compact", topic, url, target, without_key)
    return job.run(make, lambda there: rules.check(there.columns))


def compacted(rows: "DataFrame", there: Snapshot, rules: Rules, seen: "Observation | None" = None) -> "DataFrame":
    """Returns the newest row of each key. `seen` gets `without_key`, the number of rows that have none."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    def column(name: str) -> Any:
        return F.col(f"`{name}`")

    keys = [column(name).alias(f"key{at}") for at, name in enumerate(rules.key)]
    order = F.struct(*map(column, (*rules.order_by, *POSITION)))
    row = F.struct(*map(column, rows.columns))
    has_no_key = F.lit(False)
    for at in range(len(rules.key)):
        has_no_key = has_no_key | F.col(f"key{at}").isNull()
    newest = rows.groupBy(*keys).agg(F.max_by(row, order).alias("row"), F.count(F.lit(1)).alias("count"))
    if seen is not None:
        left_out = F.sum(F.when(has_no_key, F.col("count")).otherwise(0))
        newest = newest.observe(seen, left_out.alias("without_key"))
    kept = newest.where(~has_no_key).select("row.*").where(unexpired(there.as_of))
    if there.facts["format"] == "json":
        kept = kept.where("value != 'null' OR _reference IS NOT NULL")
    if rules.deleted_where is None:
        return kept
    try:
        condition = F.expr(rules.deleted_where)
        kind = kept.select(condition).schema[0].dataType.simpleString()
        if kind != "boolean":  # which Spark would cast, row by row
            raise ValueError(
                f"--deleted-where must be a condition, not {rules.deleted_where!r}, which has the type {kind}"
            )
        return kept.where(~F.coalesce(condition, F.lit(False)))
    except AnalysisException as error:
        raise ValueError(f"--deleted-where {rules.deleted_where!r}: {cause_of(error)}") from None
