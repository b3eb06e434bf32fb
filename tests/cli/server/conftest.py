"""What the tests of the command line share."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.stand_in_fleet import Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes parents of stand-in brokers: `fleet(brokers=, grace_s=)`, all on one folder; gone after the test."""
    made: list[Fleet] = []

    def make(**more: Any) -> Fleet:
        made.append(Fleet(tmp_path / "data", **more))
        return made[-1]

    yield make
    for one in made:
        one.kill()
