"""Calls to other brokers over HTTP: below /internal, and whole requests of clients that are handed on (relayed).

Every one carries the stamp of a session (broker/rpc/peer_sessions); there is no other way in. A refusal comes before
the other broker does anything, so the request is sent again in another session. A broker that does not answer is
Unavailable, and the outcome of the request is unknown: the caller decides whether it may be repeated. The transport
sends each request once, on connections that are kept open.

Brokers of several versions call each other. A message travels as an array: a version adds members at its end, which
have a default if they are absent, and which others ignore. A call that the other broker does not know is PeerTooOld.
An error travels with the slugs of its class and of those above, and is raised as the nearest one that the receiver
knows. A message that an earlier version would misread is sent only at a level of the cluster that all brokers read.

A broker has one session with each broker that it calls, begun by the first call. Calls that begin together share one
hello, and its failure. A session is given up when it gets old, when the other side refuses it, and when another life
has begun at that URL; calls that are under way do not mind.
"""

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from seaweedq.broker.rpc.messages import ErrorMessage
from seaweedq.broker.rpc.peer_connections import Headers, PeerConnections, Relayed, Request
from seaweedq.broker.rpc.peer_keyring import Address, Addresses, PeerKeyring
from seaweedq.broker.rpc.peer_keys import Secured
from seaweedq.broker.rpc.peer_sessions import (
    HELLO_HEADER,
    STAMP_HEADER,
    Hello,
    Outgoing,
    Refusal,
    Welcome,
    accepted,
)
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.deadline import Deadline
from seaweedq.errors import NotOwner, NotReady, PeerRefused, PeerTooOld, SeaweedqError, Unavailable

SayHello = Callable[[Address, Hello], Awaitable[Welcome]]
LOOK_S = 0.5
HELLO_S = 5.0
HELLO_PATH = "/internal/hello"
ATTEMPTS = 3  # of one request: each behind another refusal, which comes before anything is done
FORBIDDEN, NOT_FOUND = 403, 404
T = TypeVar("T")


def is_refused(error: Unavailable) -> bool:
    """Tells whether a call got no answer because the other machine refused the connection: nobody listens there."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED


class PeerCaller:
    """Makes sessions; `say_hello` sends a hello."""

    def __init__(self, keyring: PeerKeyring, addresses: Addresses, clock: Clock, ids: Ids, say_hello: SayHello) -> None:
        self._keyring = keyring
        self._addresses = addresses
        self._clock = clock
        self._ids = ids
        self._say_hello = say_hello
        self._sessions: dict[str, Outgoing] = {}  # by the id of the other broker
        self._hellos: dict[str, asyncio.Task[Outgoing]] = {}

    async def session(self, url: str, timeout_s: float) -> tuple[Address, Outgoing]:
        """Returns a session with the broker at a URL. Raises NotOwner if none is there that proves to know the
        secret, Unavailable if a hello gets no answer in time, and as `say_hello` does."""
        address = self._addresses.find(url)
        if address is None:
            raise NotOwner(  # nobody was asked
                "no broker at the requested address has proved that it knows cluster_secret",
                inside=f"{url} is not called",
            )
        known = self._sessions.get(address.broker)
        if known is None or self._clock.monotonic_s() >= known.until_s:
            try:
                async with asyncio.timeout(timeout_s):
                    known = await asyncio.shield(self._hello_to(address))
            except TimeoutError as error:
                inside = f"{url} answers no hello"
                raise Unavailable("another broker does not answer; try again", inside=inside) from error
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
        hellos = list(self._hellos.values())
        for hello in hellos:
            hello.cancel()
        await asyncio.gather(*hellos, return_exceptions=True)

    def _hello_to(self, address: Address) -> asyncio.Task[Outgoing]:
        """Returns the hello to a broker that is under way, or begins one."""
        found = self._hellos.get(address.broker)
        if found is None:
            found = asyncio.create_task(self._begin(address), name=f"hello to {address.broker}")
            self._hellos[address.broker] = found
            found.add_done_callback(lambda ended: self._end(address.broker, ended))
        return found

    async def _begin(self, address: Address) -> Outgoing:
        said_s = self._clock.monotonic_s()
        hello = Hello(self._keyring.me, address.broker, self._ids.nonce()).signed(address.keys)
        welcome = await self._say_hello(address, hello)
        try:
            session = accepted(hello, welcome, address.keys, said_s)
        except PeerRefused as error:
            raise Unavailable("another broker failed to prove its identity", inside=address.base) from error
        for broker in [broker for broker, one in self._sessions.items() if said_s >= one.until_s]:
            del self._sessions[broker]
        self._sessions[address.broker] = session
        return session

    def _end(self, broker: str, ended: asyncio.Task[Outgoing]) -> None:
        self._hellos.pop(broker, None)
        if not ended.cancelled():
            ended.exception()  # those who wait have it; perhaps nobody does any more


class WrongSecret(Unavailable):
    """The other broker takes none of this one's secrets."""


def wrong_secret(url: str) -> WrongSecret:
    """Returns the error for a broker that refuses this one."""
    return WrongSecret("another broker refused this one: their cluster_secret settings differ", inside=url)


async def ask_while(check: Callable[[], None], call: Awaitable[T], deadline: Deadline | None = None) -> T:
    """Returns the answer of a call to another broker, unless `check` raises meanwhile, which is called every LOOK_S:
    a broker that has gone, or hangs, does not answer.

    Raises as `check` and the call do, and TimeoutError once the deadline is over. In each of these cases, and when this
    is cancelled, the call is cancelled too.
    """
    asking = asyncio.ensure_future(call)
    try:
        while not (await asyncio.wait([asking], timeout=min(LOOK_S, deadline.left_s) if deadline else LOOK_S))[0]:
            check()
            if deadline and deadline.is_over:
                raise TimeoutError
        return asking.result()
    finally:
        asking.cancel()


class _Problem(msgspec.Struct):
    type: str = ""
    reason: str = ""


_PROBLEM, _WELCOME = msgspec.json.Decoder(_Problem), msgspec.msgpack.Decoder(Welcome)


def refusal_of(found: Relayed) -> str:
    """Returns why an answer does not take this broker for one of the cluster; empty if it does."""
    if found.status != FORBIDDEN:
        return ""
    try:
        problem = _PROBLEM.decode(found.body)
    except msgspec.DecodeError:
        return ""
    return problem.reason if problem.type == f"/problems/{PeerRefused.slug}" else ""


class Peers:
    """Connections to the other brokers, kept open. `tls_context` returns the context that checks those at https URLs;
    None: the authorities of the system are asked."""

    def __init__(self, tls_context: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._caller: PeerCaller | None = None
        self._connections = PeerConnections(tls_context)

    def begin(self, keyring: PeerKeyring, addresses: Addresses, clock: Clock, ids: Ids) -> None:
        """Calls brokers in sessions, from the level on that has them."""
        self._caller = PeerCaller(keyring, addresses, clock, ids, self._say_hello)

    async def call(self, url: str, path: str, request: Any, answer: type[T], timeout_s: float) -> T:
        """Posts a request as msgpack to `/internal/{path}`, and returns the decoded answer. Raises Unavailable if no
        answer came, PeerTooOld for a call that is not known there, else the error that the other broker raised."""
        body = await self.post(url, path, msgspec.msgpack.encode(request), timeout_s)
        try:
            return msgspec.msgpack.decode(body, type=answer)
        except msgspec.DecodeError as error:
            raise Unavailable(
                "unexpected response from another broker; does that broker run a different version?",
                inside=f"{url}, {path}: {error}",
            ) from error

    async def post(self, url: str, path: str, body: bytes, timeout_s: float) -> bytes:
        """Posts bytes as `call` does, and returns bytes."""
        found = await self.relay("POST", url, f"/internal/{path}", {}, body, timeout_s)
        if found.status == 200:
            return found.body
        if found.status == FORBIDDEN:
            raise wrong_secret(url)
        if found.status == NOT_FOUND:
            raise PeerTooOld(
                "another broker's version is too old for this request", inside=f"{url} does not know {path}"
            )
        raise _error_of(found, f"{url}, {path}")

    async def refused(self, url: str, timeout_s: float) -> bool:
        """Whether the broker at `url` has another secret. Raises Unavailable if no answer came."""
        try:
            await self.relay("POST", url, "/internal/status", {}, b"", timeout_s)
        except WrongSecret:
            return True
        return False

    async def relay(self, method: str, url: str, path: str, headers: Headers, body: bytes, timeout_s: float) -> Relayed:
        """Sends a request on to the broker whose record has this URL. Raises Unavailable if no answer came."""
        request = Request(method, path, headers, body, timeout_s)
        caller = self._caller
        assert caller is not None, "a broker is called before begin"
        for _ in range(ATTEMPTS):
            address, session = await caller.session(url, timeout_s)
            stamp = {STAMP_HEADER: session.stamp(request.covered())}
            found = await self.send(address.base, request, stamp, address.secured)
            why = refusal_of(found)
            if not why:
                return found
            if why == Refusal.TAKEN:
                raise Unavailable(
                    "another broker says that it has already received this request; the outcome of the "
                    "request is unknown",
                    inside=url,
                )
            if why != Refusal.LATE:
                caller.forget(url, session)
        raise wrong_secret(url)

    async def send(self, base: str, request: Request, shown: Headers, secured: Secured | None = None) -> Relayed:
        """Sends a request with its stamp, or a hello. Raises Unavailable if no answer came."""
        return await self._connections.send(base, request, shown, secured)

    async def _say_hello(self, address: Address, hello: Hello) -> Welcome:
        """Says hello. Raises NotOwner if another life is there, WrongSecret, Unavailable."""
        request = Request("POST", HELLO_PATH, {}, b"", HELLO_S)
        found = await self.send(address.base, request, {HELLO_HEADER: hello.encode()}, address.secured)
        if found.status == 200:
            try:
                return _WELCOME.decode(found.body)
            except msgspec.DecodeError as error:
                raise Unavailable("another broker answered a handshake incorrectly", inside=address.base) from error
        why, inside = refusal_of(found), f"{address.base}, {HELLO_PATH}"
        if why == Refusal.SECRET:
            raise wrong_secret(address.base)
        said = _error_of(found, inside)
        if why in (Refusal.BROKER, Refusal.PORT) or isinstance(said, NotReady):  # its next life, which had no request
            raise NotOwner("the broker that should answer this request is no longer running", inside=inside) from said
        raise said

    async def close(self) -> None:
        """Closes the connections."""
        if self._caller:
            await self._caller.close()
        await self._connections.close()


def _error_of(found: Relayed, inside: str) -> SeaweedqError:
    """Returns the error that another broker answered with."""
    try:
        return msgspec.msgpack.decode(found.body, type=ErrorMessage).error()
    except msgspec.DecodeError:
        return Unavailable(f"another broker answered with status {found.status}", inside=inside)
