"""The command line: its commands and their exit codes. Each command imports what it needs when it runs."""

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import seaweedq
from seaweedq.cli.access import principal, token
from seaweedq.cli.cluster import cluster
from seaweedq.cli.data import import_file, publish, pull
from seaweedq.cli.demo import bench, demo
from seaweedq.cli.letters import dead_letters
from seaweedq.cli.shared.common import complain, one_line
from seaweedq.cli.subscription import subscription
from seaweedq.cli.topic import topic
from seaweedq.cli.verify import verify
from seaweedq.errors import SeaweedqError

# Brokers import what no other command needs: these are loaded when they are called, and until then only listed.
_LOADED = {"serve": ("seaweedq.cli.server.serve", "Run a broker.")}


class _Commands(TyperGroup):
    """All commands; those of _LOADED are placeholders until one of them is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in _LOADED:
            self.commands[args[0]] = _load(args[0])
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    gc.disable()  # imported objects stay: collecting them again and again takes a sixth of a start
    module = import_module(_LOADED[name][0])
    gc.freeze()  # and each full collection would take 24 ms more
    gc.enable()
    alone = typer.Typer(add_completion=False)
    alone.command(name, epilog=module.EXAMPLES)(getattr(module, name))
    return typer.main.get_command(alone)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with: seaweedq serve    or watch everything work: seaweedq demo",
)
for name, (_, about) in _LOADED.items():
    app.command(name, help=about)(lambda: None)
app.add_typer(topic.app, name="topic")
app.add_typer(subscription.app, name="subscription")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(cluster.app, name="cluster")
app.add_typer(principal.app, name="principal")
app.add_typer(token.app, name="token")
app.command(epilog=token.WHOAMI)(token.whoami)
app.command(epilog=publish.EXAMPLES)(publish.publish)
app.command("import", epilog=import_file.EXAMPLES)(import_file.import_file)
app.command(epilog=pull.EXAMPLES)(pull.pull)
app.command(epilog=bench.EXAMPLES)(bench.bench)
app.command(epilog=verify.EXAMPLES)(verify.verify)
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
    """Runs a command. An error of the queue prints one line to stderr, and exits with code 1."""
    try:
        app(args=arguments, prog_name="seaweedq")
    except (SeaweedqError, OSError) as error:
        complain(one_line(error))
        sys.exit(1)
