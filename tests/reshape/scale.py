"""How much is explored: `SEAWEEDQ_TEST_RESHAPE` is a factor, 1 in the suite."""

import os

FACTOR = float(os.environ.get("SEAWEEDQ_TEST_RESHAPE", "1"))


def scaled(count: int) -> int:
    """So many examples."""
    return max(1, int(count * FACTOR))
