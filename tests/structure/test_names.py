"""The names of tests: each is a sentence that one reads at a glance."""

import re

from tests.support.paths import ROOT

LONGEST = 70
DEFINED = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def test_names_of_tests_are_short() -> None:
    """At most LONGEST characters, in every module of tests."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in DEFINED.findall(path.read_text())
        if len(name) > LONGEST
    ]
    assert not found
