"""The scaling policy: what holds where nothing is set, what is refused and how that is said."""

from typing import Any

import msgspec
import pytest

from seaweedq.balancer.policy import ScalingPolicy, scaling_policy
from seaweedq.errors import InvalidRequest


def test_the_defaults() -> None:
    assert scaling_policy({}, 4) == ScalingPolicy(
        target_messages_per_s=200_000,
        target_bytes_per_s=32 * 1024 * 1024,
        min_segments=4,
        max_segments=256,
        cool_down_s=600,
        enabled=True,
    )


@pytest.mark.parametrize(
    ("config", "initial", "least", "most"),
    [
        ({}, 1, 1, 256),
        ({}, 1024, 1024, 1024),
        ({"max_segments": 8}, 4, 4, 8),
        ({"max_segments": 2}, 4, 2, 2),
        ({"min_segments": 2}, 4, 2, 256),
        ({"min_segments": 500}, 4, 500, 500),
        ({"min_segments": 8, "max_segments": 8}, 1, 8, 8),
        ({"min_segments": None, "max_segments": None}, 3, 3, 256),
    ],
)
def test_bounds_that_are_left_out(config: dict[str, Any], initial: int, least: int, most: int) -> None:
    policy = scaling_policy(config, initial)
    assert (policy.min_segments, policy.max_segments) == (least, most)


def test_what_is_set_holds_and_is_told_as_json() -> None:
    config = {
        "target_messages_per_s": 1000,
        "target_bytes_per_s": 4096,
        "min_segments": 2,
        "max_segments": 9,
        "cool_down_s": 7.5,
        "enabled": False,
    }
    policy = scaling_policy(config, 1)
    assert msgspec.to_builtins(policy) == config
    assert scaling_policy(msgspec.json.decode(msgspec.json.encode(policy)), 1) == policy


@pytest.mark.parametrize(
    ("config", "field", "value", "says"),
    [
        ({"target_messages_per_s": 0}, "target_messages_per_s", "0", "at least 1"),
        ({"target_messages_per_s": 1.5}, "target_messages_per_s", "1.5", "a whole number, not a fraction"),
        ({"target_bytes_per_s": -1}, "target_bytes_per_s", "-1", "at least 1"),
        ({"target_bytes_per_s": True}, "target_bytes_per_s", "true", "a whole number, not a boolean"),
        ({"min_segments": 0}, "min_segments", "0", "at least 1"),
        ({"max_segments": 10_001}, "max_segments", "10001", "at most 10000"),
        ({"min_segments": 9, "max_segments": 8}, "min_segments", "9", "at most max_segments=8"),
        ({"cool_down_s": 0.5}, "cool_down_s", "0.5", "at least 1"),
        ({"cool_down_s": 86_401}, "cool_down_s", "86401", "at most 86400"),
        ({"cool_down_s": "x" * 1000}, "cool_down_s", '"xxxx', "a number, not text"),
        ({"enabled": 1}, "enabled", "1", "true or false, not a whole number"),
        ({"deep": {"er": 1}}, "deep", '{"er":1}', "target_messages_per_s, target_bytes_per_s, min_segments"),
    ],
)
def test_what_is_refused_is_named_with_its_bound(config: dict[str, Any], field: str, value: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        scaling_policy(config, 1)
    assert refused.value.fields["field"] == f"scaling.{field}"
    assert refused.value.fields["value"].startswith(value)
    assert len(refused.value.fields["value"]) <= 100
    assert says in refused.value.fields["bound"]
    for part in (field, says.partition(", not ")[0]):
        assert part in refused.value.detail
    assert value in refused.value.detail or field == "deep"  # a field that does not exist has no bound
