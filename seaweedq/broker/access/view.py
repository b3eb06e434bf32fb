"""The principals and tokens of the cluster, as this broker knows them: a watched view of coordination.

It finds the caller of a token. A token counts while its record is there, its principal is the one for which it was
issued (by `uid`: a principal that gets the name later is another one) and is not disabled, it has not expired, and the
same holds for each token from which it came. What is missing or cannot be read gives no right. So the records need no
order among each other: one that is seen before its principal counts as soon as that one is seen, and one that outlives
its parent by a crash never counts again, since ids are never drawn twice.
"""

from collections.abc import Callable, Iterator

from seaweedq.access.caller import NEVER_US, Caller
from seaweedq.access.grants import Rights
from seaweedq.access.limits import NO_LIMITS, Limits
from seaweedq.coordination import keys
from seaweedq.coordination.access_records import PrincipalRecord, TokenRecord
from seaweedq.coordination.interface import Change, Coordination, Entry
from seaweedq.coordination.unreadable import Unreadable
from seaweedq.coordination.view import View

MAX_DEPTH = 8  # tokens that came one of the other
PREFIXES = (keys.PRINCIPALS.prefix(), keys.TOKENS.prefix())


def _nothing() -> None:
    pass


class AccessView:
    """Principals by name, tokens by id. `changed` is called after each change; `loaded` says that all were read."""

    def __init__(self, coordination: Coordination, changed: Callable[[], None] = _nothing) -> None:
        self.principals: dict[str, PrincipalRecord] = {}
        self.tokens: dict[str, TokenRecord] = {}
        self.loaded = False
        self._by_digest: dict[bytes, str] = {}
        self._callers: dict[str, Caller | None] = {}  # by token, until anything changes
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
        """Returns the caller of the token with this SHA-256, whose time may be over; None where there is none."""
        token = self._by_digest.get(digest)
        return None if token is None else self.caller(token)

    def caller(self, token: str) -> Caller | None:
        """Returns the caller of a token, whose time may be over; None where it does not count."""
        if token not in self._callers:
            self._callers[token] = self._caller(token)
        return self._callers[token]

    def principal(self, name: str, uid: str | None) -> Caller | None:
        """Returns the caller that a principal is without a token; None where it has gone, whoever has its name now, or
        is disabled."""
        found = self.principals.get(name)
        if found is None or found.uid != uid or found.disabled:
            return None
        return Caller(name, None, (Rights(found.grants),), uid=uid)

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
        return [one for one in self.tokens if one != token and token in dict(self.lineage(one))]

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
        return Caller(name, token, layers, expires_us, _limits(principal.limits), principal.uid)

    def _apply(self, change: Change) -> None:
        if keys.PRINCIPALS.matches(change.key):
            self._apply_principal(change)
        elif keys.TOKENS.matches(change.key):
            self._apply_token(change)
        self._callers.clear()
        self._changed()

    def _apply_principal(self, change: Change) -> None:
        (name,) = keys.PRINCIPALS.parse(change.key)
        self.principals.pop(name, None)
        if change.value is not None:
            found = keys.PRINCIPALS.read(Entry(change.key, change.value, change.revision))
            if not isinstance(found, Unreadable):
                self.principals[name] = found.record

    def _apply_token(self, change: Change) -> None:
        (token,) = keys.TOKENS.parse(change.key)
        if before := self.tokens.pop(token, None):
            self._by_digest.pop(bytes.fromhex(before.digest), None)
        if change.value is not None:
            found = keys.TOKENS.read(Entry(change.key, change.value, change.revision))
            if not isinstance(found, Unreadable):
                self.tokens[token] = found.record
                self._by_digest[bytes.fromhex(found.record.digest)] = token


def _limits(limits: Limits) -> Limits:
    """Returns limits, and the one object where there are none: by it requests are let in at once."""
    return NO_LIMITS if limits == NO_LIMITS else limits
