"""A live dashboard in the terminal: Polars over a topic's Parquet files, complete to the last acknowledged message.

pip install '.[arrow]' polars
python examples/dashboard.py --feed             # publishes visits by itself, until Ctrl-C
python examples/dashboard.py --feed --seconds 5
"""

import argparse
import os
import random
import threading
import time
from datetime import UTC, datetime, timedelta

import polars as pl
from rich.console import Console
from rich.live import Live
from rich.table import Table

from seaweedq import Client

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
TOPIC = "visits"
PAGES = ["/", "/docs", "/pricing", "/about"]
VISIT = pl.Struct({"page": pl.String, "ms": pl.Int64})


def feed(client: Client, ended: threading.Event) -> None:
    """Publishes a visit every few milliseconds."""
    with client.producer(TOPIC) as producer:
        while True:
            page = random.choices(PAGES, weights=[8, 4, 2, 1])[0]
            producer.send({"page": page, "ms": int(random.expovariate(1 / 40))}, key=page)
            if ended.wait(0.005):
                return


def pages(client: Client, window_s: float) -> pl.DataFrame:
    """Returns visits and times by page, of the last seconds."""
    since = datetime.now(UTC) - timedelta(seconds=window_s)
    rows = pl.from_arrow(client.read_table(TOPIC, columns=["value"], live=True, starting=since))
    visits = rows.select(pl.col("value").str.json_decode(VISIT)).unnest("value")
    times = [pl.len().alias("visits"), pl.col("ms").median().alias("p50"), pl.col("ms").quantile(0.99).alias("p99")]
    return visits.group_by("page").agg(times).sort("visits", descending=True)


def picture(found: pl.DataFrame, window_s: float) -> Table:
    """Draws a line for each page, with a bar."""
    table = Table("page", "visits", "p50 ms", "p99 ms", "", title=f"{TOPIC}, the last {window_s:g} s")
    most = max(found["visits"], default=1)
    for page, visits, p50, p99 in found.iter_rows():
        table.add_row(page, f"{visits:,}", f"{p50:.0f}", f"{p99:.0f}", "█" * (30 * visits // most))
    return table


def main() -> None:
    """Shows the dashboard, twice a second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--feed", action="store_true", help="publish visits, too")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--window", type=float, default=60, help="seconds that are shown")
    given, ended, began = parser.parse_args(), threading.Event(), time.monotonic()
    with Client(URL) as client, Live(console=Console()) as live:
        client.create_topic(TOPIC)
        feeder = threading.Thread(target=feed, args=(client, ended), daemon=True)
        if given.feed:
            feeder.start()
        while time.monotonic() < began + given.seconds:
            live.update(picture(pages(client, given.window), given.window))
            time.sleep(0.5)
        ended.set()
        if given.feed:
            feeder.join()
        live.update(picture(pages(client, given.window), given.window))


if __name__ == "__main__":
    main()
