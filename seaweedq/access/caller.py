"""Callers: who sent a request, and what it may do."""

from dataclasses import dataclass, field

from seaweedq.access.grants import EVERYTHING, Rights
from seaweedq.access.limits import NO_LIMITS, Limits

DEFAULT = "*"  # the name of what is no principal: the limits of all that have none of their own
NEVER_US = 2**63 - 1  # when a caller expires that has no end


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `principal` is None for one that is anonymous; `token` is the id of its token.

    Each of `layers` must allow what it does: the principal's rights, those of its token, and those of the tokens from
    which that one was issued. Without any layer it may do nothing. It counts until `expires_us`.

    `uid` is that of the principal, by which it differs from each other one that ever had its name: whatever outlives a
    principal goes by it. It is None for an anonymous caller and for the admin, whose name no other principal can have.
    """

    principal: str | None
    token: str | None = None
    layers: tuple[Rights, ...] = field(default=(), repr=False)
    expires_us: int = NEVER_US
    limits: Limits = NO_LIMITS
    uid: str | None = None


NOBODY = Caller(None)  # anonymous where a token is required
ANONYMOUS = Caller(None, layers=(EVERYTHING,))  # anonymous where none is
BROKER = Caller(None, layers=(EVERYTHING,))  # another broker, which has judged for itself
