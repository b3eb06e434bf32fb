"""The level after the one that this version has: a synthetic one, which differs by its number alone.

In this process `next_level` patches it in; for processes there is a tree of it (tests/support/upgrade/trees).
"""

import pytest

from seaweedq import levels


def newest() -> int:
    """The level of a new cluster, as those who write formats ask for it."""
    return levels.HIGHEST


@pytest.fixture
def next_level(monkeypatch: pytest.MonkeyPatch) -> int:
    """Has what begins from here on read one level more, which is returned, and begin new clusters at it."""
    level = levels.HIGHEST + 1
    monkeypatch.setattr(levels, "HIGHEST", level)
    return level
