"""What is explored here: how much is a matter of the machine and of `SEAWEEDQ_TEST_RESHAPE`, a factor (1 in the suite).

Hypothesis has no deadlines: how long an example takes says more of the machine than of the code.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

for folder in ("broker", "chaos", "cluster"):  # what brokers in one loop, and in processes of their own, are made with
    sys.path.append(str(Path(__file__).parent.parent / folder))

settings.register_profile("seaweedq", deadline=None)
settings.load_profile("seaweedq")


EVERYWHERE = float(os.environ.get("SEAWEEDQ_TEST_RESHAPE", "1")) > 1
REAL = {  # of these modules' tests, those that always run: each takes some leases
    "test_real_cluster_places": ("reshape.committed-kill", "reshape.sealed-kill", "reshape.held-stop", "at_last"),
    "test_real_embedded_places": ("reshape.committed-merge", "[reshape.held]"),
}


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Who is killed between two steps leaves coroutines behind that never began."""
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
        always = REAL.get(item.path.stem)
        if always and not EVERYWHERE and not any(part in item.name for part in always):
            item.add_marker(pytest.mark.skip("SEAWEEDQ_TEST_RESHAPE=2 runs it: a real broker dies at this place too"))
