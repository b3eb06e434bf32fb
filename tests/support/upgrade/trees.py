"""Trees of other versions: the commit before there were levels, and this version with a level more."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BEFORE_LEVELS = "ba8a064"
LATER_FORMATS = {  # each format has a version more, at the level more; the bytes differ by their version alone
    "journal/object_format.py": {
        'Format("slots", {1: 1, 2: 2})': 'Format("slots", {{1: 1, 2: 2, {level}: 3}})',
        "{1: _encode_1, 2: _encode_2}": "{{1: _encode_1, 2: _encode_2, 3: _encode_2}}",
        "{1: _decode_1, 2: _decode_2}": "{{1: _decode_1, 2: _decode_2, 3: _decode_2}}",
    },
    "segments/commits.py": {'Format("journal files", {1: 1})': 'Format("journal files", {{1: 1, {level}: 2}})'},
    "segments/producers.py": {'Format("producer tables", {1: 2})': 'Format("producer tables", {{1: 2, {level}: 3}})'},
}


def tree_before_levels(folder: Path) -> Path:
    """The tree of the last commit before there were levels; skips where the clone does not have it."""
    there = subprocess.run(["git", "cat-file", "-e", f"{BEFORE_LEVELS}^{{commit}}"], cwd=ROOT, capture_output=True)
    if there.returncode:
        pytest.skip(f"this clone does not have the commit {BEFORE_LEVELS}, as a shallow one does not")
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", BEFORE_LEVELS, "seaweedq"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive, check=True)
    return folder


def tree_with_one_level_more(folder: Path) -> Path:
    """A copy of this tree that reads a level more than this version."""
    shutil.copytree(ROOT / "seaweedq", folder / "seaweedq", ignore=shutil.ignore_patterns("__pycache__"))
    levels = folder / "seaweedq" / "levels.py"
    text = levels.read_text()
    highest = int(text.split("\nHIGHEST = ")[1].split()[0])
    raised = text.replace(f"\nHIGHEST = {highest}\n", f"\nHIGHEST = {highest + 1}\n")
    raised = raised.replace('\nVERSION = "', '\nVERSION = "9.')
    assert raised.count("9.") == text.count("9.") + 1
    assert raised != text
    levels.write_text(raised)
    for name, changes in LATER_FORMATS.items():
        source = folder / "seaweedq" / name
        text = source.read_text()
        for known, later in changes.items():
            assert text.count(known) == 1, f"{name} has no longer {known}"
            text = text.replace(known, later.format(level=highest + 1))
        source.write_text(text)
    return folder
