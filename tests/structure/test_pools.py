"""What may hang has threads of its own: the loop's default pool only computes."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

# Rooms whose blocking calls wait for a disk, a store or another process.
WAITING = ["storage", "segments", "coordination", "journal", "broker/recovery", "broker/log"]
COMPUTING = {  # what these modules call in a thread of the default pool
    "storage/s3_requests.py": "a checksum",
    "journal/object_recovery.py": "decoding",
    "journal/object_journal.py": "encoding",
    "journal/mirrored_recovery.py": "decoding and encoding",
    "broker/log/entry_writer.py": "encoding",
    "broker/log/memory_budget.py": "a trim of the heap",
}


def default_pool_uses(path: Path) -> Iterator[int]:
    """The lines that give something to the default pool."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            executor = node.args[0] if node.args else None
            is_none = isinstance(executor, ast.Constant) and executor.value is None
            if node.func.attr == "to_thread" or (node.func.attr == "run_in_executor" and is_none):
                yield node.lineno


def test_what_may_hang_does_not_run_in_the_default_pool() -> None:
    package = ROOT / "seaweedq"
    found = {
        str(path.relative_to(package))
        for room in WAITING
        for path in sorted((package / room).rglob("*.py"))
        if list(default_pool_uses(path))
    }
    assert found == set(COMPUTING)
