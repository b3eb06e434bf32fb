"""The map of modules in docs/architecture.md has every module of the broker, once, and every folder of the package."""

import re

from tests.support.paths import ROOT

PACKAGE = ROOT / "seaweedq"


def section() -> str:
    return (ROOT / "docs/architecture.md").read_text().partition("## Modules")[2].partition("\n## ")[0]


def test_every_module_of_the_broker_is_on_the_map_once() -> None:
    table = section().partition("Inside `seaweedq/broker`")[2].partition("Imports run")[0]
    there = sorted(path.stem for path in (PACKAGE / "broker").glob("*.py") if path.stem != "__init__")
    assert sorted(re.findall(r"`(\w+)`", table)) == there


def test_every_folder_is_on_the_map() -> None:
    there = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+)/ ", section(), re.MULTILINE)) == there
