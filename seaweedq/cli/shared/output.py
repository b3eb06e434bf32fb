"""The output of a command, as `-o` asks for it: a table for a person, a wide one, or JSON for a program.

JSON is one object a line. A table that is printed to a terminal has its width: names and values are cut in the middle,
numbers never. Neither is cut if stdout is no terminal, or in a wide table, which may have more columns. A list
without entries says so on stderr.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seaweedq.cli.shared.common import printable, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TABLE, WIDE, JSON = FORMATS = ("table", "wide", "json")
GAP = "  "
FEWEST = 8  # characters of a cell that is cut
_CUT = "…"
UNCUT = 100_000  # columns if stdout is no terminal
_OF_MESSAGES = "json (one object per line), or table or wide (one line per message)."
_BARS = "▁▂▃▄▅▆▇█"


def _known(formats: Sequence[str], text: str | None) -> str | None:
    if text is not None and text not in formats:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(formats)}")
    return text


def output_option(
    formats: Sequence[str] = FORMATS, about: str = "table, wide (all columns, not truncated) or json."
) -> Any:
    """Returns the option `-o` of a command that has these formats."""
    check: Callable[[str | None], str | None] = partial(_known, formats)
    return typer.Option("--output", "-o", metavar="|".join(formats), callback=lambda value: check(value), help=about)


Output = Annotated[str, output_option()]
MessageOutput = Annotated[str, output_option((JSON, TABLE, WIDE), _OF_MESSAGES)]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: numbers are on the right and never cut; a wide one is in wide tables alone."""

    name: str
    number: bool = False
    wide: bool = False


def columns(names: str, numbers: str = "", wide: str = "") -> tuple[Column, ...]:
    """Returns columns whose names are separated by commas; `numbers` and `wide` name some of them."""
    right, more = (set(some.split(", ")) for some in (numbers, wide))
    return tuple(Column(name, name in right, name in more) for name in names.split(", "))


def say_json(found: object) -> None:
    """Prints an object as a line of JSON."""
    import msgspec

    say(printable(msgspec.json.encode(found).decode()))


def say_done(output: str, text: str, /, **facts: Any) -> None:
    """Prints a command's success: a sentence, or its facts as JSON."""
    if output == JSON:
        say_json(facts)
    else:
        say(printable(text))


def say_table(output: str, head: Sequence[Column], rows: Iterable[Sequence[str]], none: str = "") -> None:
    """Prints a table, wide or not; without rows it prints `none` to stderr, if that says something."""
    found = list(rows)
    if not found and none:
        typer.echo(none, err=True)
        return
    first, *others = layout(head, found, None if output == WIDE else terminal_width(), output == WIDE)
    if first.strip():
        typer.secho(first, bold=True)
    for line in others:
        say(line)


def say_page(facts: Iterable[tuple[str, str]]) -> None:
    """Prints names with their values, a line each, nothing cut."""
    found = list(facts)
    room = max((len(name) for name, _ in found), default=0)
    for name, value in found:
        say(f"{name:<{room}}{GAP}{printable(value)}".rstrip())


def message_line(message: bytes, output: str) -> bytes:
    """Returns the line of a message that is JSON: as it is, or with its id, time, key and value; a wide one has its
    headers, too."""
    if output == JSON:
        return message
    import msgspec

    found = msgspec.json.decode(message)
    texts = [str(found.get(name) or "-") for name in ("id", "timestamp", "key")]
    names = ("value", *(("headers",) if output == WIDE else ()))
    rest = [msgspec.json.encode(found.get(name)).decode() for name in names]
    line = printable(GAP.join((*texts, *rest)))
    width = None if output == WIDE else terminal_width()
    return (line if width is None else cut(line, width)).encode()


def terminal_width() -> int | None:
    """Returns the columns of the terminal; None if stdout is none, and nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def sparkline(values: Sequence[float]) -> str:
    """Returns a bar for each value, the highest one full."""
    most = max(values, default=0) or 1
    return "".join(_BARS[min(7, int(value / most * 7.99))] for value in values)


def drawing() -> "Console":
    """Returns a console for the pictures of live commands; if stdout is no terminal, it cuts nothing."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = UNCUT
    return console


def with_whole_numbers(table: "Table") -> "Table":
    """Returns a table of a picture whose columns on the right are never cut."""
    for column in table.columns:
        if column.justify == "right":
            column.min_width = max(_wide(str(cell)) for cell in (column.header, *column.cells))
    return table


def layout(head: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, wide: bool = False) -> list[str]:
    """Returns the lines of a table, its names first. If `width` has less room than the widest rows, the widest cells
    that are no numbers are cut, as far as FEWEST."""
    kept = [number for number, column in enumerate(head) if wide or not column.wide]
    shown = [head[number] for number in kept]
    cells = [[printable(row[number]) for number in kept] for row in rows]
    lines = [[printable(column.name) for column in shown], *cells]
    room = [max(_wide(line[number]) for line in lines) for number in range(len(shown))]
    if width is not None:
        room = _shrunk(room, shown, width - len(GAP) * (len(shown) - 1))
    return [_line(line, shown, room).rstrip() for line in lines]


def _shrunk(room: list[int], shown: Sequence[Column], width: int) -> list[int]:
    """Returns the widths of columns that fit into a width, if those of texts can give so much."""
    least = [
        n if column.number else min(n, max(FEWEST, len(column.name))) for n, column in zip(room, shown, strict=True)
    ]
    room = list(room)
    while (over := sum(room) - width) > 0:
        widest = max((n for n, fewest in zip(room, least, strict=True) if n > fewest), default=0)
        if not widest:
            break
        most = [place for place, n in enumerate(room) if n == widest and n > least[place]]
        below = max((n for n in room if n < widest), default=0)
        for place in most:
            room[place] = max(least[place], below, widest - -(-over // len(most)))
    return room


def _line(cells: Sequence[str], shown: Sequence[Column], room: Sequence[int]) -> str:
    return GAP.join(
        " " * (n - _wide(text)) + text if column.number else cut(text, n) + " " * (n - _wide(cut(text, n)))
        for text, column, n in zip(cells, shown, room, strict=True)
    )


def cut(text: str, room: int) -> str:
    """Returns a text that is as wide as its room at most; one that is wider lacks its middle."""
    if _wide(text) <= room:
        return text
    tail = room // 3
    begin, end = _begin(text, room - 1 - tail), _begin(text[::-1], tail)[::-1]
    return f"{begin}{_CUT}{end}"


def _begin(text: str, room: int) -> str:
    """Returns as much of a text's beginning as its room has."""
    if text.isascii():
        return text[:room]
    from rich.cells import cell_len

    taken = 0
    for number, letter in enumerate(text):
        taken += cell_len(letter)
        if taken > room:
            return text[:number]
    return text


def _wide(text: str) -> int:
    """Returns the columns of a terminal that a text takes: letters of some scripts take two, accents none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
