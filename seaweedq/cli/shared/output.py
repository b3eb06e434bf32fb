"""The output of a command in the format that `-o` names: a table for people, a wide table, or JSON for programs.

JSON has one object per line. On a terminal, a table fits the width: long names and values lose their middle, numbers
never do. Nothing is shortened if stdout is not a terminal, or in a wide table, which may have more columns. An empty
list prints a note to stderr."""

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
        raise typer.BadParameter(f"the format must be one of {', '.join(formats)}, not {text!r}")
    return text


def output_option(
    formats: Sequence[str] = FORMATS, about: str = "table, wide (all columns, not truncated) or json."
) -> Any:
    """Returns the option `-o` with these formats."""
    check: Callable[[str | None], str | None] = partial(_known, formats)
    return typer.Option("--output", "-o", metavar="|".join(formats), callback=lambda value: check(value), help=about)


Output = Annotated[str, output_option()]
MessageOutput = Annotated[str, output_option((JSON, TABLE, WIDE), _OF_MESSAGES)]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Numbers are right-aligned and never cut. A `wide` column appears only in wide tables."""

    name: str
    number: bool = False
    wide: bool = False


def columns(names: str, numbers: str = "", wide: str = "") -> tuple[Column, ...]:
    """Parses comma-separated column names; `numbers` and `wide` name some of the columns."""
    right, more = (set(some.split(", ")) for some in (numbers, wide))
    return tuple(Column(name, name in right, name in more) for name in names.split(", "))


def say_json(found: object) -> None:
    """Prints an object as one line of JSON."""
    import msgspec

    say(printable(msgspec.json.encode(found).decode()))


def say_done(output: str, text: str, /, **facts: Any) -> None:
    """Prints the success of a command: a sentence, or the facts as JSON."""
    if output == JSON:
        say_json(facts)
    else:
        say(printable(text))


def say_table(output: str, head: Sequence[Column], rows: Iterable[Sequence[str]], none: str = "") -> None:
    """Prints a table. Without rows, prints the text `none` to stderr unless it is empty."""
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
    """Prints names and values, one pair per line, without shortening."""
    found = list(facts)
    room = max((len(name) for name, _ in found), default=0)
    for name, value in found:
        say(f"{name:<{room}}{GAP}{printable(value)}".rstrip())


def message_line(message: bytes, output: str) -> bytes:
    """Formats a message: its JSON unchanged, or a line with its id, time, key and value. A wide line also has the
    headers."""
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
    """Returns the terminal's width in columns; None if stdout is not a terminal, so that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def sparkline(values: Sequence[float]) -> str:
    """Returns a bar for each value; the highest value has a full bar."""
    most = max(values, default=0) or 1
    return "".join(_BARS[min(7, int(value / most * 7.99))] for value in values)


def drawing() -> "Console":
    """Returns a rich console for live commands. If stdout is not a terminal, the console cuts nothing."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = UNCUT
    return console


def with_whole_numbers(table: "Table") -> "Table":
    """Returns a rich table whose right-aligned columns are never cut."""
    for column in table.columns:
        if column.justify == "right":
            column.min_width = max(_wide(str(cell)) for cell in (column.header, *column.cells))
    return table


def layout(head: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None, wide: bool = False) -> list[str]:
    """Returns the lines of a table, with the column names first. If the rows are wider than `width`, cuts the widest
    cells, except numbers, to FEWEST characters at the least."""
    kept = [number for number, column in enumerate(head) if wide or not column.wide]
    shown = [head[number] for number in kept]
    cells = [[printable(row[number]) for number in kept] for row in rows]
    lines = [[printable(column.name) for column in shown], *cells]
    room = [max(_wide(line[number]) for line in lines) for number in range(len(shown))]
    if width is not None:
        room = _shrunk(room, shown, width - len(GAP) * (len(shown) - 1))
    return [_line(line, shown, room).rstrip() for line in lines]


def _shrunk(room: list[int], shown: Sequence[Column], width: int) -> list[int]:
    """Returns column widths that fit into a total width, if text columns can be cut far enough."""
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
    """Shortens text to a width by cutting its middle."""
    if _wide(text) <= room:
        return text
    tail = room // 3
    begin, end = _begin(text, room - 1 - tail), _begin(text[::-1], tail)[::-1]
    return f"{begin}{_CUT}{end}"


def _begin(text: str, room: int) -> str:
    """Returns the longest beginning of a text that fits into a width."""
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
    """Returns how many terminal columns a text needs: letters of some scripts need two, combining accents none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
