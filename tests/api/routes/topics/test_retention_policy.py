"""A retention that an earlier version stored, and never enforced, takes nothing until its bounds are named again."""

import pytest

from seaweedq.api.routes.topics.retention_policy import RetentionRequest, changed_retention
from seaweedq.coordination.records.topics import RetentionPolicy

STORED = RetentionPolicy(max_age_s=60, max_bytes=1)


@pytest.mark.parametrize(
    ("before", "wanted", "enforced"),
    [
        (STORED, RetentionRequest(), False),
        (STORED, RetentionRequest(grace_s=60), False),
        (STORED, RetentionRequest(keep_unread=True), False),
        (STORED, RetentionRequest(max_age_s=60), False),
        (STORED, RetentionRequest(max_age_s=60, max_bytes=1), True),
        (STORED, RetentionRequest(max_age_s=60, max_bytes=None), True),
        (STORED, RetentionRequest(max_age_s=None, max_bytes=None), False),
        (RetentionPolicy(), RetentionRequest(delete_read=True), True),
        (RetentionPolicy(), RetentionRequest(grace_s=60), False),
        (RetentionPolicy(max_age_s=60, enforced=True), RetentionRequest(grace_s=60), True),
        (RetentionPolicy(max_age_s=60, enforced=True), RetentionRequest(max_age_s=None), False),
    ],
)
def test_a_policy_is_enforced_once_all_its_bounds_were_set(
    before: RetentionPolicy, wanted: RetentionRequest, enforced: bool
) -> None:
    assert changed_retention(before, wanted).enforced is enforced
