"""How often tests read private names of other modules: a budget that only falls, as each holds up a change.

Read are attributes of something else than `self`, and imports. A name that the file itself defines is its own, and
those of named tuples, and `os._exit`, are public in spite of their underscore.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BUDGET = 150
OF_PYTHON = {
    "tests/simulation/loop.py",
    "tests/simulation/burial.py",
}  # read asyncio's, which no change of ours touches
PUBLIC = {"_exit", "_asdict", "_field_defaults", "_fields", "_make", "_replace"}
# Of an import, and of an attribute; to parse all modules would take seconds.
MAY_READ = re.compile(
    r"^\s*from .* import .*\b_[A-Za-z]|^\s+_\w+( as \w+)?,$|(?<!\bself)(?<!\bcls)\._[A-Za-z]", re.MULTILINE
)


def read(source: str) -> Iterator[str]:
    """The private names of other modules that a module reads."""
    if not MAY_READ.search(source):
        return
    nodes = list(ast.walk(ast.parse(source)))
    own = {name for node in nodes for name in defined(node)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield from () if is_self(node.value) else (node.attr,)


def defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Attribute(attr=name, ctx=ast.Store(), value=value) if is_self(value):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def test_tests_read_no_more_private_names_than_before() -> None:
    """Lower the budget with each commit that reads fewer."""
    paths = {str(path.relative_to(ROOT)): path for path in Path(ROOT, "tests").rglob("*.py")}
    places = {name: list(read(path.read_text())) for name, path in paths.items() if name not in OF_PYTHON}
    found = sum(map(len, places.values()))
    print(f"{found} private names of other modules")
    assert found <= BUDGET, {name: names for name, names in sorted(places.items()) if names}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from a import _b, c", ["_b"]),
        ("a._b.c._d", ["_d", "_b"]),
        ("self._b", []),
        ("class A:\n    _b: int\n    def f(self, other):\n        return other._b", []),
        ("def f(self, other):\n    self._b = 1\n    return other._b", []),
        ("a._replace(b=1), a.__doc__", []),
    ],
)
def test_what_counts(source: str, names: list[str]) -> None:
    assert sorted(read(source)) == sorted(names)
