"""What all tests share: fixtures of tests/support, tiers, and why tests were skipped."""

import signal
from collections import Counter

import pytest

pytest_plugins = [
    "tests.support.fixtures.brokers",
    "tests.support.fixtures.disks",
    "tests.support.fixtures.histories",
    "tests.support.fixtures.importers",
    "tests.support.fixtures.services",
    "tests.support.fixtures.spark_session",
    "tests.support.fixtures.together",
    "tests.support.tiers",
]


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores it, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, each reason once: what this machine lacks should not go unnoticed."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(str(found[2]).removeprefix("Skipped: ") for found in skipped if isinstance(found, tuple))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")
