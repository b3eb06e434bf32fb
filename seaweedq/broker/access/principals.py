"""The changes of principals, tokens and denials, each one transaction.

A principal or a token ends with its own record: no token that came of it counts from then on, since
broker/access/view asks for the whole line. 1. A record that gives no right takes its place, also that of one which
cannot be read: a principal without a uid, which counts as not there, or a token that is over. 2. The store has it as
gone (broker/admin_changes), as it has each other change before its answer. 3. The record goes. 4. The tokens that came
of it go. A crash behind 1 or 2 leaves a record that a repeat finds, and one behind 3 records that never count again,
which the next removal of the same principal or token, or nobody, takes away. Each transaction of 4 compares that the
principal or token is gone.

A denial is one record, which each broker follows: first the transaction, then the store, then the answer. A crash
between them leaves the value denied, and a denial that the store lacks: if coordination is lost as well, the value is
not denied, of which nobody was told. A denial is taken back as a token ends: a crash behind 1 leaves it allowed, and
denied in the store until 2 is done; one behind 2 leaves a record that denies nothing. A repeat does what is left.

A denied `jti` stays denied for LONGER_S more than was asked for, which is until its `exp`: brokers take a token for
SKEW_S behind that (jwt_rules), and the clock by which somebody has computed the time may differ by as much again.

A token is created in a transaction that compares the principal and the token from which it comes: of a creation and a
revocation at once, the later one sees the earlier one.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from seaweedq.access.limits import Limits
from seaweedq.access.rights import CLUSTER, DEFAULT, NEVER_US, Action, Caller, Grant, judge
from seaweedq.access.tokens import digest_of, draw, id_of, name_of_denied
from seaweedq.broker.access.callers import ADMIN
from seaweedq.broker.access.jwt_rules import SKEW_S
from seaweedq.broker.access.view import MAX_DEPTH, AccessView
from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Compare, Coordination, Delete, Entry, Put
from seaweedq.coordination.keys import KeyKind
from seaweedq.coordination.records import DenialRecord, PrincipalRecord, TokenRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    DenialNotFound,
    Forbidden,
    InvalidRequest,
    PrincipalNotFound,
    TokenNotFound,
    Unavailable,
)

T = TypeVar("T", bound=msgspec.Struct)
TRIES = 5
TOGETHER = 100  # records that one transaction removes
SWEPT = 20  # expired tokens that a creation removes
KEPT_US = 86_400 * 1_000_000  # expired tokens are listed for so long, and clocks may differ
MOST = 100_000  # tokens of a cluster
MOST_OF_ONE = 10_000  # tokens of a principal
MOST_DENIALS = 10_000
LONGER_S = 2 * SKEW_S
MOST_MINTED = 100  # of these that came of tokens of its own, and not of an administrator


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """A token that a caller asks for: for itself if no principal is named."""

    principal: str | None
    lasts_us: int | None
    grants: tuple[Grant, ...] | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class DenialSpec:
    """A denial that a caller asks for."""

    kind: Literal["jti", "sub"]
    value: str
    lasts_us: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token that was created, and its text, which nobody can see again."""

    id: str
    record: TokenRecord
    text: str

    def __repr__(self) -> str:
        return f"IssuedToken({self.id})"


class Principals:
    """Creates, changes and removes principals and tokens."""

    def __init__(
        self, coordination: Coordination, view: AccessView, clock: Clock, ids: Ids, changes: AdminChanges
    ) -> None:
        self.view = view
        self._coordination = coordination
        self._clock = clock
        self._ids = ids
        self._changes = changes

    async def put(self, name: str, grants: tuple[Grant, ...], limits: Limits, disabled: bool) -> bool:
        """Creates a principal, or replaces its rights and limits. Returns whether it is new. Raises
        InvalidRequest, NeedsNewerBroker, Unavailable."""
        if name == ADMIN:
            raise InvalidRequest(
                f"the name {ADMIN!r} is reserved for the principal of admin_token_file; choose another name",
                field="principal",
            )
        if name == DEFAULT and (grants or disabled):
            raise InvalidRequest(
                f"{DEFAULT!r} is not a principal, so it cannot have grants, and cannot be disabled; it can have "
                "limits, and each of them applies to every principal for which that limit is not set",
                field="principal",
            )
        key = keys.PRINCIPALS.key(name)
        for _ in range(TRIES):
            there = await self._coordination.get(key)
            before = keys.PRINCIPALS.require(there) if there else None
            if before and before.record.uid:
                held, is_new = before.replace(grants=grants, limits=limits, disabled=disabled), False
            else:
                record = PrincipalRecord(self._ids.nonce(), grants, self._clock.now_us(), disabled, limits)
                held, is_new = before.with_record(record) if before else Versioned.new(record), True
            put = Put(key, keys.PRINCIPALS.encode(held))
            if revision := await self._commit([Compare(key, held.revision)], [put]):
                await self._changes.put(revision, [put])
                return is_new
        raise _busy()

    async def delete(self, name: str) -> None:
        """Removes a principal, and with it all its tokens. Raises PrincipalNotFound, Unavailable."""
        key = keys.PRINCIPALS.key(name)
        if not await self._end(keys.PRINCIPALS, key, PrincipalRecord("", (), 0), uid=""):
            raise PrincipalNotFound(f"there is no principal {name!r}", principal=name)
        await self._remove(sorted(self.view.tokens_of(name)), Compare(key, 0))

    async def issue(self, caller: Caller, wanted: TokenSpec) -> IssuedToken:
        """Creates a token. A caller that names a principal needs the right to access, and gets one of that principal;
        else it is one of the caller's own, which may do no more, and ends no later, than the one that the caller has.

        Raises Forbidden, InvalidRequest, PrincipalNotFound, Unavailable.
        """
        name, parent = self._for_whom(caller, wanted)
        self._check_count(name, parent is not None)
        before_us = self._clock.now_us() - KEPT_US  # tokens over for so long go, and so all that came of them
        expired = [Delete(keys.TOKENS.key(one)) for one in self.view.expired(before_us, SWEPT)]
        for _ in range(TRIES):
            there = await self._coordination.get(keys.PRINCIPALS.key(name))
            principal = keys.PRINCIPALS.require(there) if there else None
            if there is None or principal is None or not principal.record.uid:
                raise PrincipalNotFound(f"there is no principal {name!r}", principal=name)
            compares = [Compare(there.key, there.revision), *await self._parent_there(parent)]
            issued = self._issued(caller, wanted, name, principal.record.uid, parent)
            key = keys.TOKENS.key(issued.id)
            put = Put(key, keys.TOKENS.encode(Versioned.new(issued.record)))
            if revision := await self._commit([*compares, Compare(key, 0)], [put, *expired]):
                await self._changes.put(revision, [put, *expired], [Put(there.key, there.value)])
                return issued
        raise _busy()

    async def revoke(self, caller: Caller, token: str) -> None:
        """Ends a token, and all that came of it. Without the right to access it must be the caller's own, or one that
        came of it. Raises Forbidden, TokenNotFound, Unavailable."""
        self.check_seen(caller, token)
        key = keys.TOKENS.key(token)
        descendants, known, now_us = self.view.descendants(token), self.view.tokens.get(token), self._clock.now_us()
        over_us = now_us if known is None or known.expires_us is None else min(now_us, known.expires_us)
        if not await self._end(keys.TOKENS, key, TokenRecord("", "", "", 0), expires_us=over_us):
            raise TokenNotFound(f"there is no token {token!r}", token=token)
        await self._remove(descendants, Compare(key, 0))

    async def deny(self, caller: Caller, wanted: DenialSpec) -> tuple[str, DenialRecord]:
        """Denies a value, or denies it anew. Returns the denial's name and record. Raises InvalidRequest,
        Unavailable."""
        name, now_us = name_of_denied(wanted.kind, wanted.value), self._clock.now_us()
        over = [one for one, found in self.view.denials.items() if (found.expires_us or NEVER_US) < now_us - KEPT_US]
        if len(self.view.denials) - len(over) >= MOST_DENIALS and name not in self.view.denials:
            raise InvalidRequest(
                f"the cluster already has {MOST_DENIALS} denials of JSON Web Tokens, which is the limit; "
                "remove some of these denials",
                bound=MOST_DENIALS,
            )
        longer_us = LONGER_S * 1_000_000 if wanted.kind == "jti" else 0
        expires_us = None if wanted.lasts_us is None else now_us + wanted.lasts_us + longer_us
        record = DenialRecord(wanted.kind, wanted.value, now_us, caller.principal or "", expires_us, wanted.note)
        key = keys.DENIALS.key(name)
        for _ in range(TRIES):
            there = await self._coordination.get(key)
            held = keys.DENIALS.require(there).with_record(record) if there else Versioned.new(record)
            put = Put(key, keys.DENIALS.encode(held))
            ended = [found for one in over[:SWEPT] if one != name and (found := await self._still_over(one, now_us))]
            expired, same = [Delete(one.key) for one in ended], [Compare(one.key, one.revision) for one in ended]
            if revision := await self._commit([Compare(key, held.revision), *same], [put, *expired]):
                await self._changes.put(revision, [put, *expired])
                return name, record
        raise _busy()

    async def _still_over(self, name: str, now_us: int) -> Entry | None:
        """Returns the entry of a denial that ended KEPT_US ago; None if it was denied anew, or is gone. The view may be
        behind."""
        there = await self._coordination.get(keys.DENIALS.key(name))
        expires_us = keys.DENIALS.require(there).record.expires_us if there else None
        return there if expires_us is not None and expires_us < now_us - KEPT_US else None

    async def allow(self, name: str) -> None:
        """Takes a denial back. Raises DenialNotFound, Unavailable."""
        nothing = DenialRecord("jti", "", 0)
        if not await self._end(keys.DENIALS, keys.DENIALS.key(name), nothing, expires_us=self._clock.now_us()):
            raise DenialNotFound(f"there is no denial {name!r}", denial=name)

    def check_seen(self, caller: Caller, token: str) -> None:
        """Raises Forbidden if a caller may not see or revoke a token, whether or not it exists."""
        if not self.may_see(caller, token):
            raise Forbidden(
                f"to see or revoke this token, the caller needs the right `{Action.ACCESS}`, or a token from which "
                "this token was issued",
                action=str(Action.ACCESS),
                resource="cluster",
            )

    def may_see(self, caller: Caller, token: str) -> bool:
        """Returns whether a caller may see and revoke a token."""
        if judge(caller, Action.ACCESS, CLUSTER):
            return True
        return caller.token is not None and caller.token in dict(self.view.lineage(token))

    def visible(self, caller: Caller, of: str | None) -> Collection[str]:
        """Returns the tokens that a caller may see, of one principal or of all."""
        if judge(caller, Action.ACCESS, CLUSTER):
            return self.view.tokens if of is None else self.view.tokens_of(of)
        if caller.token is None or of not in (None, caller.principal):
            return ()
        return [one for one in (caller.token, *self.view.descendants(caller.token)) if one in self.view.tokens]

    def _for_whom(self, caller: Caller, wanted: TokenSpec) -> tuple[str, str | None]:
        """Returns the principal of a token, and the token from which it comes."""
        if wanted.principal is not None and judge(caller, Action.ACCESS, CLUSTER):
            if wanted.principal == DEFAULT:
                raise InvalidRequest(
                    f"{DEFAULT!r} is not a principal, so it cannot have tokens; it has limits, and each of them "
                    "applies to every principal for which that limit is not set",
                    field="principal",
                )
            return wanted.principal, None
        if wanted.principal not in (None, caller.principal):
            raise Forbidden(
                f"to issue a token for another principal, the caller needs the right `{Action.ACCESS}`",
                action=str(Action.ACCESS),
                resource="cluster",
            )
        if caller.identity != "token" or caller.token is None or caller.principal in (None, ADMIN):
            raise InvalidRequest("the request must name the principal for which the token is issued", field="principal")
        if wanted.grants is not None and not all(layer.cover(wanted.grants) for layer in caller.layers):
            raise Forbidden("a new token cannot grant more rights than the token from which it is issued")
        if len(list(self.view.lineage(caller.token))) >= MAX_DEPTH:
            raise InvalidRequest(
                "the chain of tokens from which the new token would be issued is too long: a chain "
                f"can have at most {MAX_DEPTH} tokens",
                bound=MAX_DEPTH,
            )
        assert caller.principal is not None
        return caller.principal, caller.token

    def _check_count(self, name: str, is_minted: bool) -> None:
        """Raises InvalidRequest if there are so many tokens that they would fill coordination. The tokens
        that a principal issues itself leave room for those that it is given."""
        tokens = self.view.tokens_of(name)
        own, minted = len(tokens), sum(self.view.tokens[one].parent is not None for one in tokens) if is_minted else 0
        if minted >= MOST_MINTED:
            raise InvalidRequest(
                f"the principal has {minted} tokens that it issued to itself; the limit is {MOST_MINTED}. Revoke some "
                "of these tokens, or ask an administrator to issue the new token: an administrator can issue tokens "
                f"until the principal has {MOST_OF_ONE} tokens in all",
                bound=MOST_MINTED,
            )
        for whose, count, most in (("principal", own, MOST_OF_ONE), ("cluster", len(self.view.tokens), MOST)):
            if count >= most:
                detail = f"the {whose} has {count} tokens; the limit is {most}; revoke some of these tokens"
                raise InvalidRequest(detail, bound=most)

    async def _parent_there(self, parent: str | None) -> list[Compare]:
        """Returns the comparison that the token from which another one comes still is."""
        if parent is None:
            return []
        there = await self._coordination.get(keys.TOKENS.key(parent))
        if there is None:
            raise TokenNotFound("this request's token was revoked while the request was running", token=parent)
        return [Compare(there.key, there.revision)]

    def _issued(self, caller: Caller, wanted: TokenSpec, name: str, uid: str, parent: str | None) -> IssuedToken:
        text, now_us = draw(self._ids), self._clock.now_us()
        ends = [] if wanted.lasts_us is None else [now_us + wanted.lasts_us]
        if parent is not None and caller.expires_us != NEVER_US:
            ends.append(caller.expires_us)
        record = TokenRecord(
            digest=digest_of(text.encode()).hex(),
            principal=name,
            uid=uid,
            created_us=now_us,
            issuer=caller.principal or "",
            expires_us=min(ends, default=None),
            grants=wanted.grants,
            parent=parent,
            note=wanted.note,
        )
        token = id_of(text)
        assert token is not None
        return IssuedToken(token, record, text)

    async def _end(self, kind: KeyKind[T], key: str, nothing: T, **ended: Any) -> bool:
        """Does steps 1 to 3 of an end; `nothing` takes the place of a record that cannot be read. Returns False if
        there is no such record."""
        for _ in range(TRIES):
            there = await self._coordination.get(key)
            if there is None:
                return False
            found = kind.read(there)
            over = (found if isinstance(found, Versioned) else Versioned.new(nothing)).replace(**ended)
            put = Put(key, kind.encode(over))
            if revision := await self._commit([Compare(key, there.revision)], [put]):
                await self._changes.put(revision, [Delete(key)])
                await self._commit([Compare(key, revision)], [Delete(key)])  # or another one has its name by now
                return True
        raise _busy()

    async def _remove(self, tokens: Sequence[str], gone: Compare) -> None:
        """Removes tokens for as long as that of which they came is gone."""
        for at in range(0, len(tokens), TOGETHER):
            some = [Delete(keys.TOKENS.key(one)) for one in tokens[at : at + TOGETHER]]
            if not await self._commit([gone], some):
                return  # a principal has the name again: those of the old one count no more, whatever is left

    async def _commit(self, compares: list[Compare], writes: Sequence[Put | Delete]) -> int | None:
        """Writes, and has this broker know it at once. Returns the revision, None if a comparison did not hold."""
        revision = await self._coordination.commit(compares, writes)
        if revision is not None:
            self.view.take([Change(one.key, one.value if isinstance(one, Put) else None, revision) for one in writes])
        return revision


def _busy() -> Unavailable:
    return Unavailable("other requests keep changing the same principal or token; try again")
