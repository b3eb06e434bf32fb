"""The module by which Spark finds the source: it imports nothing but Spark's own, whatever else is missing."""

import ast
import sys
import tomllib

import pytest

from tests.support.paths import ROOT

MODULE = ROOT / "pyspark_seaweedq.py"


def test_it_imports_spark_alone() -> None:
    """An import that fails would switch off all Python sources of a session."""
    tree = ast.parse(MODULE.read_text())
    checked = [node for node in tree.body if isinstance(node, ast.If)]
    assert [ast.unparse(node.test) for node in checked] == ["TYPE_CHECKING"]
    found = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    found |= {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
    assert {name for name in found if name and name.split(".")[0] not in sys.stdlib_module_names} == {
        "pyspark.sql.datasource"
    }


def test_what_is_missing_is_said_once_a_source_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from pyspark_seaweedq import DefaultSource

    assert DefaultSource.name() == "seaweedq"
    monkeypatch.setitem(sys.modules, "seaweedq.spark.source", None)
    with pytest.raises(ImportError, match=r"the source seaweedq needs .*: pip install .*\[spark\]'"):
        DefaultSource({"topic": "t"})


def test_the_wheel_has_it() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert MODULE.name in built["wheel"]["packages"]
    assert MODULE.name in built["sdist"]["include"]
