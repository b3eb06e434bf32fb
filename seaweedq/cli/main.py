"""The command line: which commands there are, and how they end. Each imports what it needs when it runs."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import seaweedq
from seaweedq.cli import bench, demo, publish, pull, topic
from seaweedq.cli.common import complain, one_line
from seaweedq.errors import SeaweedqError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Begin with: seaweedq serve    or see it all work: seaweedq demo",
)
app.add_typer(topic.app, name="topic")
app.command(epilog=publish.EXAMPLES)(publish.publish)
app.command(epilog=pull.EXAMPLES)(pull.pull)
app.command(epilog=bench.EXAMPLES)(bench.bench)
app.command(epilog=demo.EXAMPLES)(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"seaweedq {seaweedq.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A message queue whose storage is a directory of Parquet files."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error of the queue is one line on stderr, and exit code 1."""
    try:
        app(args=arguments, prog_name="seaweedq")
    except (SeaweedqError, OSError) as error:
        complain(one_line(error))
        sys.exit(1)
