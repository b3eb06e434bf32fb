"""Spark uses the client by its public names alone."""

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FILES = [*sorted((ROOT / "seaweedq/spark").rglob("*.py")), ROOT / "pyspark_seaweedq.py"]


def private_names(text: str) -> list[str]:
    """The names with one leading underscore that a module reads of others, or imports."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            found.append(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found += [part for name in node.names for part in (name.name, *(node.module or "").split("."))]
    return [name for name in found if name.startswith("_") and not name.startswith("__")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_spark_reads_no_private_name_of_the_client(path: Path) -> None:
    assert private_names(path.read_text()) == []


def test_private_names_are_found() -> None:
    text = "from seaweedq.client.sync.client import _T\nself._own\nclient._run(steps)\nclient.run(steps)\n"
    assert sorted(private_names(text)) == ["_T", "_run"]
