"""Rounds of two trees in turns. One machine's runs differ by 20 to 40%, so a change is measured beside the code before
it, both see the same disturbances, and every round is printed."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.result import Result

HERE = Path(__file__).parent.parent
BASE: list[Path] = []  # the tree to compare with, if there is one


@dataclass(frozen=True)
class Tree:
    """A checkout of this project, whose code processes run."""

    name: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """The environment of a process that imports the tree's code, if it is started with -P."""
        return {**os.environ, "PYTHONPATH": str(self.folder.resolve())}


def in_turns(rounds: int, once: Callable[[Tree], Mapping[str, float]]) -> dict[str, dict[str, list[float]]]:
    """Measure each tree once a round, the other one first in every second round: for each tree the values of each
    figure."""
    trees = [Tree("base", folder) for folder in BASE] + [Tree("new", HERE)]
    found: dict[str, dict[str, list[float]]] = {tree.name: {} for tree in trees}
    for number in range(rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            figures = once(tree)
            shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            print(f"\n  round {number + 1}, {tree.name}: {shown}", end="", file=sys.stderr, flush=True)
            for name, value in figures.items():
                found[tree.name].setdefault(name, []).append(value)
    return found


def lowest(benchmark: str, unit: str, found: Mapping[str, Mapping[str, list[float]]], note: str) -> Iterator[Result]:
    """Each figure's best round, beside that of the base."""
    base = found.get("base", {})
    for name, values in found["new"].items():
        yield Result(
            name=f"{benchmark}, {name}",
            figure=min(values),
            unit=unit,
            limit=min(base[name]) if name in base else None,
            limit_is="the tree of --base, in turns" if base else "",
            better="lower",
            note=note,
        )
