"""The tree in docs/internals/architecture.md names every folder of the package and of the broker, and every file of
broker/."""

import re

from tests.support.paths import ROOT

PACKAGE = ROOT / "seaweedq"


def tree() -> str:
    page = (ROOT / "docs/internals/architecture.md").read_text()
    return page.partition("## The tree")[2].partition("```text\n")[2].partition("```")[0]


def folders(indent: int) -> list[str]:
    """The folders that stand at this indent; some lines name several."""
    lines = re.findall(rf"^ {{{indent}}}((?:\w+/ *)+)", tree(), re.MULTILINE)
    return sorted(name for line in lines for name in re.findall(r"(\w+)/", line))


def test_every_folder_is_in_the_tree_once() -> None:
    assert folders(2) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_every_folder_of_the_broker_is_in_the_tree_once() -> None:
    assert folders(4) == sorted(path.parent.name for path in (PACKAGE / "broker").glob("*/__init__.py"))


def test_every_file_of_the_brokers_own_folder_is_in_the_tree_once() -> None:
    block = tree().partition("  broker/ ")[2].partition("\n  api/")[0]
    there = sorted(path.name for path in (PACKAGE / "broker").glob("*.py") if path.name != "__init__.py")
    assert sorted(re.findall(r"\b\w+\.py\b", block)) == there
