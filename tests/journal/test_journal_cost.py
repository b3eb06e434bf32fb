"""What an object journal costs: the arithmetic, against figures worked out by hand; the page shows what it prints."""

import pytest

from benchmarks.cost import monthly, puts_per_s, table
from tests.support.paths import ROOT


def test_fifty_puts_a_second_for_a_month() -> None:
    """50 x 2,628,000 s x $0.000005 = $657, and 256 MB held for $0.006."""
    cost = monthly(1e6)
    assert cost.journal_puts_per_s == 50
    assert cost.journal_usd == pytest.approx(657.0059, abs=0.001)


def test_a_week_of_parquet() -> None:
    """1 MB/s x 0.5 x 604,800 s = 302.4 GB, at $0.023."""
    assert monthly(1e6).retained_usd == pytest.approx(6.9552)


def test_the_chain_pays_by_bytes_or_by_age() -> None:
    assert monthly(64e6).chain_puts_per_s == pytest.approx(1)
    assert monthly(0, open_segments=300).chain_puts_per_s == pytest.approx(1)


@pytest.mark.parametrize(
    ("linger_s", "put_s", "window", "expected"), [(0.02, 0.05, 4, 50), (0.25, 0.05, 4, 4), (0.02, 0.4, 4, 10)]
)
def test_a_linger_or_the_window_bounds_the_puts(linger_s: float, put_s: float, window: int, expected: float) -> None:
    assert puts_per_s(linger_s, put_s, window, linger_max_s=0.25) == pytest.approx(expected)


def test_the_page_shows_the_table() -> None:
    assert table() in (ROOT / "docs" / "costs.md").read_text()
