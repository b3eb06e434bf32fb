"""The tree of the next version: this one with a level more, which is synthetic."""

import shutil
from pathlib import Path

from tests.support.paths import ROOT

LATER_FORMATS = {  # each format has a version more, at the level more; the bytes differ by their version alone
    "journal/object_format.py": {'Format("slots", {1: 1})': 'Format("slots", {{1: 1, {level}: 2}})'},
    "segments/frames.py": {'Format("journal files", {1: 1})': 'Format("journal files", {{1: 1, {level}: 2}})'},
    "segments/producers.py": {'Format("producer tables", {1: 1})': 'Format("producer tables", {{1: 1, {level}: 2}})'},
}


def tree_with_one_level_more(folder: Path) -> Path:
    """A copy of this tree that reads a level more than this version."""
    # With the bytecode, else its first broker compiles everything; but for what another process is about to rename.
    shutil.copytree(ROOT / "seaweedq", folder / "seaweedq", ignore=shutil.ignore_patterns("*.pyc.*"))
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
