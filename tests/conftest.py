"""What all tests share: fixtures of tests/support, tiers, and why tests were skipped."""

import os
import signal
import tempfile
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
    "tests.support.levels",
    "tests.support.tiers",
]


# The contexts of the user who runs the tests: commands would use them.
os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), "seaweedq-tests-config")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores it, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, in five lines at most: what this machine lacks should not go unnoticed."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(str(found[2]).removeprefix("Skipped: ") for found in skipped if isinstance(found, tuple))
    for line in skip_lines(reasons):
        terminalreporter.write_line(line)


def skip_lines(reasons: Counter[str]) -> list[str]:
    """The four most frequent reasons, a line each, and all others on the last line."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    first, rest = (ranked, []) if len(ranked) <= 5 else (ranked[:4], ranked[4:])
    lines = [f"{count} skipped: {reason}" for reason, count in first]
    if rest:
        others = "; ".join(f"{reason} ({count})" for reason, count in rest)
        lines.append(f"{sum(count for _, count in rest)} skipped for other reasons: {others}")
    return lines
