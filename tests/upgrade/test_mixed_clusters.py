"""Two versions in one cluster under load, each broker restarted and killed, and back again: no promise is broken.

`python -m tests.upgrade.run` does it with three brokers, for longer, and also with a version that has a level more.
"""

from pathlib import Path

import pytest

from seaweedq.levels import HIGHEST
from tests.support.upgrade.mixed import Versions, upgraded
from tests.support.upgrade.trees import tree_before_levels

pytestmark = [pytest.mark.process, pytest.mark.service]

MORE_S = 6.0  # on a busy machine, for a recovery


@pytest.mark.long
def test_brokers_from_before_there_were_levels_and_of_this_version(tmp_path: Path) -> None:
    wanted = Versions(tree_before_levels(tmp_path / "before"), None, brokers=2, publishers=1)
    outcome = upgraded(tmp_path, wanted)
    print(outcome)
    assert outcome.violations == []
    assert outcome.messages > 500
    assert outcome.levels == (1, HIGHEST)
    assert outcome.longest_s < wanted.lease_s + 2 * outcome.slowest_start_s + MORE_S
