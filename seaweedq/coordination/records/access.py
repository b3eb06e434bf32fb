"""The records of principals and tokens. A later version may add members that narrow a right only by the level of the
cluster: an earlier one would keep them, and not heed them."""

import msgspec

from seaweedq.access.grants import Grant
from seaweedq.access.limits import NO_LIMITS, Limits


class PrincipalRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A principal: what it may do, and how much. `uid` is drawn when it is created: tokens name it, so that none counts
    for another principal that gets the same name later."""

    uid: str
    grants: tuple[Grant, ...]
    created_us: int
    disabled: bool = False
    limits: Limits = NO_LIMITS


class TokenRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token: the SHA-256 of its text, and the principal that it stands for.

    `parent` is the token from which it was issued: it counts only as long as that one does. `grants` narrow it further.
    `issuer` is the principal that issued it, and `note` a text of that one's; both are for people.
    """

    digest: str
    principal: str
    uid: str
    created_us: int
    issuer: str = ""
    expires_us: int | None = None
    grants: tuple[Grant, ...] | None = None
    parent: str | None = None
    note: str = ""
