"""HTTP knows a broker by the faces of its rooms: as few as there are rooms that it needs."""

import ast

from tests.support.paths import ROOT

MOST = 15  # modules of the broker that api imports; that each is a face is a contract in pyproject.toml


def test_http_imports_few_modules_of_the_broker() -> None:
    imported = set()
    for file in (ROOT / "seaweedq" / "api").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seaweedq.broker"):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {one.name for one in node.names if one.name.startswith("seaweedq.broker")}
    assert imported, "the test looks at the wrong place"
    assert len(imported) <= MOST, sorted(imported)
