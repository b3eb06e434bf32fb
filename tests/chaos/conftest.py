"""A history of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from history import History


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.jsonl") as history:
        yield history
