"""Reads a topic in a session of Spark Connect, whose server it starts, and writes it into the topic `{TOPIC}-written`:
`URL TOPIC STORE FOLDER`. Prints JSON."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any


def main(url: str, topic: str, store: str, scratch: str) -> dict[str, Any]:
    """Returns the values of each way to read, and the kind of the session."""
    warnings.simplefilter("ignore")
    from pyspark.sql import SparkSession

    from seaweedq.spark import read_topic, register, topic_table

    options = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }
    spark = SparkSession.builder.remote("local[1]").config(map=options).getOrCreate()
    found: dict[str, Any] = {"session": type(spark).__module__}
    found["driver"] = values(read_topic(spark, topic, url))
    topic_table.DRIVER_BYTES = 0
    found["executors"] = values(read_topic(spark, topic, url))
    found["store"] = values(read_topic(spark, topic, tail="skip", store=store))
    register(spark)
    found["source"] = values(spark.read.format("seaweedq").options(url=url, topic=topic).load())
    found["stream"] = streamed(spark, url, topic, Path(scratch))
    found["written"] = written(spark, url, topic, f"{topic}-written")
    spark.stop()
    return found


def values(frame: Any) -> list[int]:
    """The sorted values of rows."""
    return sorted(int(row.value) for row in frame.select("value").collect())


def streamed(spark: Any, url: str, topic: str, scratch: Path) -> list[int]:
    """The sorted values of a stream to files, up to now."""
    options = {"url": url, "topic": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("seaweedq").options(**options).load().select("value")
    out = str(scratch / "out")
    writer = rows.writeStream.format("parquet").option("path", out).option("checkpointLocation", f"{out}-checkpoint")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120), "the stream ends"
    return values(spark.read.parquet(out))


def written(spark: Any, url: str, topic: str, into: str) -> list[int]:
    """The sorted values of a topic that a batch was written into."""
    source = spark.read.format("seaweedq").options(url=url)
    rows = source.option("topic", topic).load().select("_key", "value")
    rows.write.format("seaweedq").options(url=url, topic=into).mode("append").save()
    return values(source.option("topic", into).load())


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
