"""What an object journal costs: the arithmetic, against figures worked out by hand; the page shows what it prints."""

import pytest

from benchmarks.cost import monthly, puts_per_s, table
from tests.support.paths import ROOT


def test_three_brokers_at_eight_puts_a_second_for_a_month() -> None:
    """24 x 2,628,000 s x $0.000005 = $315.36, and 300 MB held for $0.0069."""
    cost = monthly(1e6, brokers=3)
    assert cost.journal_puts_per_s == 24
    assert cost.journal_usd == pytest.approx(315.3669, abs=0.001)


def test_a_week_of_parquet() -> None:
    """1 MB/s x 0.5 x 604,800 s = 302.4 GB, at $0.023."""
    assert monthly(1e6).retained_usd == pytest.approx(6.9552)


def test_the_chain_pays_by_bytes_or_by_age() -> None:
    assert monthly(64e6).chain_puts_per_s == pytest.approx(1)
    assert monthly(0, open_segments=300).chain_puts_per_s == pytest.approx(1)


@pytest.mark.parametrize(
    ("budget_per_s", "put_s", "window", "expected"), [(8, 0.05, 4, 8), (0, 0.05, 4, 80), (20, 0.4, 4, 10)]
)
def test_the_budget_or_the_window_bounds_the_puts(
    budget_per_s: float, put_s: float, window: int, expected: float
) -> None:
    assert puts_per_s(budget_per_s, put_s, window) == pytest.approx(expected)


def test_the_page_shows_the_table() -> None:
    assert table() in (ROOT / "docs" / "operate" / "costs.md").read_text()
