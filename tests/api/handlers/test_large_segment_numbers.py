"""A number that no segment can have is one that is not there, and no failure."""

from pathlib import Path

import pytest

from tests.support.brokers.changing import ask, at, make, refused
from tests.support.brokers.in_process_cluster import in_loop

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("number", [10**10, 2**63 - 1])
async def test_numbers_beyond_all_ids(tmp_path: Path, number: int) -> None:
    async with in_loop(tmp_path, 1, publish_timeout_s=1) as together:
        (one,) = together.brokers
        await make(one)
        async with at(together, one) as http:
            refused(await ask(http, number, "split"), 404, "segment-not-found")
            refused(await ask(http, number, "roll"), 404, "segment-not-found")
            refused(await ask(http, number, "merge", {"with": 0}), 404, "segment-not-found")
            refused(await ask(http, 0, "merge", {"with": number}), 404, "segment-not-found")
            refused(await ask(http, number, "move", {"to": "b0"}), 404, "segment-not-found")
