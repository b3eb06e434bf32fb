"""What each tier draws, and what the end of a run says."""

import os
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
def test_{number}():
    {start}
"""
PROCESS, BROKERS = "subprocess.run([sys.executable, '-c', ''])", "sys.audit('tests.brokers', '')"
MARKED = [  # what a test does, its mark, and what is said of it
    (PROCESS, "", "no mark says that it starts .*process"),
    (PROCESS, "brokers", "no mark says that it starts .*process"),
    (PROCESS, "process", None),
    (PROCESS, "spark", None),
    (BROKERS, "", "no mark says that it starts .*brokers"),
    (BROKERS, "process", "no mark says that it starts .*brokers"),
    (BROKERS, "brokers", None),
]


@pytest.mark.process
def test_a_test_without_the_mark_of_what_it_starts_fails(tmp_path: Path) -> None:
    test = tmp_path / "test_start.py"
    tests = [
        STARTS.format(number=number, start=start, mark=mark and f"@pytest.mark.{mark}")
        for number, (start, mark, _) in enumerate(MARKED)
    ]
    test.write_text("".join(tests))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "tests.support.tiers", "-p", "no:cacheprovider"]
    wide = {**os.environ, "COLUMNS": "1000"}  # else reasons are cut off
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(test)], env=wide, capture_output=True, text=True, check=False
    )
    for number, (_, _, says) in enumerate(MARKED):
        expected = rf"^FAILED \S*::test_{number} - .*{says}" if says else rf"^PASSED \S*::test_{number}$"
        assert re.search(expected, done.stdout, re.MULTILINE), (number, done.stdout)


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
