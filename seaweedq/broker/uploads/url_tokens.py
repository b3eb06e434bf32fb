"""Tokens of a broker's own URLs: an HMAC-SHA256 over method, object, size and time of expiry. Pure.

A holder of the secret can make them, and none of them is ever logged.
"""

import hmac


def sign(secret: bytes, method: str, name: str, size: int, expires_s: int) -> str:
    """Returns the token, in hex. `expires_s` is in seconds since the epoch; `size` is 0 where a method has no body."""
    said = f"{method}\n{name}\n{size}\n{expires_s}".encode()
    return hmac.new(secret, said, "sha256").hexdigest()


def is_signed(secret: bytes, method: str, name: str, size: int, expires_s: int, token: str, now_s: float) -> bool:
    """Whether the token is valid for exactly this, and has not expired. The time it takes does not depend on what is
    wrong."""
    made = sign(secret, method, name, size, expires_s)
    return hmac.compare_digest(made.encode(), token.encode("utf-8", "replace")) and now_s < expires_s
