"""The principals and tokens of the cluster, as this broker knows them: a watched view of coordination.

It finds the callers of tokens, and has the denials of tokens of another issuer. A token counts while its record is
there, its principal is the one for which it was issued (by `uid`: a principal that gets the name later is another one)
and is not disabled, it has not expired, and the same holds for each token from which it came. What is missing or cannot
be read gives no right. So the records need no order among each other: one that is seen before its principal counts as
soon as that one is seen, and one that outlives its parent by a crash never counts again, since ids are never drawn
twice.

A limit that a principal has not is that of the record named DEFAULT, if that has it; so it is for anonymous callers,
together. Tokens are kept by principal, by parent and by expiry: no change of a token costs as many steps as there are
tokens. Nor are callers forgotten at such a change, but for that of the token and of those that came of it: a client
with a token can issue others all the time, and would have all brokers find all callers again.
"""

from collections.abc import Callable, Collection, Iterator, Set
from heapq import heappop, heappush

from seaweedq.access.limits import NO_LIMITS, Limits
from seaweedq.access.rights import ANONYMOUS, DEFAULT, EVERYTHING, NEVER_US, SUBJECT_UID, Caller, Rights
from seaweedq.access.tokens import name_of_denied
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Coordination, Entry
from seaweedq.coordination.records import DenialRecord, PrincipalRecord, TokenRecord
from seaweedq.coordination.versioned import Unreadable
from seaweedq.coordination.view import View

MAX_DEPTH = 8  # tokens that came one of the other
PREFIXES = (keys.PRINCIPALS.prefix(), keys.TOKENS.prefix(), keys.DENIALS.prefix())
OF_IDS = "jwt:"  # begins the handle of a `jti`; no token of this cluster has it in its id

Touched = Collection[str] | None  # the ids of tokens, and other handles, that a change is about; None: of all


def handle_of(kind: str, value: str) -> str:
    """Returns the handle by which the denial of a value finds callers."""
    return f"{OF_IDS if kind == 'jti' else f'{kind}:'}{value}"


def handle_of_principal(name: str) -> str:
    """Returns the handle by which changes of a principal find callers that have no token of it."""
    return f"principal:{name}"


class AccessView:
    """Principals by name, tokens by id. `changed` is called after each change, with the tokens that it is about;
    `loaded` says that all were read."""

    def __init__(self, coordination: Coordination, changed: Callable[[Touched], None] = lambda touched: None) -> None:
        self.principals: dict[str, PrincipalRecord] = {}
        self.tokens: dict[str, TokenRecord] = {}
        self.denials: dict[str, DenialRecord] = {}
        self.loaded = False
        self.anonymous = ANONYMOUS
        self.found: dict[bytes, Caller] = {}  # those that were found, by digest, until a change is about them
        self._by_digest: dict[bytes, str] = {}
        self._by_uid: dict[str, str] = {}
        self._by_principal: dict[str, set[str]] = {}
        self._by_parent: dict[str, set[str]] = {}
        self._expiries: list[tuple[int, str]] = []  # a heap, with tokens that have gone
        self._callers: dict[str, Caller | None] = {}  # by token, until a change is about it
        self._completed: dict[str, Limits] = {}  # by principal, until a change is about it
        self._changed = changed
        self._view = View(coordination, PREFIXES, self._apply)
        self.follow = self._view.follow
        self.take = self._view.take

    async def load(self) -> int:
        """Reads everything. Returns the revision from which a watch must continue."""
        revision = await self._view.load()
        self.loaded = True
        return revision

    def find(self, digest: bytes) -> Caller | None:
        """Returns the caller of the token with this SHA-256, whose time may be over; None if there is none."""
        token = self._by_digest.get(digest)
        caller = None if token is None else self.caller(token)
        if caller is not None:
            self.found[digest] = caller
        return caller

    def caller(self, token: str) -> Caller | None:
        """Returns the caller of a token, whose time may be over; None if it does not count."""
        if token not in self._callers:
            self._callers[token] = self._caller(token)
        return self._callers[token]

    def principal(self, name: str, uid: str | None) -> Caller | None:
        """Returns the caller that a principal is without a token; None if it is disabled or has gone, also if another
        one has its name now."""
        found = self.principals.get(name)
        if found is None or found.uid != uid or found.disabled:
            return None
        return Caller(name, None, (Rights(found.grants),), uid=uid)

    def limits(self, name: str, uid: str | None) -> Limits | None:
        """Returns the limits of a principal, None if it has gone."""
        found = self.principals.get(name)
        return None if found is None or found.uid != uid else self._limits(name, found)

    def limits_of(self, uid: str) -> Limits | None:
        """Returns the limits of the principal with this uid, or of a subject; None if it has gone."""
        if uid.startswith(SUBJECT_UID):
            return self.default
        name = self._by_uid.get(uid)
        return None if name is None else self.limits(name, uid)

    @property
    def count(self) -> int:
        """Returns how many principals there are."""
        return len(self.principals) - (DEFAULT in self.principals)

    def is_denied(self, kind: str, value: str, now_us: int) -> bool:
        """Returns whether a value is denied."""
        found = self.denials.get(name_of_denied(kind, value)) if self.denials else None
        return found is not None and (found.expires_us is None or found.expires_us > now_us)

    def tokens_of(self, principal: str) -> Set[str]:
        """Returns the tokens that name a principal."""
        return self._by_principal.get(principal, set())

    def expired(self, before_us: int, most: int) -> list[str]:
        """Returns some of the tokens whose time was over then."""
        found: dict[str, int] = {}
        while self._expiries and self._expiries[0][0] < before_us and len(found) < most:
            expires_us, token = heappop(self._expiries)
            if (record := self.tokens.get(token)) and record.expires_us == expires_us:
                found[token] = expires_us
        for token, expires_us in found.items():  # it stays there until it has gone
            heappush(self._expiries, (expires_us, token))
        return list(found)

    def lineage(self, token: str) -> Iterator[tuple[str, TokenRecord]]:
        """Yields a token, the one from which it was issued, and so on, as far as they are there."""
        at: str | None = token
        for _ in range(MAX_DEPTH):
            found = self.tokens.get(at) if at else None
            if at is None or found is None:
                return
            yield at, found
            at = found.parent

    def descendants(self, token: str) -> list[str]:
        """Returns the tokens that came of one, without itself."""
        found: dict[str, None] = {}
        level = [token]
        for _ in range(MAX_DEPTH):
            level = sorted({child for one in level for child in self._by_parent.get(one, ())} - found.keys() - {token})
            found |= dict.fromkeys(level)
        return list(found)

    def _caller(self, token: str) -> Caller | None:
        line = [record for _, record in self.lineage(token)]
        if not line or line[-1].parent is not None:
            return None
        name = line[0].principal
        principal = self.principals.get(name)
        if principal is None or principal.disabled or any((r.principal, r.uid) != (name, principal.uid) for r in line):
            return None
        narrowing = [Rights(record.grants) for record in line if record.grants is not None]
        expires_us = min(NEVER_US if record.expires_us is None else record.expires_us for record in line)
        layers = (Rights(principal.grants), *narrowing)
        limits = self._limits(name, principal)
        return Caller(name, token, layers, expires_us, limits, principal.uid, "token")

    def _limits(self, name: str, principal: PrincipalRecord) -> Limits:
        """Returns a principal's limits, each time the same object: by that it is known that they have not changed."""
        found = self._completed.get(name)
        if found is None:
            found = self._completed[name] = principal.limits.completed(self.default)
        return found

    def _apply(self, change: Change) -> None:
        if keys.PRINCIPALS.matches(change.key):
            touched = self._apply_principal(change)
        else:
            is_token = keys.TOKENS.matches(change.key)
            touched = self._apply_token(change) if is_token else self._apply_denial(change)
        if touched is None:
            self.found.clear()
            self._callers.clear()
        for token in sorted(touched or ()):
            self._callers.pop(token, None)
            if record := self.tokens.get(token):
                self.found.pop(bytes.fromhex(record.digest), None)
        self._changed(touched)

    def _apply_principal(self, change: Change) -> Touched:
        (name,) = keys.PRINCIPALS.parse(change.key)
        if before := self.principals.pop(name, None):
            self._by_uid.pop(before.uid, None)
        if change.value is not None:
            found = keys.PRINCIPALS.read(Entry(change.key, change.value, change.revision))
            if not isinstance(found, Unreadable) and found.record.uid:
                self.principals[name] = found.record
                self._by_uid[found.record.uid] = name
        if name != DEFAULT:
            self._completed.pop(name, None)
            return {*self.tokens_of(name), handle_of_principal(name)}
        self._completed.clear()
        limits = self.default
        self.anonymous = Caller(None, layers=(EVERYTHING,), limits=limits) if limits != NO_LIMITS else ANONYMOUS
        return None

    def _apply_token(self, change: Change) -> Touched:
        (token,) = keys.TOKENS.parse(change.key)
        if before := self.tokens.pop(token, None):
            digest = bytes.fromhex(before.digest)
            self._by_digest.pop(digest, None)
            self.found.pop(digest, None)
            _discard(self._by_principal, before.principal, token)
            _discard(self._by_parent, before.parent, token)
        if change.value is not None:
            found = keys.TOKENS.read(Entry(change.key, change.value, change.revision))
            if not isinstance(found, Unreadable):
                record = self.tokens[token] = found.record
                self._by_digest[bytes.fromhex(record.digest)] = token
                self._by_principal.setdefault(record.principal, set()).add(token)
                if record.parent is not None:
                    self._by_parent.setdefault(record.parent, set()).add(token)
                if record.expires_us is not None:
                    heappush(self._expiries, (record.expires_us, token))
        return {token, *self.descendants(token)}

    def _apply_denial(self, change: Change) -> Touched:
        (name,) = keys.DENIALS.parse(change.key)
        before, after = self.denials.pop(name, None), None
        if change.value is not None:
            found = keys.DENIALS.read(Entry(change.key, change.value, change.revision))
            if isinstance(found, Unreadable):  # its name is that of the value, which it denies for ever
                self.denials[name] = DenialRecord("jti", "", 0)
                return None
            after = self.denials[name] = found.record
        return {handle_of(one.kind, one.value) for one in (before, after) if one}

    @property
    def default(self) -> Limits:
        """The limits of callers that have none of their own."""
        found = self.principals.get(DEFAULT)
        return found.limits if found else NO_LIMITS


def _discard(index: dict[str, set[str]], name: str | None, token: str) -> None:
    if name is not None and (there := index.get(name)):
        there.discard(token)
        if not there:
            del index[name]
