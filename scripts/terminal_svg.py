"""Terminals drawn as SVG: a screen that obeys what this project's commands print, and a film of several screens.

The film is one SVG without scripts: the frames stand below each other, and CSS moves them past a window. Where nothing
is animated, the last frame is seen. A line that several frames share is there once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby

CELL, LINE, PAD = 7.2, 16, 12
INK, PAPER, FRAME = "#e6edf3", "#0d1117", "#30363d"
BASIC = ["#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4"]
LEVELS = (0, 95, 135, 175, 215, 255)
TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([^\x1b])", re.DOTALL)
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

Cell = tuple[str, str]  # a character, and its style
Lines = tuple[tuple[Cell, ...], ...]


def colour(number: int) -> str:
    """Returns one of a terminal's 256 colours as CSS."""
    if number < 16:
        return BASIC[number % 8]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    number -= 16
    return "#" + "".join(f"{LEVELS[number // place % 6]:02x}" for place in (36, 6, 1))


@dataclass
class Screen:
    """A terminal of fixed size: text, colours, line ends, a line that is erased, and the cursor sent home or up."""

    columns: int
    rows: int
    style: str = ""
    x: int = 0
    y: int = 0
    cells: list[list[Cell]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Empties the screen."""
        self.x = self.y = 0
        self.cells = [self._empty() for _ in range(self.rows)]

    def _empty(self) -> list[Cell]:
        return [(" ", "")] * self.columns

    def feed(self, text: str) -> None:
        """Takes what a program has printed."""
        for argument, command, character in TOKEN.findall(text):
            if character:
                self._put(character)
            elif command == "m":
                self._colour(argument)
            elif command == "H":
                self.x = self.y = 0
            elif command == "A":
                self.y = max(0, self.y - int(argument or 1))
            elif command == "K":
                self.cells[self.y] = self._empty()
            elif command == "h" and argument == "?1049":
                self.clear()

    def _put(self, character: str) -> None:
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self._next_line()
        elif character >= " ":
            if self.x == self.columns:
                self.x = 0
                self._next_line()
            self.cells[self.y][self.x] = (character, self.style)
            self.x += 1

    def _next_line(self) -> None:
        if self.y + 1 < self.rows:
            self.y += 1
        else:
            self.cells = [*self.cells[1:], self._empty()]

    def _colour(self, argument: str) -> None:
        numbers = [int(number or 0) for number in argument.split(";")]
        if numbers[:2] == [38, 5]:
            self.style = f"fill:{colour(numbers[2])}"
        elif numbers == [0]:
            self.style = ""
        elif numbers == [1]:
            self.style = "font-weight:bold"
        elif numbers == [2]:
            self.style = "fill:#8b949e"
        elif 30 <= numbers[0] <= 37:
            self.style = f"fill:{colour(numbers[0] - 30)}"

    def lines(self) -> Lines:
        """Returns what is on it."""
        return tuple(map(tuple, self.cells))


@dataclass(frozen=True)
class Pane:
    """A screen's place in the picture, in cells, and the command above it."""

    screen: Screen
    command: str
    column: int
    row: int

    @property
    def left(self) -> float:
        """The first pixel."""
        return PAD + self.column * CELL

    @property
    def top(self) -> int:
        """The first pixel."""
        return PAD + self.row * LINE


@dataclass(frozen=True)
class Frame:
    """What all panes show from a time on."""

    at_s: float
    shown: tuple[Lines, ...]


def film(panes: list[Pane], frames: list[Frame], title: str, hold_s: float = 4.0) -> str:
    """Returns the SVG; the last frame stays for `hold_s`."""
    width = round(max(pane.left + pane.screen.columns * CELL for pane in panes) + PAD)
    height = max(pane.top + (pane.screen.rows + 2) * LINE for pane in panes) + PAD
    known: dict[str, int] = {}
    pictures = "".join(_frame(panes, frame, number * height, known) for number, frame in enumerate(frames))
    shared = "".join(f'<g id="l{number}">{drawn}</g>' for drawn, number in known.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>'
        f"text{{font:12px {FONT};fill:{INK};white-space:pre}}{_moves(frames, height, hold_s)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/><defs>{shared}</defs>'
        f"{''.join(map(_heading, panes))}"
        f'<g class="film">{pictures}</g></svg>\n'
    )


def _moves(frames: list[Frame], height: int, hold_s: float) -> str:
    begin, whole = frames[0].at_s, frames[-1].at_s - frames[0].at_s + hold_s
    steps = "".join(
        f"{(frame.at_s - begin) / whole:.2%}{{transform:translateY({-number * height}px)}}"
        for number, frame in enumerate(frames)
    )
    last = f".film{{transform:translateY({-(len(frames) - 1) * height}px)}}"
    play = f".film{{animation:play {whole:.1f}s steps(1,end) infinite}}"
    return f"{last}@keyframes play{{{steps}}}@media not (prefers-reduced-motion:reduce){{{play}}}"


def _heading(pane: Pane) -> str:
    width = pane.screen.columns * CELL
    below = pane.top + LINE + 2
    return (
        f'<text x="{pane.left:g}" y="{pane.top + 12}" style="fill:#7ee787">$ {escape(pane.command)}</text>'
        f'<rect x="{pane.left:g}" y="{below}" width="{width:g}" height="1" fill="{FRAME}"/>'
    )


def _frame(panes: list[Pane], frame: Frame, offset: int, known: dict[str, int]) -> str:
    uses = []
    for pane, lines in zip(panes, frame.shown, strict=True):
        for row, line in enumerate(lines):
            if drawn := "".join(_runs(line)):
                y = offset + pane.top + (row + 2) * LINE
                uses.append(f'<use href="#l{known.setdefault(drawn, len(known))}" x="{pane.left:g}" y="{y}"/>')
    return "".join(uses)


def _runs(line: tuple[Cell, ...]) -> Iterator[str]:
    """Yields a line's parts of one style each. Blocks are drawn, as fonts leave gaps between them."""
    x = 0
    for (style, is_block), cells in groupby(line, key=lambda cell: (cell[1], cell[0] == "█")):
        text = "".join(character for character, _ in cells)
        start, width = x * CELL, len(text) * CELL
        x += len(text)
        attribute = f' style="{style}"' if style else ""
        if is_block:
            yield f'<rect x="{start:g}" y="-12" width="{width:g}" height="{LINE}"{attribute}/>'
        elif bare := text.strip():
            start += (len(text) - len(text.lstrip())) * CELL
            yield f'<text x="{start:g}" textLength="{len(bare) * CELL:g}"{attribute}>{escape(bare, quote=False)}</text>'
