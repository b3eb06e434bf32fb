"""The rules by which a JSON Web Token counts here (RFC 7519, with the advice of RFC 8725). Pure: the time is passed in.

A text goes through three steps, and each refuses for one Reason. 1. Its form and its header, of which nothing is
believed: only the name of the algorithm, which must be one of the settings, and that of the key. Headers that lead to
other keys (`jku`, `x5u`, `jwk`, `x5c`) or ask for extensions (`crit`) are refused, and not heeded. 2. Its signature, by
a key that the issuer has published for such an algorithm: a public key is never taken for the secret of an HMAC, since
no such algorithm can be set. 3. Its claims, once the signature is good: issuer, audience, times, subject.

The id of a token is its `jti`; without one it is the SHA-256 of what is signed. A digest of the whole text would not
do: one token has many texts, since the last character of base64 has spare bits, and ECDSA has two signatures for each.

Clocks may differ by SKEW_S.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeGuard
from urllib.parse import urlsplit

import msgspec

from seaweedq.access.rights import NEVER_US, Rights
from seaweedq.broker.access.grants import roles_of
from seaweedq.broker.access.view import handle_of
from seaweedq.errors import InvalidRequest, Unauthenticated
from seaweedq.settings import Settings

MAX_BYTES = 8 * 1024
SKEW_S = 60
MAX_SUBJECT = 255  # OpenID Connect Core 1.0, 2: `sub`
MAX_ID = 128
MAX_NAME = 127  # of a principal
LATEST_S = 253_402_300_000.0  # of an end, in the year 9999: answers show it as a date
KEY_TYPES: Mapping[str, str] = {  # RFC 7518, 3.1: the algorithms with a public key; RFC 8037
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
REFUSED_HEADERS = ("jku", "x5u", "jwk", "x5c", "crit")
SCOPES = ("scope", "scp")  # claims whose text is a list, with blanks between (RFC 9068)
REFUSED = "missing, invalid, expired or revoked token; send `Authorization: Bearer ...`"
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_FORM = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_PRINTABLE = re.compile(r"[ -~]+")


class Reason(StrEnum):
    """Why a token is refused, in the audit and in metrics. The client is told none of them."""

    LENGTH = "jwt-length"
    FORM = "jwt-form"
    ALGORITHM = "jwt-algorithm"
    HEADER = "jwt-header"
    KEY = "jwt-key"
    SIGNATURE = "jwt-signature"
    ISSUER = "jwt-issuer"
    AUDIENCE = "jwt-audience"
    NO_EXPIRY = "jwt-no-expiry"
    EXPIRED = "jwt-expired"
    EARLY = "jwt-early"
    SUBJECT = "jwt-subject"
    DENIED = "jwt-denied"
    DISABLED = "jwt-disabled"


def refused(reason: Reason, token: str | None = None) -> Unauthenticated:
    """Returns the error for a token, whose id is told if its signature is good."""
    return Unauthenticated(REFUSED, reason=reason, token=None if token is None else handle_of("jti", token))


class Header(NamedTuple):
    """A token's own words about its signature, which anybody may have invented."""

    algorithm: str
    key: str | None


class Verified(NamedTuple):
    """A token whose signature and claims are good: its id, subject, the name of the principal that it may stand for,
    its roles here, the thumbprint of its key, and when it ends."""

    id: str
    subject: str
    name: str | None
    roles: tuple[str, ...]
    thumbprint: str
    expires_us: int


@dataclass(frozen=True)
class JwtRules:
    """The rules of the settings."""

    issuer: str
    audience: str
    algorithms: frozenset[str]
    principal_claim: str
    roles_claim: str
    roles: Mapping[str, Rights]

    def rights(self, roles: Iterable[str]) -> Rights:
        """Returns the rights of some roles together."""
        return Rights([grant for role in roles for grant in self.roles[role].grants])

    def header(self, text: bytes) -> Header:
        """Returns the header of a text. Raises Unauthenticated."""
        if len(text) > MAX_BYTES:
            raise refused(Reason.LENGTH)
        if not _FORM.fullmatch(text):
            raise refused(Reason.FORM)
        found = decoded(text.partition(b".")[0])
        algorithm, key = found.get("alg"), found.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self.algorithms:
            raise refused(Reason.ALGORITHM)
        if any(name in found for name in REFUSED_HEADERS) or not (key is None or isinstance(key, str)):
            raise refused(Reason.HEADER)
        return Header(algorithm, key)

    def verified(self, text: bytes, thumbprint: str, now_us: int) -> Verified:
        """Returns what the claims of a text say, whose signature is good. Raises Unauthenticated."""
        signed = text.rpartition(b".")[0]
        claims = decoded(signed.partition(b".")[2])
        token = id_of(claims.get("jti"), signed)
        if claims.get("iss") != self.issuer:
            raise refused(Reason.ISSUER, token)
        audience = claims.get("aud")
        if self.audience not in (audience if isinstance(audience, list) else [audience]):
            raise refused(Reason.AUDIENCE, token)
        expires_us = _expiry(claims, token, now_us)
        subject, name = claims.get("sub"), claim_of(claims, self.principal_claim)
        if not (isinstance(subject, str) and len(subject) <= MAX_SUBJECT and _PRINTABLE.fullmatch(subject)):
            raise refused(Reason.SUBJECT, token)
        named = name if isinstance(name, str) and len(name) <= MAX_NAME and self.principal_claim else None
        roles = [one for one in names_in(self.roles_claim, claim_of(claims, self.roles_claim)) if one in self.roles]
        return Verified(token, subject, named, tuple(sorted(set(roles))), thumbprint, expires_us)


def _expiry(claims: Mapping[str, Any], token: str, now_us: int) -> int:
    """Returns when a token ends, with the skew of clocks. Raises Unauthenticated."""
    expires_s = claims.get("exp")
    if not _is_time(expires_s):
        raise refused(Reason.NO_EXPIRY, token)
    expires_us = int(min((min(expires_s, LATEST_S) + SKEW_S) * 1e6, NEVER_US - 1024))
    if expires_us <= now_us:
        raise refused(Reason.EXPIRED, token)
    for name in ("nbf", "iat"):
        begins_s = claims.get(name)
        if begins_s is not None and not (_is_time(begins_s) and begins_s - SKEW_S <= now_us / 1e6):
            raise refused(Reason.EARLY, token)
    return expires_us


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LATEST_S < value < math.inf


def decoded(part: bytes) -> dict[str, Any]:
    """Returns the JSON object in a part of a token. Raises Unauthenticated."""
    import jwt.utils

    try:
        return _OBJECT.decode(jwt.utils.base64url_decode(part))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        raise refused(Reason.FORM) from None


def id_of(jti: Any, signed: bytes) -> str:
    """Returns the id of a token, of which `signed` is all but the signature."""
    if isinstance(jti, str) and len(jti) <= MAX_ID and _PRINTABLE.fullmatch(jti):
        return jti
    return f"sha256:{hashlib.sha256(signed).hexdigest()}"


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """Returns a claim by its name, or by its path: `realm_access/roles`; None if there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def names_in(claim: str, value: Any) -> Iterable[str]:
    """Returns the names of roles in a claim: a list, or a single text. A text is split at blanks if the claim is a
    scope; elsewhere a blank is part of a name, so that no subject has two roles by its name."""
    if isinstance(value, str):
        return value.split() if claim in SCOPES else (value,)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else ()


def is_jwt(text: bytes) -> bool:
    """Tells whether a text is meant to be a JSON Web Token: its header is an object, in base64, and a dot follows."""
    return text.startswith(b"ey") and text.count(b".") >= 2


def rules_of(settings: Settings) -> JwtRules | None:
    """Returns the rules of the settings, None if no issuer is set. Raises InvalidRequest."""
    if not settings.oidc_issuer:
        return None
    if not settings.oidc_audience:
        raise _invalid(
            "oidc_audience", "oidc_issuer needs oidc_audience, so that the broker refuses tokens for other services"
        )
    if not may_be_asked(settings.oidc_issuer):
        raise _invalid(
            "oidc_issuer",
            f"the value must be an https:// URL, or an http:// URL on loopback, not {settings.oidc_issuer!r}",
        )
    algorithms = frozenset(one.strip() for one in settings.oidc_algorithms.split(",") if one.strip())
    if not algorithms or algorithms - KEY_TYPES.keys():
        raise _invalid(
            "oidc_algorithms",
            f"the value must list one or more of {', '.join(KEY_TYPES)}, and nothing else, not "
            f"{settings.oidc_algorithms!r}",
        )
    try:
        roles = roles_of(settings.oidc_roles)
    except ValueError as error:
        raise _invalid("oidc_roles", str(error)) from None
    return JwtRules(
        settings.oidc_issuer,
        settings.oidc_audience,
        algorithms,
        settings.oidc_principal_claim,
        settings.oidc_roles_claim,
        roles,
    )


def may_be_asked(url: str) -> bool:
    """Returns whether keys may come from a URL: over TLS, or from this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_odd = bool(parts.username or parts.password or parts.fragment) or parts.port == 0
    except ValueError:
        return False
    is_here = host in ("localhost", "::1") or re.fullmatch(r"127(\.[0-9]{1,3}){3}", host) is not None
    return bool(host) and not is_odd and (parts.scheme == "https" or (parts.scheme == "http" and is_here))


def _invalid(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"setting {field}: {why}", field=field)
