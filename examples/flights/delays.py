"""The Spark job: joins flights with weather and aircraft as they come, and writes delays by airport and hour into the
topic `delays`; from there into Parquet.

    pip install '.[demo]'
    python examples/flights/delays.py FOLDER    # needs a broker that feed.py has given topics, and Java 17 or newer

FOLDER gets checkpoints and Parquet. Stop the job at any time, and start it again on the same folder: it goes on from
its checkpoint, and each row is there once.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable  # Spark's workers need seaweedq, too

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from seaweedq.spark import read_topic

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
LATE = "2 hours"  # how far behind the newest row of its topic a row may come; an hour is written when that has passed
EVERY = "1 second"
COLUMNS = ("origin", "hour", "flights", "minutes", "seat_minutes", "visibility")


def delays_by_hour(flights: DataFrame, weather: DataFrame, planes: DataFrame) -> DataFrame:
    """Returns a row for each airport and hour. Streams and tables have the same result; of streams an hour comes once
    it is complete."""
    left = flights.withWatermark("departed", LATE).withColumn("window", F.window("departed", "1 hour"))
    seen = weather.withWatermark("observed", LATE).withColumn("window", F.window("observed", "1 hour"))
    seen = seen.select("origin", "window", "visibility")  # no row if an observation is missing: hence left_outer
    seats = F.broadcast(planes.select("tailnum", "seats").dropDuplicates(["tailnum"]))
    joined = left.join(seen, ["origin", "window"], "left_outer").join(seats, "tailnum", "left_outer")
    by_hour = joined.groupBy("origin", "window").agg(
        F.count("*").alias("flights"),
        F.sum("delay").cast("long").alias("minutes"),
        F.sum(F.greatest("delay", F.lit(0)) * F.col("seats")).cast("long").alias("seat_minutes"),
        F.max("visibility").alias("visibility"),
    )
    return by_hour.withColumn("hour", F.col("window.start")).select(*COLUMNS)


def start(spark: SparkSession, url: str, folder: Path, *, is_last: bool = False) -> StreamingQuery:
    """Starts the query on its checkpoint; the last one ends by itself when it has read all that there is now."""

    def stream(topic: str) -> DataFrame:
        return spark.readStream.format("seaweedq").options(url=url, topic=topic, startingOffsets="earliest").load()

    rows = delays_by_hour(stream("flights"), stream("weather"), read_topic(spark, "planes", url))
    writer = rows.writeStream.format("seaweedq").options(url=url, topic="delays").outputMode("append")
    trigger = {"availableNow": True} if is_last else {"processingTime": EVERY}
    return writer.option("checkpointLocation", str(folder / "delays-checkpoint")).trigger(**trigger).start()


def archive(spark: SparkSession, url: str, folder: Path) -> StreamingQuery:
    """Starts to add what is new in `delays` to the Parquet files; ends by itself. Run it as often as you like."""
    rows = spark.readStream.format("seaweedq").options(url=url, topic="delays", startingOffsets="earliest").load()
    writer = rows.select(*COLUMNS).writeStream.format("parquet").partitionBy("origin")
    places = {"path": str(folder / "delays.parquet"), "checkpointLocation": str(folder / "archive-checkpoint")}
    return writer.options(**places).trigger(availableNow=True).start()


def require_java() -> None:
    """Ends the program if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java", path=f"{home}/bin" if home else None):
        sys.exit("Spark needs Java 17 or newer, and no java was found: install it, or set JAVA_HOME")


def session() -> SparkSession:
    """Returns a small local session."""
    require_java()
    config = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # it lives for minutes
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",  # of each, streams keep five stores of state
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master("local[2]").appName("delays").config(map=config).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    """Runs until Ctrl-C; then adds to the Parquet files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of checkpoints and Parquet files")
    folder, spark = parser.parse_args().folder, session()
    query = start(spark, URL, folder)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        archive(spark, URL, folder).awaitTermination()


if __name__ == "__main__":
    main()
