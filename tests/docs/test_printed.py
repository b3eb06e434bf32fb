"""The comparison of pages with what commands print finds each difference but those that no two runs have in common."""

import pytest

from tests.support.docs.printed import complaint

SHOWN = """published 1,000 messages to flights in 0.3 s (3,959/s)
name     at
flights  2026-11-23 22:56:11.32529+00
{"id":"5f2b8a6c90d14e2f"}
"""


@pytest.mark.parametrize(
    "printed",
    [
        SHOWN,
        SHOWN.replace("0.3 s", "12.25 s").replace("3,959/s", "7/s"),
        SHOWN.replace("2026-11-23 22:56:11.32529+00", "2027-01-02 03:04:05Z").replace("name    ", "name  "),
        SHOWN.replace("5f2b8a6c90d14e2f", "0" * 32),
    ],
)
def test_what_varies_may_differ(printed: str) -> None:
    assert complaint(SHOWN, printed) == ""


@pytest.mark.parametrize(
    ("was", "instead"),
    [
        ("1,000", "999"),
        ("flights in", "orders in"),
        ("22:56:11.32529+00", "soon"),
        ("name ", ""),
        ("}\n", "}\nTraceback\n"),
        ("published", "seaweedq: published"),
        ("5f2b8a6c90d14e2f", "5f2b"),
    ],
)
def test_what_is_shown_is_what_is_printed(was: str, instead: str) -> None:
    told = complaint(SHOWN, SHOWN.replace(was, instead))
    assert "--- shown" in told
    assert "+++ printed" in told


def test_dots_stand_for_any_lines_and_not_for_the_rest() -> None:
    assert complaint("a\n...\nz", "a\nz") == ""
    assert complaint("a\n...\nz", "a\nb\nc\nz\n") == ""
    assert complaint("...\nz", "b\nz") == ""
    assert complaint("a\n...\nz", "a\nb\n") != ""
    assert complaint("a\n...", "b\na\n") != ""


def test_dots_in_a_line_stand_for_the_text_of_that_line() -> None:
    assert complaint("split 0 → 1, ...\nend", "split 0 → 1, 2, 3\nend") == ""
    assert complaint("1 file, ... bytes in a", "1 file, 5,091 bytes in a") == ""
    assert complaint("split 0 → 1, ...\nend", "split 0 → 1, 2\n3\nend") != ""
    assert complaint("1 file, ... bytes in a", "1 file, 5,091 bytes in b") != ""


def test_nothing_shown_is_nothing_printed() -> None:
    assert complaint("", "") == ""
    assert complaint("", "Traceback") != ""
