"""The demo's readers: Spark and DuckDB over a topic's bare directory. Neither knows of the queue."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from seaweedq.extras import install_command

_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}


_LEAST_JAVA = 17


@dataclass(frozen=True)
class Reading:
    """The result of a reader: rows, and the mean arr_delay by carrier."""

    rows: int
    delays: dict[str, float]


def missing_for_spark() -> str:
    """Returns what Spark lacks here; empty if it can run."""
    java = _java_version()
    if java < _LEAST_JAVA:
        return f"it needs Java {_LEAST_JAVA} or newer, and {f'this is Java {java}' if java else 'no Java was found'}"
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return f"pyspark is not installed ({install_command('spark')})"
    return ""


def _java_version() -> int:
    """Returns the major version of the Java that pyspark would use; 0 for none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return 0
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def with_spark(directory: str, scratch: Path) -> Reading:
    """Reads the directory with Spark; its own files and its output are below `scratch`."""
    from pyspark.sql import SparkSession

    with _quiet(scratch / "spark.log"):
        builder = SparkSession.builder.master("local[2]").appName("seaweedq demo")
        for name, value in {**_LOCAL, "spark.sql.warehouse.dir": str(scratch / "warehouse")}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            spark.sparkContext.setLogLevel("ERROR")
            flights = spark.read.parquet(directory)
            delays = flights.groupBy("carrier").avg("arr_delay").collect()
            return Reading(flights.count(), {row[0]: row[1] for row in delays if row[1] is not None})
        finally:
            spark.stop()
            _end_java()


def _end_java() -> None:
    # pyspark leaves its JVM running for the next session; this process has none.
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(20)
    SparkContext._gateway = SparkContext._jvm = None


def with_duckdb(directory: str) -> Reading:
    """Reads the directory with DuckDB."""
    import duckdb

    files = f"{directory}/**/*.parquet".replace("'", "''")
    source = f"read_parquet('{files}', hive_partitioning = true)"
    with duckdb.connect() as database:
        count = database.execute(f"SELECT count(*) FROM {source}").fetchone()
        delays = database.execute(f"SELECT carrier, avg(arr_delay) FROM {source} GROUP BY carrier").fetchall()
    return Reading(count[0] if count else 0, {carrier: mean for carrier, mean in delays if mean is not None})


@contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """Redirects the stderr of this process and its children to a file: the JVM prints warnings before any setting can
    stop it."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
