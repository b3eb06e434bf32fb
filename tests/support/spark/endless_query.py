"""A query that copies a topic to files of JSON, one a batch, or into another topic, until it is killed: a process of
its own.

Run from the root of the repository: python -m tests.support.spark.endless_query URLS TOPIC FOLDER [INTO]. A batch that
comes again takes the place of the first file, in one step.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.spark.application import ALWAYS


def main(urls: str, topic: str, folder: Path, into: str | None = None) -> None:
    """Runs the query."""
    from pyspark.sql import SparkSession

    own = {"spark.local.dir": str(folder / "scratch"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = SparkSession.builder.master("local[2]").config(map={**ALWAYS, **own}).getOrCreate()
    batches = folder / "batches"
    batches.mkdir(exist_ok=True)

    def sink(frame: Any, batch: int) -> None:
        rows = frame.select("segment", "_offset", "_key", "value").collect()
        part = batches / f"{batch}.part"
        part.write_text(json.dumps([tuple(row) for row in rows]))
        os.replace(part, batches / f"{batch}.json")

    reader = spark.readStream.format("seaweedq").options(url=urls, topic=topic, startingOffsets="earliest")
    rows = reader.option("maxOffsetsPerTrigger", "2000").load()
    if into is None:
        writer = rows.writeStream.foreachBatch(sink)
    else:
        options = {"url": urls, "topic": into, "maxFileBytes": "10000"}
        writer = rows.select("_key", "value").writeStream.format("seaweedq").options(**options)
    place = writer.option("checkpointLocation", str(folder / "checkpoint"))
    place.trigger(processingTime="200 milliseconds").start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
