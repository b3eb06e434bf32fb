"""`seaweedq bench`: measures a broker's throughput and latency."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import DEFAULT_URL, Url, complain
from seaweedq.cli.shared.output import JSON, TABLE, Output, columns, say_json, say_table
from seaweedq.cli.shared.units import duration
from seaweedq.cli.shared.units import size as sized
from seaweedq.extras import needs

if TYPE_CHECKING:
    from seaweedq.cli.demo.bench_run import Figures

EXAMPLES = """Examples: seaweedq bench --embedded · seaweedq bench --messages 1000000 --size 1000 --producers 2 ·
seaweedq bench --embedded --rate 1000 --seconds 10 -o json"""

INTERRUPTED = 130
_NUMBERS = "messages, seconds, messages/s, MB/s, p50 ms, p99 ms"
_HEAD = columns(f"what, {_NUMBERS}", numbers=_NUMBERS)


def bench(
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Start a separate broker on a temporary folder.")
    ] = False,
    producers: Annotated[int, typer.Option(min=1, max=64, help="Number of threads that publish.")] = 1,
    consumers: Annotated[
        int, typer.Option(min=0, max=64, help="Number of threads that pull and ack, each with its own subscription.")
    ] = 1,
    size: Annotated[int, sized("Size of each value.", 1, 1_000_000)] = 100,
    messages: Annotated[
        int | None, typer.Option(min=1, help="End after this number of messages, over all producers.")
    ] = None,
    seconds: Annotated[float, duration("Stop publishing after this time.", 0.1)] = 10,
    rate: Annotated[float, typer.Option(min=0, help="Messages/s of each producer; 0 means as fast as possible.")] = 0,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Measure publishing, and delivery to consumers, on a topic that is deleted afterwards."""
    from seaweedq.cli.demo.bench_run import Load, run
    from seaweedq.cli.demo.child_process import Broker, end_on_signals, free_port

    load = Load(producers, consumers, size, messages, seconds, rate)
    with ExitStack() as stack:
        if embedded:
            with needs("server", "seaweedq bench --embedded"):
                import uvicorn  # noqa: F401
            end_on_signals()
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seaweedq-bench-")))
            broker = stack.enter_context(Broker(scratch / "data", free_port(), scratch / "broker.log"))
            broker.start()
            url = broker.url
        figures, interrupted = run(url, load)
    if output == JSON:
        for row in figures:
            say_json(row)
    else:
        say_table(output, _HEAD, map(_row, figures))
    if interrupted:
        complain("interrupted: these figures are of what was acknowledged before")
        raise typer.Exit(INTERRUPTED)


def _row(row: "Figures") -> tuple[str, ...]:
    return (
        row.what, f"{row.messages:,}", f"{row.seconds:.2f}", f"{row.messages_per_s:,.0f}", f"{row.mb_per_s:.1f}",
        f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}",
    )  # fmt: skip
