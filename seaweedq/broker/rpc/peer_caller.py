"""The caller's side of all sessions of a broker: one for each broker that it calls, begun by the first call.

Calls that begin together share one hello, and its failure. A session is given up when it gets old, when the other side
refuses it, and when another life has begun at that URL; calls that are under way do not mind.
"""

import asyncio
from collections.abc import Awaitable, Callable

from seaweedq.broker.rpc.peer_sessions import Hello, Outgoing, Welcome, accepted
from seaweedq.broker.rpc.peer_trust import Address, Addresses, PeerTrust
from seaweedq.clock import Clock, Ids
from seaweedq.errors import NotOwner, PeerRefused, SeaweedqError, Unavailable

Greet = Callable[[Address, Hello], Awaitable[Welcome]]


class PeerCaller:
    """Makes sessions; `greet` sends a hello."""

    def __init__(self, trust: PeerTrust, addresses: Addresses, clock: Clock, ids: Ids, greet: Greet) -> None:
        self._trust = trust
        self._addresses = addresses
        self._clock = clock
        self._ids = ids
        self._greet = greet
        self._sessions: dict[str, Outgoing] = {}  # by the id of the other broker
        self._greetings: dict[str, asyncio.Task[Outgoing]] = {}

    @property
    def is_on(self) -> bool:
        """Tells whether brokers are called in sessions only."""
        return self._trust.is_on

    async def session(self, url: str) -> tuple[Address, Outgoing]:
        """Returns a session with the broker at a URL. Raises NotOwner where none is there that proves to know the
        secret, and what `greet` raises."""
        address = self._addresses.find(url)
        if address is None:
            raise NotOwner(  # nobody was asked
                "no broker that proves to know cluster_secret is known there", inside=f"{url} is not called"
            )
        known = self._sessions.get(address.broker)
        if known is None or self._clock.monotonic_s() >= known.until_s:
            try:
                known = await asyncio.shield(self._greeting(address))
            except SeaweedqError:
                self._addresses.forget(url)
                raise
        return address, known

    def forget(self, url: str, session: Outgoing) -> None:
        """Gives up a session that was refused."""
        self._addresses.forget(url)
        if self._sessions.get(session.callee) is session:
            del self._sessions[session.callee]

    async def close(self) -> None:
        """Ends the hellos that are under way."""
        greetings = list(self._greetings.values())
        for greeting in greetings:
            greeting.cancel()
        await asyncio.gather(*greetings, return_exceptions=True)

    def _greeting(self, address: Address) -> asyncio.Task[Outgoing]:
        """Returns the hello to a broker that is under way, or begins one."""
        found = self._greetings.get(address.broker)
        if found is None:
            found = asyncio.create_task(self._begin(address), name=f"hello to {address.broker}")
            self._greetings[address.broker] = found
            found.add_done_callback(lambda ended: self._end(address.broker, ended))
        return found

    async def _begin(self, address: Address) -> Outgoing:
        said_s = self._clock.monotonic_s()
        hello = Hello(self._trust.me, address.broker, self._ids.nonce()).signed(address.keys)
        welcome = await self._greet(address, hello)
        try:
            session = accepted(hello, welcome, address.keys, said_s)
        except PeerRefused as error:
            raise Unavailable("another broker is not what it claims to be", inside=address.base) from error
        for broker in [broker for broker, one in self._sessions.items() if said_s >= one.until_s]:
            del self._sessions[broker]
        self._sessions[address.broker] = session
        return session

    def _end(self, broker: str, ended: asyncio.Task[Outgoing]) -> None:
        self._greetings.pop(broker, None)
        if not ended.cancelled():
            ended.exception()  # those who wait have it; perhaps nobody does any more
