"""A mirrored journal among real processes, etcd and S3 under load: a mirror is killed at a fail point, and an owner
stands still past its lease. More of it: soak_mirrored."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.chaos.mirrored import done_under_load, killed_at, stopped_past_its_lease

pytestmark = [pytest.mark.process, pytest.mark.service]


@pytest.mark.long
def test_nothing_is_lost_with_a_mirror_or_a_paused_owner(tmp_path: Path) -> None:
    steps = (partial(killed_at, "mirror.held:20"), stopped_past_its_lease)
    found, answered = done_under_load(tmp_path, steps)
    assert found == []
    assert answered > 100
