"""Shrunk plans that tell mutants of a mirrored journal from the code."""

from pathlib import Path

import pytest

from tests.simulation.test_runs import PLANS, run

pytestmark = [pytest.mark.process, pytest.mark.brokers, pytest.mark.soak]


@pytest.mark.parametrize("path", sorted((PLANS / "mutants" / "mirrored").glob("*.json")), ids=lambda path: path.stem)
def test_a_plan_tells_a_mutant_from_the_code(path: Path) -> None:
    status, printed = run("--plan", str(path))
    assert status == 0, printed
    status, printed = run("--plan", str(path), mutant=path.stem)
    assert status == 1, printed
    assert "1 runs, 1 failed" in printed
