"""The JSON Web Tokens that one broker has verified, and their callers.

| the name in `oidc_principal_claim` is | the caller is |
| --- | --- |
| a principal's | that principal, with its grants and limits |
| a disabled principal's | nobody: the token is refused |
| nobody's, or there is none | `oidc:{sub}`, with the grants of its roles and the limits of `*`; no principal is made |

The caller follows from the token and from what is known now (`current`): denials, principals, and the issuer's keys. So
a request that lasts is judged again with each change, as those of other tokens are. `admin` is no principal of the
view, so no claim gives its rights.

A verified token is remembered by the SHA-256 of its text, until its key is withdrawn or a change is about it: to find
it again costs what an opaque token costs. The memory has REMEMBERED tokens at most, and the oldest go first. It is no
verdict: each request compares the time at which the token ends (callers). One that has expired stays in the memory, so
that it is refused without another look at its signature.
"""

import hashlib

from seaweedq.access.rights import DEFAULT, SUBJECT, SUBJECT_UID, Caller, Rights
from seaweedq.broker.access.issuer_keys import IssuerKey, IssuerKeys
from seaweedq.broker.access.jwt_rules import JwtRules, Reason, Verified, refused
from seaweedq.broker.access.view import AccessView, Touched, handle_of, handle_of_principal
from seaweedq.clock import Clock
from seaweedq.errors import NotReady, Unauthenticated

REMEMBERED = 10_000


class Jwts:
    """Those of one broker. `verified` counts signatures that were good, `refused` refusals by reason."""

    def __init__(self, rules: JwtRules, keys: IssuerKeys, view: AccessView, clock: Clock) -> None:
        import jwt  # a broker without an issuer does without

        self._jwt, self._jws = jwt, jwt.PyJWS()
        self.keys = keys
        self.verified = 0
        self.refused: dict[str, int] = dict.fromkeys(map(str, Reason), 0)
        self._rules = rules
        self._view = view
        self._clock = clock
        self._known: dict[bytes, Caller] = {}  # by digest, the oldest first
        self._by_handle: dict[str, set[bytes]] = {}

    def find(self, digest: bytes) -> Caller | None:
        """Returns the caller of a text that is remembered, whose time may be over."""
        return self._known.get(digest)

    def knows(self, handle: str) -> bool:
        """Returns whether a text with this handle is remembered."""
        return handle in self._by_handle

    async def verify(self, text: bytes, digest: bytes) -> Caller:
        """Returns the caller of a text. Raises Unauthenticated with its reason, and NotReady if the issuer's keys are
        not known."""
        try:
            if (known := self._known.get(digest)) and known.expires_us <= self._clock.now_us():
                raise refused(Reason.EXPIRED, known.proof.id)
            header = self._rules.header(text)
            if not self._view.loaded:
                raise NotReady("the broker is starting, and does not know yet which tokens are valid")
            key = await self.keys.fetched(header.key, header.algorithm)
            if key is None:
                if self.keys.age_s is None:
                    raise NotReady("the broker does not have the keys of oidc_issuer; try again")
                raise refused(Reason.KEY)
            self._check_signature(text, header.algorithm, key)
            self.verified += 1
            caller = self._caller(self._rules.verified(text, key.thumbprint, self._clock.now_us()))
        except Unauthenticated as error:
            self.refused[error.reason] += 1
            raise
        self._remember(digest, caller)
        return caller

    def current(self, found: Verified) -> Caller | None:
        """Returns the caller of a token as it is now, whose time may be over; None if it does not count."""
        try:
            return self._caller(found)
        except Unauthenticated:
            return None

    def forget(self, touched: Touched) -> set[str]:
        """Forgets the texts that a change is about. Returns the ids of their tokens."""
        if touched is None:
            digests = set(self._known)
        else:
            digests = {digest for handle in touched for digest in self._by_handle.get(handle, ())}
        return {self._drop(digest).token or "" for digest in digests}

    def forget_withdrawn(self) -> set[str]:
        """Forgets the texts whose keys the issuer has withdrawn. Returns the ids of their tokens."""
        gone = [digest for digest, caller in self._known.items() if caller.proof.thumbprint not in self.keys]
        return {self._drop(digest).token or "" for digest in gone}

    def _check_signature(self, text: bytes, algorithm: str, key: IssuerKey) -> None:
        """Raises Unauthenticated if the signature is not the key's."""
        try:
            self._jws.decode_complete(text, key.public, algorithms=[algorithm])
        except (self._jwt.PyJWTError, ValueError, RecursionError):
            raise refused(Reason.SIGNATURE) from None

    def _caller(self, found: Verified) -> Caller:
        view, token = self._view, handle_of("jti", found.id)
        if found.thumbprint not in self.keys:
            raise refused(Reason.KEY, found.id)
        now_us = self._clock.now_us()
        if view.is_denied("jti", found.id, now_us) or view.is_denied("sub", found.subject, now_us):
            raise refused(Reason.DENIED, found.id)
        handles = [handle_of("sub", found.subject)]
        principal = None
        if found.name is not None and found.name != DEFAULT:
            handles.append(handle_of_principal(found.name))
            principal = view.principals.get(found.name)
        if principal is None or found.name is None:
            layers = (self._rules.rights(found.roles),)
            name, uid, limits = f"{SUBJECT}{found.subject}", uid_of(self._rules.issuer, found.subject), view.default
        elif principal.disabled:
            raise refused(Reason.DISABLED, found.id)
        else:
            name, uid, limits = found.name, principal.uid, view.limits(found.name, principal.uid) or view.default
            layers = (Rights(principal.grants),)
        return Caller(name, token, layers, found.expires_us, limits, uid, "jwt", found, tuple(handles))

    def _remember(self, digest: bytes, caller: Caller) -> None:
        if digest in self._known:
            self._drop(digest)
        while len(self._known) >= REMEMBERED:
            self._drop(next(iter(self._known)))
        self._known[digest] = caller
        for handle in (caller.token or "", *caller.handles):
            self._by_handle.setdefault(handle, set()).add(digest)

    def _drop(self, digest: bytes) -> Caller:
        caller = self._known.pop(digest)
        for handle in (caller.token or "", *caller.handles):
            of_handle = self._by_handle[handle]
            of_handle.discard(digest)
            if not of_handle:
                del self._by_handle[handle]
        return caller


def uid_of(issuer: str, subject: str) -> str:
    """Returns the uid of a subject that stands for no principal."""
    return f"{SUBJECT_UID}{hashlib.sha256(f'{issuer} {subject}'.encode()).hexdigest()[:32]}"
