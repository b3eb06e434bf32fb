"""Tokens of a broker's own URLs: an HMAC-SHA256 over method, object and time of expiry. Pure.

A holder of the secret can make them, and none of them is ever logged.
"""

import hmac
from typing import NamedTuple


class Grant(NamedTuple):
    """The request that a URL allows: a method on one object, until a time in seconds since the epoch. It says all that
    a token is about by itself, so that a token is judged before anything is looked up."""

    method: str
    name: str
    expires_s: int


def sign(secret: bytes, grant: Grant) -> str:
    """Returns the token of a grant, in hex."""
    return hmac.new(secret, "\n".join(map(str, grant)).encode(), "sha256").hexdigest()


def is_signed(secret: bytes, grant: Grant, token: str, now_s: float) -> bool:
    """Tells whether the token is valid for exactly this, and has not expired. The time it takes does not depend on what
    is wrong."""
    made = sign(secret, grant)
    return hmac.compare_digest(made.encode(), token.encode("utf-8", "replace")) and now_s < grant.expires_s
