"""Tokens: `sq1_{id}_{secret}_{crc}`, all in lower-case hexadecimal digits.

The id (64 bits) names a token in lists and revocations. The secret has 256 bits, so its SHA-256 needs no salt: a
broker keeps that of the whole text, and finds a token by it, which compares no secret. The CRC tells a text that was
cut or mistyped from one that was revoked, and scanners of repositories a token from other texts.
"""

import hashlib
import re
import zlib

from seaweedq.clock import Ids

PREFIX = b"sq1_"  # of every token
ID_DIGITS, SECRET_DIGITS = 16, 64
_TOKEN = re.compile(rf"(sq1_([0-9a-f]{{{ID_DIGITS}}})_[0-9a-f]{{{SECRET_DIGITS}}})_([0-9a-f]{{8}})")

_SIGNED = re.compile(r"(\bey[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")  # a JSON Web Token
_SECRET = re.compile(rf"(sq1_[0-9a-f]{{{ID_DIGITS}}})_[0-9a-zA-Z_]+")


def draw(ids: Ids) -> str:
    """Returns a new token."""
    body = f"sq1_{ids.nonce()[:ID_DIGITS]}_{ids.nonce()}{ids.nonce()}"
    return f"{body}_{_crc(body)}"


def id_of(text: str) -> str | None:
    """Returns the id of a token, None if the text is none."""
    found = _TOKEN.fullmatch(text)
    return found[2] if found and _crc(found[1]) == found[3] else None


def masked(text: str) -> str:
    """Returns a text that somebody else has chosen, without the secrets of tokens, and the signatures of JSON Web
    Tokens, in it."""
    return _SIGNED.sub(r"\1.***", _SECRET.sub(r"\1_***", text))


def digest_of(text: bytes) -> bytes:
    """Returns the SHA-256 by which a token is known."""
    return hashlib.sha256(text).digest()


def name_of_denied(kind: str, value: str) -> str:
    """Returns the name of the denial of a value, which may be any text."""
    return f"{kind}-{hashlib.sha256(value.encode()).hexdigest()[:32]}"


def _crc(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"
