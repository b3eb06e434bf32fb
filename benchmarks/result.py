"""What a benchmark gives: figures beside their limits and targets, as a table or as JSON."""

from collections.abc import Iterable
from typing import Literal

import msgspec


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `limit` is what the machine gave in the same run for `limit_is`; `target` holds for the figure or its
    ratio to the limit."""

    name: str
    figure: float
    unit: str
    limit: float | None = None
    limit_is: str = ""
    target: float | None = None
    target_of: Literal["figure", "ratio"] = "figure"
    better: Literal["higher", "lower"] = "higher"
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Figure to limit."""
        return self.figure / self.limit if self.limit else None

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without one."""
        value = self.figure if self.target_of == "figure" else self.ratio
        if self.target is None or value is None:
            return None
        return value >= self.target if self.better == "higher" else value <= self.target


HEAD = ("figure", "measured", "unit", "limit", "ratio", "target", "")


def table(results: Iterable[Result]) -> str:
    """The results as text, what each limit is below them."""
    results = list(results)
    rows = [HEAD, *map(_row, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(_align(cell, width, at) for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    notes: dict[str, list[str]] = {}
    for result in results:
        if text := "; ".join(filter(None, (result.limit_is and f"limit: {result.limit_is}", result.note))):
            notes.setdefault(text, []).append(result.name)
    below = [f"{', '.join(names)}: {text}" for text, names in notes.items()]
    return "\n".join([*(line.rstrip() for line in lines), "", *below])


def line(result: Result) -> str:
    """A result as text, without the heads of the table."""
    return "  ".join(filter(None, (*_row(result), result.note)))


def _row(result: Result) -> tuple[str, ...]:
    sign = "≥" if result.better == "higher" else "≤"
    of = " of limit" if result.target_of == "ratio" else ""
    return (
        result.name,
        _number(result.figure),
        result.unit,
        _number(result.limit),
        _number(result.ratio),
        f"{sign} {_number(result.target)}{of}" if result.target is not None else "",
        {True: "reached", False: "missed", None: ""}[result.reached],
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _align(cell: str, width: int, at: int) -> str:
    return cell.rjust(width) if at in (1, 3, 4) else cell.ljust(width)
