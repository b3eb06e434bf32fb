"""msgspec crashes where several threads make the first decoder of a type together, which `decode(..., type=T)` does: so
decoders of types of ours are made while modules are loaded."""

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PLAIN = {"str", "Raw"}
IN_THE_LOOP = {"seaweedq/broker/rpc/client.py"}  # the thread of the event loop alone decodes there


def late(path: Path) -> list[str]:
    """The places of a module where a call makes a decoder of a type."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode":
            kinds = [ast.unparse(one.value).rpartition(".")[2] for one in node.keywords if one.arg == "type"]
            found += [f"{path.relative_to(ROOT)}:{node.lineno}" for kind in kinds if kind not in PLAIN]
    return found


@pytest.mark.default
def test_decoders_are_made_while_modules_are_loaded() -> None:
    places = [place for path in (ROOT / "seaweedq").rglob("*.py") for place in late(path)]
    assert {place.partition(":")[0] for place in places} == IN_THE_LOOP, places
