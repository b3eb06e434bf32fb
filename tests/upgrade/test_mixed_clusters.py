"""Two versions in one cluster under load, each broker restarted and killed, and back again: no promise is broken.

The other version has a level more, which is synthetic. `python -m tests.upgrade.run` does it with three brokers, for
longer.
"""

from pathlib import Path

import pytest

from seaweedq.levels import HIGHEST
from tests.support.upgrade.mixed import Versions, upgraded
from tests.support.upgrade.trees import tree_with_one_level_more

pytestmark = [pytest.mark.process, pytest.mark.service]

MORE_S = 6.0  # on a busy machine, for a recovery


@pytest.mark.long
def test_brokers_of_this_version_and_of_the_next(tmp_path: Path) -> None:
    wanted = Versions(None, tree_with_one_level_more(tmp_path / "after"), brokers=2, publishers=1)
    outcome = upgraded(tmp_path, wanted)
    print(outcome)
    assert outcome.violations == []
    assert outcome.messages > 500
    assert outcome.levels == (HIGHEST, HIGHEST + 1)
    assert outcome.longest_s < wanted.lease_s + 2 * outcome.slowest_start_s + MORE_S
