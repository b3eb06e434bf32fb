"""A write whose first attempt of a task waits until Spark has begun another one beside it: both end at about the same
time.

Run from the root of the repository: python -m tests.support.spark.speculation URL TOPIC MASTER FOLDER. In FOLDER each
attempt leaves a file.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.spark.application import ALWAYS

ROWS, TASKS, WITHIN_S = 4000, 6, 120.0
CONFIG = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}


def main(url: str, topic: str, master: str, folder: Path) -> None:
    """Writes numbers."""
    from pyspark.sql import SparkSession

    own = {"spark.local.dir": str(folder / "scratch"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    spark = SparkSession.builder.master(master).config(map={**ALWAYS, **CONFIG, **own}).getOrCreate()
    attempts = str(folder / "attempts")
    Path(attempts).mkdir()

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        (Path(attempts) / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        yield from batches
        end = time.monotonic() + WITHIN_S
        while (context.partitionId(), context.attemptNumber()) == (0, 0) and time.monotonic() < end:
            if (Path(attempts) / "0-1").exists():
                break
            time.sleep(0.01)

    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("cast(id as string) value").mapInArrow(slow, "value string")
    rows.write.format("seaweedq").options(url=url, topic=topic, maxFileBytes="1").mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
