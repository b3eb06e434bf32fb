"""What seaweedq imports is among its own dependencies: one that comes with another package may stop to."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT


def imported(path):
    """Top-level names of all modules that a file imports from elsewhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module).partition(".")[0]


def test_every_import_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    declared = {canonicalize_name(Requirement(line).name) for line in stated}
    homes = packages_distributions()
    names = {name for path in (ROOT / "seaweedq").rglob("*.py") for name in imported(path)}
    foreign = names - set(sys.stdlib_module_names) - {"seaweedq"}
    assert "msgspec" in foreign
    undeclared = {
        name for name in foreign if not declared & {canonicalize_name(home) for home in homes.get(name, [name])}
    }
    assert not undeclared
