"""The callers of requests: who a token stands for now, and the requests that last only as long as theirs may.

A request that waits or streams is *held*. With each change of principals and tokens those that it is about, and each
LOOK_S, for times that are over, all of them are judged again, and one that may no longer do what it does is ended.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from seaweedq.access.actions import Action, Resource
from seaweedq.access.authorizer import judge
from seaweedq.access.caller import NEVER_US, Caller
from seaweedq.access.tokens import id_of
from seaweedq.broker.access.admin_token import LOOK_S, AdminToken
from seaweedq.broker.access.lookups import TokenLookups
from seaweedq.broker.access.view import AccessView, Touched
from seaweedq.clock import Clock
from seaweedq.coordination.interface import Coordination


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    caller: Caller
    action: Action
    resource: Resource
    end: Callable[[], None]


class Callers:
    """Finds callers by tokens, and ends what is held for those that lose a right."""

    def __init__(self, coordination: Coordination, clock: Clock, admin: AdminToken) -> None:
        self.view = AccessView(coordination, self._look)
        self._lookups = TokenLookups(coordination, self.view, clock)
        self._admin = admin
        self._clock = clock
        self._held: set[_Held] = set()

    def find(self, digest: bytes) -> Caller | None:
        """Returns the caller of the token with this SHA-256, None where none counts."""
        found = self.view.found.get(digest) or self._admin.find(digest) or self.view.find(digest)
        if found is None or (found.expires_us != NEVER_US and found.expires_us <= self._clock.now_us()):
            return None
        return found

    async def learn(self, text: bytes) -> bool:
        """Looks up a token that this broker does not know. Tells whether it may be known now. Raises
        CoordinationUnavailable."""
        token = id_of(text.decode("latin-1"))
        return token is not None and await self._lookups.look(token)

    def again(self, caller: Caller) -> Caller | None:
        """Returns the caller as its token is now, None where that does not count any more."""
        if caller.token is None:
            return caller
        if caller.token == self._admin.caller.token:
            return self._admin.caller if self._admin.counts else None
        found = self.view.caller(caller.token)
        return found if found and found.expires_us > self._clock.now_us() else None

    def principal(self, name: str, uid: str | None) -> Caller | None:
        """Returns the caller that a principal is by itself, None where there is none (any more) with this `uid`."""
        return self._admin.caller if name == self._admin.caller.principal else self.view.principal(name, uid)

    @property
    def anonymous(self) -> Caller:
        """Returns the caller of a request without a token, where none is needed."""
        return self.view.anonymous

    @contextmanager
    def holding(self, caller: Caller, action: Action, resource: Resource, end: Callable[[], None]) -> Iterator[None]:
        """Calls `end` once the caller may no longer do this, if that is while the block runs."""
        if caller.token is None:
            yield
            return
        held = _Held(caller, action, resource, end)
        self._held.add(held)
        try:
            yield
        finally:
            self._held.discard(held)

    async def look_often(self) -> None:
        """Looks for times that are over and for another admin token, for ever."""
        while True:
            self._admin.look()
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self, touched: Touched = None) -> None:
        for held in [one for one in self._held if touched is None or one.caller.token in touched]:
            now = self.again(held.caller)
            if now is None or not judge(now, held.action, held.resource):
                self._held.discard(held)
                held.end()
