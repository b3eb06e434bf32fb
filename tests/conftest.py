"""What all tests share: fixtures of tests/support, one profile of hypothesis, and why tests were skipped."""

from collections import Counter

import pytest
from hypothesis import settings

pytest_plugins = [
    "tests.support.fixtures.brokers",
    "tests.support.fixtures.disks",
    "tests.support.fixtures.histories",
    "tests.support.fixtures.importers",
    "tests.support.fixtures.services",
    "tests.support.fixtures.together",
]

settings.register_profile("seaweedq", deadline=None)  # how long an example takes says more of the machine
settings.load_profile("seaweedq")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, each reason once: what this machine lacks should not go unnoticed."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(str(found[2]).removeprefix("Skipped: ") for found in skipped if isinstance(found, tuple))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")
