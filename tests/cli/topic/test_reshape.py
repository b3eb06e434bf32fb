"""The advice that follows a manual split."""

import pytest

from seaweedq.cli.topic.configure import until_merged

POLICY = {"enabled": True, "min_segments": 1, "cool_down_s": 600.0}


def test_a_split_that_the_balancer_would_undo_says_how_to_keep_it() -> None:
    said = until_merged("flights", POLICY, 3)
    assert said is not None
    assert "after 600 s" in said
    assert said.endswith("seaweedq topic set flights --min-segments 3")


@pytest.mark.parametrize("policy", [{**POLICY, "enabled": False}, {**POLICY, "min_segments": 3}])
def test_one_that_stays_says_nothing(policy: dict[str, object]) -> None:
    assert until_merged("flights", policy, 3) is None
