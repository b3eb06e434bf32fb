"""The job `export`: a copy of a topic as tables of Parquet files, to which each run adds what is new.

A generation has all folders of the one before, and its own. So each message is in it once, whatever was split, merged
or flushed between two runs, and whichever of them died.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from seaweedq.spark.jobs.generation_job import Added, GenerationJob, Snapshot, Target
from seaweedq.spark.topic_table import unexpired

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def export(
    spark: "SparkSession", topic: str, url: str | Sequence[str], target: Target, skip_lost: bool = False
) -> Added:
    """Adds what a topic has got since the last generation of a folder.

    With `skip_lost` it goes on behind rows that retention took before they were exported, which `Added.lost` names;
    without it they are a failure. Raises as GenerationJob.
    """

    def make(rows: "DataFrame", there: Snapshot) -> "DataFrame":
        return rows.where(unexpired(there.as_of))

    return GenerationJob(spark, "export", topic, url, target).run(make, lambda there: None, skip_lost)
