"""A stream of Spark whose query and whose brokers are killed, while segments split and merge. Longer: `make soak`."""

import random
from pathlib import Path

import pytest

from tests.support.fixtures.spark_session import java
from tests.support.spark.soak import KEYS, check, run


@pytest.mark.process
@pytest.mark.long
def test_a_sink_has_what_was_acknowledged_once_and_in_order(tmp_path: Path) -> None:
    java()
    run(tmp_path, queries=1, brokers=2, seed=random.SystemRandom().randrange(10**6))


def test_the_check_finds_what_is_missing_doubled_or_astray() -> None:
    rows = [(0, n, str(n % KEYS), str(n)) for n in range(3 * KEYS)]
    check([rows[:KEYS], rows[KEYS:]], 3 * KEYS)
    for wrong in ([rows[:-1]], [rows, rows[:1]], [rows[KEYS:], rows[:KEYS]]):
        with pytest.raises(AssertionError):
            check(wrong, 3 * KEYS)
