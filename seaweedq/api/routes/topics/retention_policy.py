"""The retention of a topic: how requests name it, and answers show it."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.broker.retention.files import Preview
from seaweedq.coordination.records.topics import RetentionPolicy

BOUNDS = ("max_age_s", "max_bytes")  # of which earlier versions stored what they never enforced
_AGE_S = 10 * 365 * 86_400
Bytes = Annotated[int, Meta(ge=1, le=2**60)]
Age = Annotated[float, Meta(ge=1, le=_AGE_S)]
Grace = Annotated[float, Meta(ge=60, le=604_800)]


class RetentionRequest(Struct, forbid_unknown_fields=True):
    """Which messages are kept; null is no bound. `keep_unread`: age and size never take what a subscription has not
    acked. `delete_read`: what all subscriptions (at least one) have acked goes. `grace_s`: how long files stay when
    their messages were taken; null is the brokers' setting."""

    max_age_s: Age | UnsetType | None = UNSET
    max_bytes: Bytes | UnsetType | None = UNSET
    keep_unread: bool | UnsetType = UNSET
    delete_read: bool | UnsetType = UNSET
    grace_s: Grace | UnsetType | None = UNSET


class RetentionAnswer(Struct):
    """The retention of a topic. It is not `enforced` where an earlier version stored it, until its bounds are set anew;
    null: it takes nothing."""

    max_age_s: float | None
    max_bytes: int | None
    keep_unread: bool
    delete_read: bool
    grace_s: float | None
    enforced: bool | None


class PreviewAnswer(Struct):
    """The amounts that a retention would take now: files, their stored bytes, their messages, and how many of these
    some subscription has not acked, by the last checkpoints of the cursors, which retention itself goes by."""

    files: int
    bytes: int
    messages: int
    unread: int


def changed_retention(policy: RetentionPolicy, wanted: RetentionRequest) -> RetentionPolicy:
    """Returns the policy with the fields that a request names. It is enforced if it takes anything, and every bound of
    it was set since bounds are enforced: one that an earlier version stored must be named again."""
    named = msgspec.to_builtins(wanted)
    if not named:
        return policy
    old = not policy.enforced and any(getattr(policy, name) is not None for name in BOUNDS if name not in named)
    after = msgspec.structs.replace(policy, **named, enforced=False)
    return msgspec.structs.replace(after, enforced=after.takes and not old)


def shown_retention(policy: RetentionPolicy) -> RetentionAnswer:
    """Returns the policy as answers show it."""
    enforced = policy.enforced if policy.takes else None
    return RetentionAnswer(
        policy.max_age_s, policy.max_bytes, policy.keep_unread, policy.delete_read, policy.grace_s, enforced
    )


def preview_answer(preview: Preview) -> PreviewAnswer:
    """Returns a preview as answers show it."""
    return PreviewAnswer(preview.files, preview.size_bytes, preview.rows, preview.unread_rows)
