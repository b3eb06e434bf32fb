"""What each tier draws, and what the end of a run says."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import skip_lines

PROPERTY = """
from hypothesis import given, strategies as st

@given(st.integers(0, 10**12))
def test_it(number):
    with open({drawn!r}, "a") as file:
        file.write(f"{{number}}\\n")
"""


STARTS = """
import subprocess, sys
import pytest

{mark}
def test_it():
    {start}
"""
PROCESS, BROKERS = "subprocess.run([sys.executable, '-c', ''])", "sys.audit('tests.brokers', '')"


@pytest.mark.process
@pytest.mark.parametrize(
    ("start", "mark", "says"),
    [
        (PROCESS, "", "no mark says that it starts .*process"),
        (PROCESS, "brokers", "no mark says that it starts .*process"),
        (PROCESS, "process", None),
        (PROCESS, "spark", None),
        (BROKERS, "", "no mark says that it starts .*brokers"),
        (BROKERS, "process", "no mark says that it starts .*brokers"),
        (BROKERS, "brokers", None),
    ],
)
def test_a_test_without_the_mark_of_what_it_starts_fails(
    tmp_path: Path, start: str, mark: str, says: str | None
) -> None:
    test = tmp_path / "test_start.py"
    test.write_text(STARTS.format(start=start, mark=mark and f"@pytest.mark.{mark}"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.tiers", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, f"--rootdir={tmp_path}", str(test)], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if says else 0), done.stdout
    assert says is None or re.search(says, done.stdout)


def run(folder: Path, *options: str) -> tuple[str, str]:
    """(what a property draws in a tier, the end of the run)."""
    drawn, test = folder / "drawn", folder / "test_property.py"
    test.write_text(PROPERTY.format(drawn=str(drawn)))
    drawn.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.tiers", "-p", "no:cacheprovider", *options]
    result = subprocess.run([*command, f"--rootdir={folder}", str(test)], capture_output=True, text=True, check=True)
    return drawn.read_text(), result.stdout


@pytest.mark.process
@pytest.mark.long
def test_a_newcomer_runs_what_everybody_ran_and_the_long_tier_draws_anew(tmp_path: Path) -> None:
    first, end = run(tmp_path, "--tier", "default")
    assert first == run(tmp_path, "--tier", "default")[0]
    assert "SEED=" not in end
    drawn, end = run(tmp_path, "--tier", "long")
    seed = end.partition("the same examples again: make test-all SEED=")[2].split()[0]
    assert drawn == run(tmp_path, "--tier", "long", f"--hypothesis-seed={seed}")[0]
    assert drawn != run(tmp_path, "--tier", "long")[0]


def test_reasons_of_skips_take_five_lines() -> None:
    few = Counter({f"reason {n}": n for n in range(1, 6)})
    assert skip_lines(few) == [f"{n} skipped: reason {n}" for n in (5, 4, 3, 2, 1)]
    more = skip_lines(Counter({f"reason {n}": n for n in range(1, 8)}))
    assert more[:4] == [f"{n} skipped: reason {n}" for n in (7, 6, 5, 4)]
    assert more[4:] == ["6 skipped for other reasons: reason 3 (3); reason 2 (2); reason 1 (1)"]
