"""`seaweedq help`: shows a page, the list of pages, or the help of a command. A page is Markdown beside this module."""

import os
import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

import typer

from seaweedq.cli.shared.common import say

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

EXAMPLES = "Examples: seaweedq help · seaweedq help topics · seaweedq help publish"
WIDE = 88


def manual(
    page: Annotated[list[str] | None, typer.Argument(help="A page, or a command; none: the list of pages.")] = None,
) -> None:
    """Show a page about the queue, such as `seaweedq help topics`, or the help of a command."""
    pages = found()
    if not page:
        say("Pages, each by `seaweedq help PAGE`:\n")
        for name, one in pages.items():
            say(f"  {name:<15} {_about(one)}")
        say("\nThe help of a command: `seaweedq help COMMAND`, or `seaweedq COMMAND --help`.")
        return
    if len(page) == 1 and page[0] in pages:
        _show(pages[page[0]].read_text("utf-8"))
        return
    from seaweedq.cli.main import app

    app(args=[*page, "--help"], prog_name="seaweedq")


def found() -> "dict[str, Traversable]":
    """Returns the pages by their names."""
    there = files("seaweedq.cli").joinpath("pages").iterdir()
    return {one.name.removesuffix(".md"): one for one in sorted(there, key=lambda one: one.name)}


def _about(page: "Traversable") -> str:
    return page.read_text("utf-8").splitlines()[0].partition(": ")[2]


def _show(text: str) -> None:
    """Shows Markdown, through the pager where there is a terminal."""
    if not sys.stdout.isatty():
        say(text.rstrip())
        return
    from rich.console import Console
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "FRX")  # as git does: else `less` shows the escapes of styled text
    console = Console()
    console.width = min(console.width, WIDE)
    with console.pager(styles=True):
        console.print(Markdown(text))
