"""The names of tests: each is a sentence that one reads at a glance."""

import ast

from tests.support.paths import ROOT

LONGEST = 70


def test_names_of_tests_are_short() -> None:
    """At most LONGEST characters, in every module of tests."""
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > LONGEST
    ]
    assert not found
