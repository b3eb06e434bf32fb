"""Looks up tokens that this broker does not know in coordination, before it says that they do not count.

A token counts at the broker that created it at once, and at the others as their watches tell them, some milliseconds
later; whoever has just got it may ask another one first. So a well-formed token whose id is not known is read once:
its record, that of its principal, and those of the tokens from which it came, as far as they are not known. They are
taken into the view as the watch takes them, so an older revision overwrites nothing, and a token that was revoked
meanwhile stays so.

Strangers can send well-formed texts with ids that never were. A read is begun RATE_S times a second at most, with one
second's worth at once; one that found nothing is not repeated for NOTHING_S; those who ask for the same id share a
read. What gets no read is answered as before: the token is not known. Nothing of it is kept for longer.
"""

import asyncio

from seaweedq.access.buckets import Bucket
from seaweedq.broker.access.view import MAX_DEPTH, AccessView
from seaweedq.clock import Clock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Coordination
from seaweedq.coordination.records.access import TokenRecord

RATE_S = 20.0
NOTHING_S = 1.0


class TokenLookups:
    """The lookups of one broker."""

    def __init__(self, coordination: Coordination, view: AccessView, clock: Clock) -> None:
        self._coordination = coordination
        self._view = view
        self._clock = clock
        self._bucket = Bucket(RATE_S, clock.monotonic_s())
        self._nothing: dict[str, float] = {}  # until when, by token; in the order in which that ends
        self._running: dict[str, asyncio.Task[bool]] = {}

    async def look(self, token: str) -> bool:
        """Reads a token by its id, unless it is known. Tells whether anything was learnt. Raises
        CoordinationUnavailable."""
        if token in self._view.tokens or not self._view.loaded:
            return False
        running = self._running.get(token)
        if running is None:
            if not self._may_begin(token):
                return False
            running = asyncio.create_task(self._read(token), name=f"lookup of token {token}")
            self._running[token] = running
            running.add_done_callback(lambda ended: self._end(token, ended))
        return await asyncio.shield(running)

    def _may_begin(self, token: str) -> bool:
        now_s = self._clock.monotonic_s()
        for known in [known for known, until_s in self._nothing.items() if until_s <= now_s]:
            del self._nothing[known]
        return token not in self._nothing and self._bucket.take(1, now_s) == 0

    async def _read(self, token: str) -> bool:
        found = await self._take_token(token)
        if found is None:
            self._nothing[token] = self._clock.monotonic_s() + NOTHING_S
            return False
        principal = self._view.principals.get(found.principal)
        if principal is None or principal.uid != found.uid:
            await self._take(keys.PRINCIPALS.key(found.principal))
        for _ in range(MAX_DEPTH):
            if found is None or found.parent is None:
                break
            found = self._view.tokens.get(found.parent) or await self._take_token(found.parent)
        return True

    async def _take_token(self, token: str) -> TokenRecord | None:
        await self._take(keys.TOKENS.key(token))
        return self._view.tokens.get(token)

    async def _take(self, key: str) -> None:
        there = await self._coordination.get(key)
        if there is not None:
            self._view.take([Change(key, there.value, there.revision)])

    def _end(self, token: str, ended: asyncio.Task[bool]) -> None:
        self._running.pop(token, None)
        if not ended.cancelled():
            ended.exception()  # those who wait have it; perhaps nobody does any more
