"""The command line: its commands and their exit codes. A command's module is imported when the command is called. Until
then the command is only listed, so that help and other commands start quickly.

`seaweedq help` shows a manual page (Markdown in the folder `pages`), the list of pages, or a command's help."""

import gc
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

import seaweedq
from seaweedq.cli.shared.common import complain, one_line, say
from seaweedq.cli.shared.process import ending_quietly, open_streams, raise_when_loaded
from seaweedq.cli.shared.usage import complain_of_usage, in_plain_words, naming_options
from seaweedq.errors import MissingExtra, SeaweedqError
from seaweedq.extras import needs


class _Command(NamedTuple):
    """A command that is not loaded yet: its module, its name there (a function, or the Typer app of its subcommands),
    its line in the list of commands, and the name of its epilog. `cut_off` is its exit code if the reader of its output
    closes the pipe: not 0 if the exit code means more than "everything was printed"."""

    module: str
    attribute: str
    about: str
    epilog: str = "EXAMPLES"
    cut_off: int = 0


PANELS = {
    "Start here": {
        "serve": _Command("server.serve", "serve", "Run a broker."),
        "demo": _Command("demo", "demo", "Show a ten-second demo: publish, split, kill, recover, query.", cut_off=1),
        "help": _Command("main", "manual", "Show a page of the manual, or a command's help.", "MANUAL"),
    },
    "Brokers": {
        "cluster": _Command("cluster", "app", "Show the brokers; upgrade the format level; rebuild coordination."),
        "journal": _Command("journal", "app", "Accept the loss of messages in a dead broker's journal."),
        "doctor": _Command("doctor", "doctor", "Check this machine and running brokers.", cut_off=1),
        "debug": _Command("debug", "app", "Collect diagnostics to share when you ask for help."),
        "bench": _Command("bench", "bench", "Measure how fast brokers accept and deliver messages."),
    },
    "Topics": {
        "topic": _Command("topic.topic", "app", "Create, change, show and delete topics; change their segments."),
        "schema": _Command("schema", "app", "Show, compare, check and evolve a typed topic's schema."),
        "top": _Command("top", "top", "Show the busiest topics and segments, live."),
        "subscription": _Command("subscription", "app", "Create, show, watch, seek, pause and delete subscriptions."),
        "dead-letters": _Command("dead_letters", "app", "List dead letters, or republish them."),
    },
    "Messages": {
        "publish": _Command("publish", "publish", "Publish records from a file or stdin, or whole files.", cut_off=1),
        "pull": _Command("pull", "pull", "Print a subscription's messages, and ack them."),
        "sql": _Command("sql", "sql", "Run SQL over topics, including their newest messages."),
        "import": _Command("import_file", "import_file", "Publish every row of a file, or none."),
        "verify": _Command("verify", "verify", "Audit a topic's files.", cut_off=1),
        "spark": _Command("spark", "app", "Run a Spark job over a topic.", cut_off=1),
    },
    "Access": {
        "principal": _Command("access", "principals", "Create, show, list and remove principals."),
        "token": _Command("access", "tokens", "Issue, list and revoke tokens."),
        "denial": _Command("access", "denials", "Deny JSON Web Tokens of another issuer."),
        "context": _Command("context", "app", "Save the URLs of brokers under names, and choose one."),
        "whoami": _Command("access", "whoami", "Show your own identity and permissions.", "WHOAMI"),
    },
}
LISTED = {name: listed for commands in PANELS.values() for name, listed in commands.items()}


class _Commands(TyperGroup):
    """All commands; each is a placeholder until it is called. A usage error prints one line to stderr, and exits with
    code 2."""

    def main(self, args: Sequence[str] | None = None, *_: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Runs a command."""
        named = {**more, "prog_name": "seaweedq", "standalone_mode": False}
        if not standalone_mode:
            return super().main(args, **named)
        try:
            code = super().main(args, **named)
        except typer.Abort:
            complain("aborted" if sys.stdin.isatty() else "aborted; without a terminal, confirm with --yes")
            raise SystemExit(1) from None
        except typer.TyperException as error:
            raise SystemExit(complain_of_usage(error)) from None
        raise SystemExit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if args and args[0] in LISTED:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """Loads a command. Its errors name its options. Raises MissingExtra."""
    listed = LISTED[name]
    with needs("server", f"seaweedq {name}"):
        module = import_module(f"seaweedq.cli.{listed.module}")
    gc.freeze()  # imported objects stay, and each full collection would look at them again
    gc.enable()
    raise_when_loaded()
    loaded = getattr(module, listed.attribute)
    alone = typer.Typer(add_completion=False)
    if isinstance(loaded, typer.Typer):
        alone.add_typer(loaded, name=name)
        alone.callback()(lambda: None)  # else Typer unwraps a group of one command
        return in_plain_words(naming_options(typer.main.get_group(alone).commands[name]))
    alone.command(name, epilog=getattr(module, listed.epilog))(loaded)
    return in_plain_words(naming_options(typer.main.get_command(alone)))


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for panel, commands in PANELS.items():
    for name, listed in commands.items():
        app.command(name, help=listed.about, rich_help_panel=panel)(lambda: None)


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
    """A message queue whose storage is a directory of Parquet files. Start a broker with `seaweedq serve`, see a demo
    in ten seconds with `seaweedq demo`, or read `seaweedq help`."""


MANUAL = "Examples: seaweedq help · seaweedq help topics · seaweedq help publish"
WIDE = 88


def manual(
    page: Annotated[
        list[str] | None,
        typer.Argument(help="Name of a page or of a command; by default, the command lists all pages."),
    ] = None,
) -> None:
    """Show a page of the manual, or the help of a command."""
    texts = manual_pages()
    if not page:
        say("Pages, shown by `seaweedq help PAGE`:\n")
        for name, text in texts.items():
            say(f"  {name:<15} {text.splitlines()[0].partition(': ')[2]}")
        say("\nFor a command's help: `seaweedq help COMMAND` or `seaweedq COMMAND --help`.")
    elif len(page) > 1 or page[0] not in texts:
        app(args=[*page, "--help"], prog_name="seaweedq")
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        os.environ.setdefault("LESS", "FRX")  # as git does: else `less` shows the escapes of styled text
        console = Console()
        console.width = min(console.width, WIDE)
        with console.pager(styles=True):
            console.print(Markdown(texts[page[0]]))
    else:
        say(texts[page[0]].rstrip())


def manual_pages() -> dict[str, str]:
    """Returns the manual pages as Markdown, by name."""
    from importlib.resources import files

    there = sorted(files("seaweedq.cli").joinpath("pages").iterdir(), key=lambda one: one.name)
    return {one.name.removesuffix(".md"): one.read_text("utf-8") for one in there}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command. A seaweedq error prints one line to stderr, and exits with code 1; a missing package, or an
    argument that is not text, with code 2."""
    open_streams()
    given = sys.argv[1:] if arguments is None else arguments
    for argument in given:
        is_text = not re.search("[\ud800-\udfff]", argument)  # bytes that were no UTF-8 became lone surrogates
        if not (is_text or Path(argument).exists()):
            complain(f"an argument is neither UTF-8 nor a file path: {os.fsencode(argument)!r}")
            sys.exit(2)
    called = next((LISTED[argument] for argument in given if argument in LISTED), None)
    try:
        with ending_quietly(called.cut_off if called else 0):
            in_plain_words(typer.main.get_command(app))(args=given, prog_name="seaweedq")
    except MissingExtra as error:
        complain(one_line(error))
        sys.exit(2)
    except (SeaweedqError, OSError) as error:
        complain(one_line(error), str(getattr(error, "fields", {}).get("excerpt", "")))
        sys.exit(1)
