"""Compares what a page shows as printed with what was printed.

Three dots stand for any text within a line, and alone on a line for any lines, none included. Times, ids, durations
and rates may differ, and so may the width of columns; all else is as it is shown.
"""

import re
from difflib import unified_diff

DOTS = "..."
VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?|\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b[0-9a-f]{16,}\b"), "ID"),
    (re.compile(r"\d[\d,.]*(?=(/s| (ms|s))\b)"), "N"),
    (re.compile(r" +"), " "),
    (re.compile(r"([─━])\1+"), r"\1"),
)


def complaint(shown: str, printed: str) -> str:
    """How what was printed differs from what is shown; empty if it does not."""
    wanted, found = _lines(shown), _lines(printed)
    pattern = "".join(
        "(?:.*\n)*?" if line == DOTS else ".*".join(map(re.escape, line.split(DOTS))) + "\n" for line in wanted
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in found)):
        return ""
    return "\n".join(unified_diff(wanted, found, "shown", "printed", lineterm=""))


def _lines(text: str) -> list[str]:
    for pattern, stands in VARIES:
        text = pattern.sub(stands, text)
    return [line.strip() for line in text.strip().splitlines()]
