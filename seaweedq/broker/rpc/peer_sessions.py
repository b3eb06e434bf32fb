"""Sessions between brokers, without any I/O: how one broker shows another one that it belongs to the cluster.

A session has a direction: the *caller* stamps requests, the *callee* checks them. Two brokers that greet each other at
once make two sessions, which know nothing of each other.

Hello: the caller sends both broker ids, its nonce, and a MAC of these under the hello key of a secret. The callee
answers with its id, its nonce, the session's id, and a MAC under the session's key, which HKDF makes of the root, both
ids and both nonces. So the key is never sent, each side has shown that it knows the secret, and nobody can make a
session, or answer a hello, who has only recorded others.

Stamp: each request carries the session, a number, and a MAC over the number, the method, the path, the query and all
`Seaweedq-*` headers. A number is taken once: the callee remembers which of the newest WINDOW it has seen. Bodies are
not covered: who can change packets is kept out by TLS alone.

States of a session at the callee:

    (none) --hello--> new --first stamp that is right--> used --SESSION_S, or the callee's end--> (none)

- A hello that comes twice, as a proxy repeats it or somebody replays it, gets the same answer and makes nothing new.
  One that is replayed behind the end of its session makes one whose key only the true caller could know: it stays new.
- A hello whose answer is lost leaves a session that stays new. The caller says hello again, with another nonce.
- There are at most MOST sessions, and MOST_OF_ONE of one caller. A new one that has no place takes that of the oldest
  that is new, else of the one that is unused for longest: replays never end a session in use while others are new.
- A callee that has restarted knows no session: it refuses, the caller says hello and sends the request again. The same
  happens behind SESSION_S. A refusal comes before anything is done, so a repeat does nothing twice. One number is the
  exception: `taken` says that another request with it was let in, perhaps a copy of this one, so nobody repeats it.
- A request that is overtaken by WINDOW others is refused as `late`, and is sent again with a new number.
- A caller that restarts has a new id, and begins anew.

Wall clocks have no part in this. Ages are measured by each side's own monotonic clock; the caller's begins earlier and
ends RENEW_S sooner.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from seaweedq.broker.rpc.peer_keys import PeerKeys, RootKeys, framed
from seaweedq.clock import Clock, Ids
from seaweedq.errors import PeerRefused

WINDOW = 1024
SESSION_S = 3600.0
RENEW_S = 300.0
MOST, MOST_OF_ONE = 4096, 32
STAMP_HEADER, HELLO_HEADER = "Seaweedq-Peer", "Seaweedq-Hello"
PREFIX = b"seaweedq-"
_NOT_COVERED = (STAMP_HEADER.lower().encode(), HELLO_HEADER.lower().encode())
_SEEN = (1 << WINDOW) - 1
_SESSION_CHARACTERS, _MAC_BYTES, _NONCE_CHARACTERS, _NUMBER_DIGITS = 32, 32, 32, 18
_MAC_DIGITS = 2 * _MAC_BYTES


class Refusal(StrEnum):
    """Why a broker does not take another one's request."""

    SECRET = "secret"  # a MAC under a secret that this broker does not have
    BROKER = "broker"  # a hello that means another broker
    FORM = "form"
    SESSION = "session"  # not known here, or no longer
    LATE = "late"
    TAKEN = "taken"
    MAC = "mac"
    PORT = "port"  # not at the port for brokers


# They follow restarts, an hour, and connections that are slow to begin: nobody need hear of them.
USUAL = frozenset({Refusal.SESSION, Refusal.LATE})


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The caller's part of a session. `callee` is the id of the broker that it means."""

    caller: str
    callee: str
    nonce: str
    mac: bytes = b""

    def signed(self, keys: RootKeys) -> "Hello":
        """Returns it with its MAC."""
        return msgspec.structs.replace(self, mac=self._made(keys))

    def is_signed(self, keys: RootKeys) -> bool:
        """Tells whether it was made with these keys."""
        return hmac.compare_digest(self._made(keys), self.mac)

    def encode(self) -> str:
        """Returns it as the value of HELLO_HEADER: no body has to be read before it is known who sends it."""
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()

    @staticmethod
    def decode(text: str) -> "Hello":
        """Returns the hello of a header. Raises PeerRefused."""
        try:
            found = _HELLO.decode(urlsafe_b64decode(text.encode("ascii")))
        except (msgspec.DecodeError, NotBase64, UnicodeError) as error:
            raise refused(Refusal.FORM, "the handshake cannot be read") from error
        if len(found.nonce) != _NONCE_CHARACTERS:
            raise refused(Refusal.FORM, "the handshake's nonce has the wrong length")
        return found

    def _made(self, keys: RootKeys) -> bytes:
        return hmac.digest(keys.hello, framed(*_texts(self.caller, self.callee, self.nonce)), "sha256")


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The callee's part of a session."""

    callee: str
    nonce: str
    session: str
    mac: bytes = b""


_HELLO = msgspec.msgpack.Decoder(Hello)


@dataclass(frozen=True, slots=True)
class Covered:
    """The parts of a request that a stamp covers: `headers` are the lines `name:value` of its `Seaweedq-*` headers."""

    method: bytes
    path: bytes
    query: bytes = b""
    headers: tuple[bytes, ...] = ()

    @staticmethod
    def from_request(method: str, path: bytes, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> "Covered":
        """Returns the parts of a request whose headers have lower-case names, each once."""
        lines = [b"%b:%b" % one for one in headers if one[0].startswith(PREFIX) and one[0] not in _NOT_COVERED]
        return Covered(method.encode(), path, query, tuple(sorted(lines)))

    def mac(self, key: bytes, number: int) -> bytes:
        """Returns the MAC of the request under a session's key. No part has a line break, as in HTTP."""
        parts = (b"%d" % number, self.method, self.path, self.query, *self.headers)
        text = b"\n".join(parts)
        if text.count(b"\n") != len(parts) - 1:
            raise refused(Refusal.FORM, "the request line or a header contains a line break")
        return hmac.digest(key, text, "sha256")


@dataclass(slots=True)
class Outgoing:
    """A session of this caller, from the welcome on."""

    session: str
    callee: str
    key: bytes = field(repr=False)
    until_s: float
    number: int = 0

    def stamp(self, request: Covered) -> str:
        """Returns the value of STAMP_HEADER for one more request."""
        self.number += 1
        return f"{self.session} {self.number} {request.mac(self.key, self.number).hex()}"


def accepted(hello: Hello, welcome: Welcome, keys: RootKeys, said_s: float) -> Outgoing:
    """Returns the session that an answer makes of a hello, which was said at `said_s`. Raises PeerRefused if the
    answer is not of the broker that was meant, or not of one that knows the secret."""
    key = _session_key(keys, hello, welcome)
    if welcome.callee != hello.callee or not hmac.compare_digest(_welcome_mac(key, welcome), welcome.mac):
        raise refused(Refusal.SECRET, "a broker other than the addressed broker has answered the handshake")
    return Outgoing(welcome.session, welcome.callee, key, said_s + SESSION_S - RENEW_S)


@dataclass(slots=True)
class Incoming:
    """A session of this callee. Of the numbers up to `highest`, `seen` has one bit for each of the last WINDOW."""

    caller: str
    nonce: str
    welcome: Welcome
    key: bytes = field(repr=False)
    until_s: float
    highest: int = 0
    seen: int = 0

    def accept(self, number: int) -> None:
        """Accepts a number. Raises PeerRefused if it was accepted before, or is too old to be known."""
        behind = self.highest - number
        if behind < 0:
            self.seen = ((self.seen << min(-behind, WINDOW)) | 1) & _SEEN
            self.highest = number
        elif behind >= WINDOW:
            detail = (
                f"request {number} arrived too late: request {self.highest}, whose number is higher by {WINDOW} or "
                "more, arrived earlier"
            )
            raise refused(Refusal.LATE, detail)
        elif self.seen >> behind & 1:
            raise refused(Refusal.TAKEN, f"request {number} has already arrived")
        else:
            self.seen |= 1 << behind


class IncomingSessions:
    """The sessions of the callee `me`, by id."""

    def __init__(self, keys: PeerKeys, me: str, clock: Clock, ids: Ids) -> None:
        self._keys = keys
        self._me = me
        self._clock = clock
        self._ids = ids
        self._new: dict[str, Incoming] = {}  # in the order in which they were made
        self._used: dict[str, Incoming] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._new) + len(self._used)

    def welcome(self, hello: Hello) -> Welcome:
        """Returns the answer to a hello. Raises PeerRefused."""
        keys = next((one for one in self._keys.roots if hello.is_signed(one)), None)
        if keys is None:
            raise refused(Refusal.SECRET, "the calling broker has a different cluster_secret")
        if hello.callee != self._me:
            raise refused(Refusal.BROKER, "the call is for a different broker than this one")
        self._end_old()
        # The caller's sessions, in the order in which they would lose their place.
        of_caller = [
            one for sessions in (self._new, self._used) for one in sessions.values() if one.caller == hello.caller
        ]
        if known := next((one for one in of_caller if one.nonce == hello.nonce), None):
            return known.welcome
        if len(of_caller) >= MOST_OF_ONE:
            self._forget(of_caller[0].welcome.session)
        elif len(self) >= MOST:
            self._forget(next(iter(self._new or self._used)))
        return self._begin(hello, keys)

    def check(self, stamp: str, request: Covered) -> str:
        """Takes a request. Returns the id of the broker that sent it. Raises PeerRefused."""
        session, number, mac = _parsed(stamp)
        found = self._used.get(session) or self._new.get(session)
        if found is None or self._clock.monotonic_s() >= found.until_s:
            raise refused(Refusal.SESSION, "the request's session is unknown or has ended")
        if not hmac.compare_digest(request.mac(found.key, number), mac):
            raise refused(Refusal.MAC, "the request does not match its signature")
        found.accept(number)
        self._forget(session)
        self._used[session] = found  # the last one, as it was used last
        return found.caller

    def _begin(self, hello: Hello, keys: RootKeys) -> Welcome:
        welcome = Welcome(self._me, self._ids.nonce(), self._ids.nonce())
        key = _session_key(keys, hello, welcome)
        welcome = msgspec.structs.replace(welcome, mac=_welcome_mac(key, welcome))
        until_s = self._clock.monotonic_s() + SESSION_S
        self._new[welcome.session] = Incoming(hello.caller, hello.nonce, welcome, key, until_s)
        return welcome

    def _forget(self, session: str) -> None:
        self._new.pop(session, None)
        self._used.pop(session, None)

    def _end_old(self) -> None:
        now_s = self._clock.monotonic_s()
        for sessions in (self._new, self._used):
            for session in [session for session, one in sessions.items() if now_s >= one.until_s]:
                del sessions[session]


def refused(why: Refusal, detail: str) -> PeerRefused:
    """Returns the error for a request that is not taken."""
    return PeerRefused(detail, reason=why.value)


def _parsed(stamp: str) -> tuple[str, int, bytes]:
    """Returns session, number and MAC of a STAMP_HEADER. Raises PeerRefused."""
    session, _, rest = stamp.partition(" ")
    number, _, mac = rest.partition(" ")
    is_number = number.isascii() and number.isdigit() and len(number) <= _NUMBER_DIGITS
    if is_number and len(session) == _SESSION_CHARACTERS and len(mac) == _MAC_DIGITS:
        try:
            return session, int(number), bytes.fromhex(mac)
        except ValueError:
            pass
    raise refused(Refusal.FORM, "the signature cannot be read")


def _texts(*texts: str) -> list[bytes]:
    return [text.encode("utf-8", "surrogatepass") for text in texts]


def _session_key(keys: RootKeys, hello: Hello, welcome: Welcome) -> bytes:
    parts = _texts(hello.caller, hello.callee, hello.nonce, welcome.nonce)
    return keys.derive(b"session", framed(*parts))


def _welcome_mac(key: bytes, welcome: Welcome) -> bytes:
    """Returns the MAC of an answer to a hello; no request begins with such a text, as each begins with a number."""
    return hmac.digest(key, b"welcome" + framed(*_texts(welcome.callee, welcome.nonce, welcome.session)), "sha256")
