"""How much is explored: `SEAWEEDQ_TEST_RESHAPE` is a factor, 1 in the suite."""

import os

import pytest

FACTOR = float(os.environ.get("SEAWEEDQ_TEST_RESHAPE", "1"))

elsewhere = pytest.mark.skipif(
    FACTOR <= 1, reason="SEAWEEDQ_TEST_RESHAPE=2 runs it: a real broker dies at this place too"
)


def scaled(count: int) -> int:
    """So many examples."""
    return max(1, int(count * FACTOR))
