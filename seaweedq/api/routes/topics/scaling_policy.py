"""A topic's scaling policy in requests: named fields are checked, compared and changed; the others stay."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from seaweedq.balancer.policy import Count, Seconds, Target, scaling_policy
from seaweedq.broker.load.meters import policy_of
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records.topics import TopicConfig


class ScalingRequest(Struct, forbid_unknown_fields=True):
    """When segments split and merge by themselves; null is the default. Targets are of one segment."""

    target_messages_per_s: Target | UnsetType | None = UNSET
    target_bytes_per_s: Target | UnsetType | None = UNSET
    min_segments: Count | UnsetType | None = UNSET
    max_segments: Count | UnsetType | None = UNSET
    cool_down_s: Seconds | UnsetType | None = UNSET
    enabled: bool | UnsetType | None = UNSET


def changed_scaling(config: TopicConfig, wanted: ScalingRequest) -> dict[str, Any]:
    """Returns the fields that the record keeps: those that were set, and not reset. Raises InvalidRequest where they
    contradict each other."""
    named = config.scaling | msgspec.to_builtins(wanted)
    kept = {field: value for field, value in named.items() if value is not None}
    scaling_policy(kept, config.initial_segments)
    return kept


def wanted_scaling(topic: Topic, wanted: ScalingRequest) -> dict[str, Any]:
    """Returns the policy of a topic as it would be with the fields that the request names; null stands for a
    default."""
    named: dict[str, Any] = msgspec.to_builtins(wanted)
    config = topic.record.config
    rest = {field: value for field, value in config.scaling.items() if named.get(field, value) is not None}
    defaults = msgspec.to_builtins(scaling_policy(rest, config.initial_segments))
    asked = {field: defaults[field] if value is None else value for field, value in named.items()}
    current: dict[str, Any] = msgspec.to_builtins(policy_of(topic))
    return current | asked
