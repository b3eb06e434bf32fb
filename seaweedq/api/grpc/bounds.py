"""The calls of gRPC, and how many of them each address has. Pure.

A call is the connection of its request: `Client` (relay) is the client's connection, on which there may be many calls.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from seaweedq.access.limits import Account
from seaweedq.api.connections.connections import Connections
from seaweedq.api.connections.memory import UnreadBuffer
from seaweedq.api.problems import Refusals
from seaweedq.api.request import release_connection
from seaweedq.broker.access import ClientCertificate
from seaweedq.errors import Overloaded, Unavailable


class Peer(Protocol):
    """A client's connection. `account` is that of the principal to whose limit of connections it counts, as long as it
    has calls. `unread` are the answers of its calls that its client has not taken."""

    unread: dict[UnreadBuffer, None]
    address: str
    account: Account | None
    certificate: ClientCertificate | None
    calls: int

    @property
    def taken(self) -> int:
        """How many bytes its client has taken."""

    def waiting(self) -> AbstractContextManager[None]:
        """Lets a call of a stranger, who has not asked yet, keep no place."""

    def begin_answer(self) -> Callable[[], object]:
        """Begins to wait until gRPC has sent a short answer. Returns what ends the wait."""

    def abort(self) -> None:
        """Ends the connection at once, with all its calls."""

    def end_soon(self) -> None:
        """Ends the connection once its last answer was sent."""


class Call:
    """One call of a method, as the connection of its request, which counts until its end: under the name `address`,
    unless that is empty. `cut` ends it. It counts as long as its `work` goes on, too."""

    __slots__ = ("_address", "_calls", "certificate", "cut", "method", "peer", "work")

    def __init__(self, calls: "Calls", peer: Peer, address: str, method: str, cut: Callable[[], object]) -> None:
        self._calls = calls
        self.method = method
        self._address = address
        self.peer = peer
        self.certificate = peer.certificate
        self.cut = cut
        self.work: asyncio.Future[Any] | None = None

    def end(self) -> None:
        """Counts no more, once its work has ended."""
        if self.work and not self.work.done():
            self.work.add_done_callback(lambda _: self.end())
            return
        self.peer.calls -= 1
        if not self.peer.calls:
            release_connection(self)
        self._calls.end(self._address)

    @property
    def account(self) -> Account | None:
        """The account to whose limit of connections its peer counts."""
        return self.peer.account

    @account.setter
    def account(self, account: Account | None) -> None:
        self.peer.account = account

    async def drained(self) -> None:
        """Returns at once: a write waits until gRPC has taken it."""

    def abort(self) -> None:
        """Ends the call."""
        self.cut()

    def stay(self) -> None:
        """Begins a call that lasts. Raises Overloaded."""
        self._calls.stay(self)

    def go(self) -> None:
        """Ends such a call."""
        self._calls.connections.go(self)

    def end_after_answer(self) -> None:
        """Ends the client's connection soon, as its certificate does not count any more."""
        self.peer.end_soon()

    def exempt(self) -> None:
        """Does nothing: no broker calls another one here."""


class Calls:
    """All calls, at most `most_per_address` of one address. `counted` names the address under which one counts."""

    def __init__(
        self,
        connections: Connections,
        counted: Callable[[str], str],
        refusals: Refusals,
        find: Callable[[str], Peer | None],
    ) -> None:
        self.connections = connections
        self._counted = counted
        self._refusals = refusals
        self._find = find
        self._by_address: dict[str, int] = {}

    def begin(self, name: str, method: str, cut: Callable[[], object]) -> Call:
        """Counts a call of a peer, by gRPC's name for it, until it ends. Raises Overloaded, and Unavailable if no
        connection has the name."""
        peer = self._find(name)
        if peer is None:
            raise Unavailable("the connection of this gRPC call was closed")
        address = self._counted(peer.address)
        if address:
            count, most = self._by_address.get(address, 0), self.connections.most_per_address
            if count >= most:
                detail = f"the broker is already answering max_connections_per_address={most} calls from {address}"
                self._refusals.note("address", detail)
                raise Overloaded(f"{detail}; try again", max_connections_per_address=most)
            self._by_address[address] = count + 1
        peer.calls += 1
        return Call(self, peer, address, method, cut)

    def end(self, address: str) -> None:
        """Counts one call of an address less."""
        if not address:
            return
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def stay(self, call: Call) -> None:
        """Begins a call that lasts. Raises Overloaded."""
        if not self.connections.stay(call):
            most = self.connections.most_staying
            detail = f"{most} of them, three quarters of max_connections={self.connections.most}"
            self._refusals.note("staying", f"too many streams and waiting requests: there are {detail}")
            raise Overloaded(
                f"too many streams and waiting requests: the broker has {detail}; try again",
                max_connections=self.connections.most,
            )
