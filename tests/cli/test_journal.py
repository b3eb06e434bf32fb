"""`seaweedq journal accept-loss`: it says what may be missing."""

from typing import Any

import pytest
from typer.testing import CliRunner

from seaweedq.cli import journal
from seaweedq.cli.journal import loss_line
from seaweedq.cli.main import app


@pytest.mark.parametrize(
    ("missing_s", "mirrors", "says"),
    [
        (
            10.0,
            ["m1", "m2"],
            "its messages of up to 10 s, more if the store was unavailable, may be missing, which only "
            "b and m1, m2 had",
        ),
        (None, [], "its messages that are not in files may be missing"),
    ],
)
def test_what_may_be_missing(missing_s: float | None, mirrors: list[str], says: str) -> None:
    line = loss_line({"broker": "b", "mirrors": mirrors, "missing_s": missing_s})
    assert line == f"the loss of the journal of b is accepted: {says}"


def test_it_asks_for_one_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(url: str, steps: Any) -> dict[str, Any]:
        asked.append(steps)
        return {"broker": "b.1", "mirrors": ["m"], "missing_s": 10.0}

    monkeypatch.setattr(journal, "run", answer)
    for given in ("", "n\n"):  # nobody answers, or no
        done = CliRunner().invoke(app, ["journal", "accept-loss", "b.1"], input=given)
        assert done.exit_code == 1, done.output
        assert not asked
    done = CliRunner().invoke(app, ["journal", "accept-loss", "b.1", "--yes"])
    assert done.exit_code == 0, done.output
    assert "the loss of the journal of b.1 is accepted" in done.output
    assert len(asked) == 1
