"""The callers of requests: the principal of each token, and the requests that end when its rights end.

A token is the text of the admin's file, one of this cluster (`sq1_`), or a JSON Web Token of `oidc_issuer` (jwts). A
text of another form is somebody else's, as a proxy's, and is no token.

The token of `admin_token_file` is the first one, and the way back in. It may do everything, on this broker alone. The
file is read again each LOOK_S if it has changed, so that its writers can change or end the token while the
broker runs. One that cannot be read any more ends it, and so does one that all users of the machine may write: they
could make themselves its administrators. Its text is any secret of MIN_CHARACTERS or more; only its SHA-256 and its
length are kept, by which it is found in texts that must not have it.

A request that waits or streams is *held*. With each change of principals and tokens the held requests of these tokens
are judged again, and one that has lost its right is ended. So are each LOOK_S those whose tokens have expired, and
those of the admin's file. None of it costs as many steps as there are requests that wait. A broker without a lease may
be cut off from coordination, and then hears of no change: all held requests are ended.

A token that this broker does not know is looked up in coordination, before the broker refuses it. A new token counts at
once at the broker that created it, and at the others as their watches tell them, some milliseconds later; its client
may ask another one first. So a well-formed token whose id is not known is read once: its record, that of its principal,
and those of the tokens from which it came, as far as they are not known. The view applies them as its watch does, so an
older revision overwrites nothing, and a token that was revoked meanwhile stays so.

Strangers can send well-formed texts with ids that never were. A read is begun RATE_S times a second at most, with one
second's worth at once; one that found nothing is not repeated for NOTHING_S; requests with the same id share a read. A
token that gets no read is refused as an unknown one. Nothing of it is kept for longer.
"""

import asyncio
import itertools
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import NamedTuple

from seaweedq.access.limits import Bucket, Limits
from seaweedq.access.rights import EVERYTHING, NEVER_US, SUBJECT, Action, Caller, Resource, judge
from seaweedq.access.tokens import PREFIX, digest_of, id_of, masked
from seaweedq.broker.access.certificates import ClientCertificate, ClientCertificates, Names
from seaweedq.broker.access.issuer_keys import Fetch, HttpIssuer, IssuerKeys
from seaweedq.broker.access.jwt_rules import REFUSED, JwtRules, is_jwt, rules_of
from seaweedq.broker.access.jwts import Jwts
from seaweedq.broker.access.view import MAX_DEPTH, AccessView, Touched, handle_of
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Coordination
from seaweedq.coordination.records import TokenRecord
from seaweedq.errors import InvalidRequest, NotReady, Unauthenticated
from seaweedq.settings import Settings

ADMIN = "admin"  # the principal of this token, for which no other can be created
LOOK_S = 0.5
MIN_CHARACTERS, MAX_BYTES = 32, 4096
HIDDEN = "***"
Stamp = tuple[int, int, int]
logger = logging.getLogger(__name__)
RATE_S = 20.0
NOTHING_S = 1.0
FEW = 100  # requests that have ended may stay among those that expire, beside as many as are held


class AdminToken:
    """The token in a file; an empty path is none. Each token has a `caller` of its own: requests of the one before do
    not count."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: Stamp | None = None
        self._digest: bytes | None = None
        self._characters = 0
        self.caller = Caller(ADMIN, "admin-token-file", (EVERYTHING,), identity="token")

    def require(self) -> None:
        """Reads the file, at the start. Raises InvalidRequest, which names no part of its content."""
        if self._path is None:
            return
        try:
            self._read(self._path, _stamp(self._path))
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"admin_token_file={str(self._path)!r} cannot be used: {error}", field="admin_token_file"
            ) from None

    def find(self, digest: bytes) -> Caller | None:
        """Returns the caller, if this is the token's SHA-256."""
        return self.caller if digest == self._digest else None

    @property
    def counts(self) -> bool:
        """Returns whether there is a token."""
        return self._digest is not None

    def refresh(self) -> bool:
        """Reads the file again if it has changed. Returns whether the token has."""
        if self._path is None:
            return False
        before = self._digest
        try:
            seen = _stamp(self._path)
            if seen == self._seen:
                return False
            self._read(self._path, seen)
        except (OSError, ValueError) as error:
            if self._digest is not None:
                logger.warning(
                    "the admin token is no longer valid, because the file named by admin_token_file can no longer be "
                    "used: %s",
                    error,
                )
            self._digest = self._seen = None
        return self._digest != before

    def masked(self, text: str) -> str:
        """Returns a text that somebody else has chosen, without the token in it: somebody may have sent it in the place
        of a name."""
        kept, size = 0, self._characters
        pieces: list[str] = []
        at = 0
        while self._digest is not None and at + size <= len(text):
            if digest_of(text[at : at + size].encode("utf-8", "replace")) != self._digest:
                at += 1
                continue
            pieces += [text[kept:at], HIDDEN]
            kept = at = at + size
        return "".join([*pieces, text[kept:]])

    def _read(self, path: Path, seen: Stamp) -> None:
        content = _read(path)
        digest = digest_of(content)
        if digest != self._digest:
            self.caller = replace(self.caller)
        self._digest, self._characters, self._seen = digest, len(content), seen


def _stamp(path: Path) -> Stamp:
    found = os.stat(path)  # of the file behind a link: Kubernetes renews a secret by another one
    if found.st_mode & stat.S_IWOTH:
        raise ValueError(
            "any user of this machine can write to the file (mode "
            f"{stat.S_IMODE(found.st_mode):04o}); to forbid this, run chmod o-w on the file"
        )
    return found.st_ino, found.st_ctime_ns, found.st_size


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1).strip()
    if not MIN_CHARACTERS <= len(content) <= MAX_BYTES:
        raise ValueError(f"the file must contain a token of {MIN_CHARACTERS} to {MAX_BYTES} characters")
    if not all(33 <= one <= 126 for one in content):
        raise ValueError("the token must be printable ASCII without blanks")
    return content


class TokenLookups:
    """The lookups of one broker."""

    def __init__(self, coordination: Coordination, view: AccessView, clock: Clock) -> None:
        self._coordination = coordination
        self._view = view
        self._clock = clock
        self._bucket = Bucket(RATE_S, clock.monotonic_s())
        self._nothing: dict[str, float] = {}  # until when, by token; in the order in which that ends
        self._running: dict[str, asyncio.Task[bool]] = {}

    async def fetch(self, token: str) -> bool:
        """Reads a token by its id, unless it is known. Returns whether anything was learnt. Raises
        CoordinationUnavailable."""
        if token in self._view.tokens or not self._view.loaded:
            return False
        running = self._running.get(token)
        if running is None:
            now_s = self._clock.monotonic_s()
            for known in [known for known, until_s in self._nothing.items() if until_s <= now_s]:
                del self._nothing[known]
            if token in self._nothing or self._bucket.take(1, now_s):
                return False
            running = asyncio.create_task(self._read(token), name=f"lookup of token {token}")
            self._running[token] = running
            running.add_done_callback(lambda ended: self._end(token, ended))
        return await asyncio.shield(running)

    async def _read(self, token: str) -> bool:
        found = await self._read_token(token)
        if found is None:
            self._nothing[token] = self._clock.monotonic_s() + NOTHING_S
            return False
        principal = self._view.principals.get(found.principal)
        if principal is None or principal.uid != found.uid:
            await self._read_record(keys.PRINCIPALS.key(found.principal))
        for _ in range(MAX_DEPTH):
            if found is None or found.parent is None:
                break
            found = self._view.tokens.get(found.parent) or await self._read_token(found.parent)
        return True

    async def _read_token(self, token: str) -> TokenRecord | None:
        await self._read_record(keys.TOKENS.key(token))
        return self._view.tokens.get(token)

    async def _read_record(self, key: str) -> None:
        there = await self._coordination.get(key)
        if there is not None:
            self._view.take([Change(key, there.value, there.revision)])

    def _end(self, token: str, ended: asyncio.Task[bool]) -> None:
        self._running.pop(token, None)
        if not ended.cancelled():
            ended.exception()  # its waiters have it; perhaps there are none any more


@dataclass(slots=True, eq=False)
class _HeldRequest:
    caller: Caller
    action: Action | None
    resource: Resource
    end: Callable[[], None]
    expires_us: int


class Issuer(NamedTuple):
    """The issuer of JSON Web Tokens: the rules of the settings, and how its keys are fetched."""

    rules: JwtRules
    fetch: Fetch
    max_age_s: float

    @staticmethod
    def of(settings: Settings) -> "Issuer | None":
        """Returns the issuer of the settings, None if they name none. Raises InvalidRequest."""
        rules = rules_of(settings)
        return Issuer(rules, HttpIssuer(settings).fetch, settings.jwks_max_age_s) if rules else None


class Callers:
    """Finds callers by tokens, and ends the held requests of those that lose a right. `jwts` has the tokens of another
    issuer, if there is one."""

    jwts: Jwts | None = None

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        admin: AdminToken,
        issuer: Issuer | None = None,
        names: Names = "san",
    ) -> None:
        self.view = AccessView(coordination, self._changed)
        self.certificates = ClientCertificates(names, self.view)
        if issuer:
            keys_of_issuer = IssuerKeys(issuer.fetch, clock, issuer.max_age_s, self._keys_changed)
            self.jwts = Jwts(issuer.rules, keys_of_issuer, self.view, clock)
        self._lookups = TokenLookups(coordination, self.view, clock)
        self._admin = admin
        self._ca = b""
        self._clock = clock
        self._listeners: list[Callable[[Touched], None]] = []
        self._held: dict[_HeldRequest, None] = {}  # in the order in which they began
        self._by_handle: dict[str, dict[_HeldRequest, None]] = {}  # in that order, too
        self._expiring: list[tuple[int, int, _HeldRequest]] = []  # a heap, with some that have ended
        self._numbers = itertools.count()

    def find(self, digest: bytes) -> Caller | None:
        """Returns the caller of the token with this SHA-256, None if none counts."""
        found = self.view.found.get(digest) or (self.jwts and self.jwts.find(digest))
        found = found or self._admin.find(digest) or self.view.find(digest)
        if found is None or (found.expires_us != NEVER_US and found.expires_us <= self._clock.now_us()):
            return None
        return found

    async def caller_of(self, text: bytes) -> Caller | None:
        """Returns the caller of the text that a request shows as its token; None if it has the form of none. Raises
        Unauthenticated with its reason, NotReady while tokens or keys are not known yet, CoordinationUnavailable.

        Of a token that is not known another broker may have told its client a moment ago, so it is looked up once."""
        digest = digest_of(text)
        found = self.find(digest)
        if found is not None:
            return found
        if text.startswith(PREFIX):
            if not self.view.loaded:
                raise NotReady("the broker is starting, and does not know yet which tokens are valid")
            if not await self.learn(text) or (found := self.find(digest)) is None:
                raise Unauthenticated(REFUSED)
        elif self.jwts is not None and is_jwt(text):
            found = await self.jwts.verify(text, digest)
        return found

    def of_certificate(self, shown: ClientCertificate) -> Caller | None:
        """Returns the caller of the certificate of a connection; None if it stands for nobody now. Raises NotReady if
        the connection has to be made again, since the CA file has another content by now."""
        if self.certificates.is_outdated(shown):
            raise NotReady("client_ca_file has changed since the connection began; connect again")
        found = self.certificates.find(shown)
        return found if found and found.expires_us > self._clock.now_us() else None

    async def learn(self, text: bytes) -> bool:
        """Looks up a token that this broker does not know. Returns whether it may be known now. Raises
        CoordinationUnavailable."""
        token = id_of(text.decode("latin-1"))
        return token is not None and await self._lookups.fetch(token)

    def masked(self, text: str) -> str:
        """Returns a text that somebody else has chosen, without the secrets of tokens in it, for logs and the audit."""
        return masked(self._admin.masked(text))

    def current(self, caller: Caller, now_us: int | None = None) -> Caller | None:
        """Returns the caller as its token is now, or at a time, None if that does not count any more."""
        if caller.token is None:
            return caller
        if caller.token == self._admin.caller.token:
            return caller if self._admin.counts and caller is self._admin.caller else None
        if caller.identity == "jwt":
            found = self.jwts.current(caller.proof) if self.jwts else None
        elif caller.identity == "certificate":
            found = self.certificates.find(caller.proof)
        else:
            found = self.view.caller(caller.token)
        return found if found and found.expires_us > (self._clock.now_us() if now_us is None else now_us) else None

    def limits(self, name: str | None, uid: str | None) -> Limits | None:
        """Returns the limits of a caller, None if it has gone: those of all who are anonymous, of a principal, or of a
        subject that is remembered or has a request here."""
        if name is None:
            return self.view.anonymous.limits
        if not name.startswith(SUBJECT):
            return self.view.limits(name, uid)
        handle = handle_of("sub", name.removeprefix(SUBJECT))
        is_here = handle in self._by_handle or (self.jwts is not None and self.jwts.knows(handle))
        return self.view.default if is_here else None

    def principal(self, name: str, uid: str | None) -> Caller | None:
        """Returns the caller that a principal is by itself, None if there is none (any more) with this `uid`."""
        return self._admin.caller if name == self._admin.caller.principal else self.view.principal(name, uid)

    def on_change(self, listener: Callable[[Touched], None]) -> None:
        """Has `listener` called after each change, with the changed tokens."""
        self._listeners.append(listener)

    @contextmanager
    def holding(
        self, caller: Caller, action: Action | None, resource: Resource, end: Callable[[], None]
    ) -> Iterator[None]:
        """Calls `end` once the caller may no longer do this, or counts no more, if that is while the block runs."""
        if caller.token is None:
            yield
            return
        held = _HeldRequest(caller, action, resource, end, caller.expires_us)
        self._held[held] = None
        for handle in (caller.token, *caller.handles):
            self._by_handle.setdefault(handle, {})[held] = None
        if caller.expires_us != NEVER_US:
            if len(self._expiring) >= FEW + 2 * len(self._held):
                self._expiring = [one for one in self._expiring if one[2] in self._held]
                heapify(self._expiring)
            self._expire(held)
        try:
            yield
        finally:
            self._held.pop(held, None)
            for handle in (caller.token, *caller.handles):
                of_handle = self._by_handle[handle]
                of_handle.pop(held, None)
                if not of_handle:
                    del self._by_handle[handle]

    async def run(self, has_lease: Callable[[], bool]) -> None:
        """Looks for times that are over, for another admin token, and whether the broker has a lease, for ever."""
        try:
            await self._look_often(has_lease)
        finally:
            if self.jwts:
                self.jwts.keys.close()

    async def _look_often(self, has_lease: Callable[[], bool]) -> None:
        while True:
            self._admin.refresh()
            if self.jwts:
                self.jwts.keys.tick()
            self.end_revoked_requests(has_lease())
            await asyncio.sleep(LOOK_S)

    def end_revoked_requests(self, has_lease: bool = True) -> None:
        """Ends the held requests of tokens that have expired, or of one that the admin's file has no more; all of them
        if this broker has no lease, and so hears of no changes."""
        if not has_lease:
            for held in list(self._held):
                self._end(held)
            return
        now_us = self._clock.now_us()
        while self._expiring and self._expiring[0][0] <= now_us:
            self._judge(heappop(self._expiring)[2], now_us)  # by one reading: a clock may be set back in between
        self._judge_tokens((self._admin.caller.token or "",))
        if (ca := self.certificates.ca()) != self._ca:
            self._ca = ca
            for held in [one for one in self._held if one.caller.identity == "certificate"]:
                self._judge(held)

    def _changed(self, touched: Touched) -> None:
        self.certificates.forget(touched)
        gone = self.jwts.forget(touched) if self.jwts else ()
        self._tell(touched if touched is None else {*touched, *gone})

    def _keys_changed(self) -> None:
        if self.jwts:
            self._tell(self.jwts.forget_withdrawn())
        for held in [one for one in self._held if one.caller.identity == "jwt"]:
            self._judge(held)

    def _tell(self, touched: Touched) -> None:
        for listener in self._listeners:
            listener(touched)
        self._judge_tokens(touched)

    def _judge_tokens(self, touched: Touched) -> None:
        handles = list(self._by_handle) if touched is None else sorted(touched)
        for held in [one for handle in handles for one in self._by_handle.get(handle, ())]:
            self._judge(held)

    def _judge(self, held: _HeldRequest, now_us: int | None = None) -> None:
        if held not in self._held:
            return
        now = self.current(held.caller, now_us)
        if now is None or (held.action is not None and not judge(now, held.action, held.resource)):
            self._end(held)
        elif now.expires_us < held.expires_us:  # its record has another end since
            held.expires_us = now.expires_us
            self._expire(held)

    def _expire(self, held: _HeldRequest) -> None:
        """Judges a request once more when its time is over."""
        heappush(self._expiring, (held.expires_us, next(self._numbers), held))

    def _end(self, held: _HeldRequest) -> None:
        self._held.pop(held, None)
        held.end()
