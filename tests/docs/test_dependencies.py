"""What seaweedq imports is among its own dependencies: one that comes with another package may stop to."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions

import pytest
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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
STATED = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]


def parts(extra: str) -> set[str]:
    """The extras that are in one, apart from itself."""
    found = {name for one in map(Requirement, EXTRAS[extra]) if one.name == "seaweedq" for name in one.extras}
    return found.union(*map(parts, found))


@pytest.mark.default
def test_every_import_is_declared():
    declared = {canonicalize_name(each.name) for each in STATED}
    homes = packages_distributions()
    names = {name for path in (ROOT / "seaweedq").rglob("*.py") for name in imported(path)}
    foreign = names - set(sys.stdlib_module_names) - {"seaweedq"}
    assert "msgspec" in foreign
    undeclared = {
        name for name in foreign if not declared & {canonicalize_name(home) for home in homes.get(name, [name])}
    }
    assert not undeclared


def test_each_package_has_one_bound():
    bounds = Counter(canonicalize_name(each.name) for each in STATED if each.specifier)
    assert set(bounds.values()) == {1}
    unbound = {canonicalize_name(each.name) for each in STATED} - bounds.keys()
    assert unbound == {"seaweedq", "hatchling"}  # of the latter the build system has the bound
    assert all(">=" in str(each.specifier) for each in STATED if each.specifier)


def test_private_classes_have_an_upper_bound():
    [uvicorn] = [each for each in STATED if each.name == "uvicorn"]
    assert any(one.operator == "<" for one in uvicorn.specifier)


def test_extras_hold_each_other_as_documented():
    assert {name for name in EXTRAS if "arrow" in parts(name)} == {*EXTRAS} - {"arrow", "etcd", "grpc", "otel"}
    assert parts("cluster") == {"server", "s3", "etcd", "grpc", "arrow"}
    assert parts("demo") == {"server", "spark", "sql", "arrow"}
    assert parts("all") == {*EXTRAS} - {"all", "dev"}
    page = (ROOT / "docs/do/python.md").read_text().partition("## Extras")[2]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [name for name in EXTRAS if name != "dev"]


@pytest.mark.process
def test_client_and_commands_import_no_package_of_an_extra():
    modules = "seaweedq.client, seaweedq.client.core.segment_map, seaweedq.cli.main"
    code = f"import sys, {modules}; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    loaded = {name.partition(".")[0] for name in printed.split()}
    homes = {name: {canonicalize_name(home) for home in found} for name, found in packages_distributions().items()}
    base = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    others = {canonicalize_name(each.name) for each in STATED} - base - {"seaweedq"}
    assert not {name for name in loaded if homes.get(name, set()) & others}
