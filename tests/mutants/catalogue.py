"""The mutants: a rule in words, a patch that leaves it out, and the tests that find it.

A patch replaces a text that occurs once in the package, wherever it stands: a moved file breaks no mutant. Those of
`rules.toml` are written by hand, a rule each. Those of `drawn.toml` were drawn by `tests.mutants.draw`; no test finds
some of them.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A rule, the text that keeps it, the text that does not, and the tests that find it; none of them is known if
    `tests` is empty."""

    name: str
    rule: str
    old: str
    new: str
    tests: tuple[str, ...]

    def places(self) -> list[Path]:
        """The modules that have the text, once for each time."""
        return [path for path, text in sources().items() for _ in range(text.count(self.old))]


def sources() -> dict[Path, str]:
    """The text of each module."""
    return {path: path.read_text() for path in sorted((ROOT / "seaweedq").rglob("*.py"))}


def load(name: str) -> list[Mutant]:
    """The mutants of a file of this folder."""
    path = FOLDER / name
    found = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
    return [Mutant(**{**one, "tests": tuple(one["tests"])}) for one in found]


def everything() -> list[Mutant]:
    """All mutants."""
    return load("rules.toml") + load("drawn.toml")
