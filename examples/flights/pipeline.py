"""All of it in three minutes: a broker in a temporary folder, the feed, and the Spark job, which is stopped on the way
and started again, while the topic splits. Then a batch query checks the result, and a picture shows it.

    pip install '.[demo]'    # and Java 17 or newer
    python examples/flights/pipeline.py --speed 720 --picture flights.png
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from seaweedq import Client

try:
    import delays
    import feed
    import plots
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from seaweedq.spark import read_topic
except ModuleNotFoundError as error:
    sys.exit(f"the package {str(error.name).partition('.')[0]} is missing: pip install '.[demo]'")


@dataclass(frozen=True)
class Run:
    """A run that is over: the progress of the query, and the real times from when to when it was stopped."""

    clock: feed.Clock
    progress: list[dict[str, Any]]
    stopped: tuple[datetime, datetime]

    @property
    def watermark(self) -> datetime:
        """The hours that end by then are complete, and in the topic."""
        return datetime.fromisoformat(self.progress[-1]["eventTime"]["watermark"])

    @property
    def too_late(self) -> int:
        """Rows that came behind the watermark, which Spark drops."""
        return sum(each["numRowsDroppedByWatermark"] for one in self.progress for each in one["stateOperators"])

    def agrees(self, found: Mapping[str, Counter[Any]]) -> bool:
        """Tells whether the stream has dropped no row, and has what a batch query has, each row once."""
        return not self.too_late and found["topic"] == found["Parquet"] == found["batch"]


def run(spark: SparkSession, url: str, folder: Path, happened: Sequence[feed.Event], speed: float) -> Run:
    """Feeds all events while the query runs, but for a while, and returns once it has read them."""
    first, length = happened[0].at, happened[-1].at - happened[0].at

    def part(start: float, end: float) -> list[feed.Event]:
        return [event for event in happened if first + start * length < event.at <= first + end * length]

    with Client(url) as client:
        feed.create(client)
        query = delays.start(spark, url, folder)
        at_once = [event for event in happened if event.at == first]
        feed.publish(client, at_once, feed.Clock(first, datetime.now(UTC), speed))
        while not query.lastProgress:  # the first batch takes long, as all of Spark is new
            query.awaitTermination(0.1)  # raises the query's error
        clock = feed.Clock(first, datetime.now(UTC), speed)
        feed.publish(client, part(0, 0.3), clock)
        split(client, url)
        feed.publish(client, part(0.3, 0.5), clock)
        progress, stopped = stop(query), datetime.now(UTC)
        archive = delays.archive(spark, url, folder)
        feed.publish(client, part(0.5, 0.6), clock)
        archive.awaitTermination()
        query, again = delays.start(spark, url, folder), datetime.now(UTC)
        feed.publish(client, part(0.6, 0.8), clock)
        split(client, url)
        feed.publish(client, part(0.8, 1), clock)
        progress += stop(query)
        query = delays.start(spark, url, folder, is_last=True)
        query.awaitTermination()
        progress += stop(query)
        delays.archive(spark, url, folder).awaitTermination()
    return Run(clock, progress, (stopped, again))


def stop(query: StreamingQuery) -> list[dict[str, Any]]:
    """Stops a query, in whatever it does, and returns its progress. Raises its error if it has failed."""
    query.stop()
    if failure := query.exception():
        raise failure
    return list(query.recentProgress)


def split(client: Client, url: str) -> None:
    """Splits each segment of `flights` in two, as a broker does by itself with those that have much to do."""
    for segment in client.segments("flights"):
        if segment["state"] == "open":
            path = f"{url}/v1/topics/flights/segments/{segment['id']}/split"
            httpx.post(path, json={"parts": 2}, timeout=30, trust_env=False).raise_for_status()


def results(spark: SparkSession, url: str, folder: Path, watermark: datetime) -> Mapping[str, Counter[Any]]:
    """Returns the rows of the topic, those in Parquet, and those of a batch query over what the feed has published."""
    batch = delays.delays_by_hour(*(read_topic(spark, topic, url) for topic in ("flights", "weather", "planes")))
    frames = {
        "topic": read_topic(spark, "delays", url),
        "Parquet": spark.read.parquet(str(folder / "delays.parquet")),
        "batch": batch.where(batch["hour"] <= watermark - timedelta(hours=1)),
    }
    return {name: Counter(map(tuple, frame.select(*delays.COLUMNS).collect())) for name, frame in frames.items()}


def report(done: Run, url: str, found: Mapping[str, Counter[Any]], picture: Path) -> None:
    """Prints what happened, and draws it."""
    with Client(url) as client:
        segments = client.segments("flights")
        rows = client.read_table("delays", live=True).to_pylist()
    splits = sorted(datetime.fromisoformat(each["sealed_at"]) for each in segments if each["state"] == "sealed")
    behind = plots.lags(done.progress, done.clock)
    plots.save(plots.figure(rows, behind, splits, done.stopped, done.clock), picture)
    seconds = [lag_s for _, lag_s in behind]
    down_s = (done.stopped[1] - done.stopped[0]).total_seconds()
    until = done.watermark.astimezone(feed.NEW_YORK)
    print(f"query     {len(seconds)} batches, {median(seconds):.1f} s behind in the median, {max(seconds):.1f} at most")
    print(f"stopped   for {down_s:.1f} s on the way, and started again on its checkpoint")
    print(f"splits    {len(splits)}, while flights came in: {len(segments) - len(splits)} segments now")
    print(f"complete  up to {until:%-d %B %Y, %H:%M} in New York; rows that came too late: {done.too_late}")
    print(f"rows      {', '.join(f'{name} {count.total()}' for name, count in found.items())}")
    print(f"result    {'stream, Parquet files and batch query agree' if done.agrees(found) else 'THEY DIFFER'}")
    print(f"picture   {picture.absolute()}")


@contextmanager
def broker(folder: Path, port: int) -> Iterator[str]:
    """Runs a broker on a folder, and yields its URL. Port 0 is a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            sys.exit(f"port {port}: {error.strerror}")
        port = probe.getsockname()[1]
    log, url = folder / "broker.log", f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "seaweedq", "serve", "--data-dir", str(folder / "data"), "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        while not is_ready(url):
            if process.poll() is not None:
                sys.exit(f"the broker did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    """Tells whether a broker answers."""
    try:
        return httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200
    except httpx.RequestError:
        return False


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Sends what Spark says on stderr to a file, also that of its other processes."""
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception:
        os.write(kept, log.read_bytes()[-5000:])
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def main() -> None:
    """Runs all of it. The exit code is 1 if the results differ."""
    parser = feed.arguments(__doc__)
    parser.add_argument("--port", type=int, default=0, help="port of the broker; by default a free one")
    parser.add_argument("--picture", type=Path, default=Path("flights.png"), help="file of the picture")
    given, happened = feed.chosen(parser)
    delays.require_java()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that the broker ends, too
    with TemporaryDirectory(prefix="seaweedq-flights-") as scratch, broker(Path(scratch), given.port) as url:
        print(f"broker    {url}, in {scratch}")
        with stderr_to(Path(scratch) / "spark.log"):
            spark = delays.session()
            feed_s = given.hours * 3600 / given.speed
            print(f"feed      {len(happened):,} flights and observations of {given.hours:g} hours, in {feed_s:.0f} s")
            done = run(spark, url, Path(scratch), happened, given.speed)
            found = results(spark, url, Path(scratch), done.watermark)
            report(done, url, found, given.picture)
            spark.stop()
    sys.exit(not done.agrees(found))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
