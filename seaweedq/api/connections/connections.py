"""Bounds the connections of a broker and those of each address, and keeps a reserve for probes and other brokers. Pure.

At the bound a new connection takes the place of the one that has been quiet for longest: that waits for its client,
between requests or for the rest of one. If none is quiet the new one is in the reserve: it may ask what probes and
brokers ask, and anything else once there is a place. Beyond the reserve it is sent away.

Each address has a bound of its own, at which its oldest quiet connection makes room; if none of them is quiet the new
one is in the reserve. Addresses on loopback and of trusted proxies are empty, and do not count; of IPv6 the first 64
bits count, since one client has all that follow. A connection on which a broker of the cluster has shown itself counts
for no address: it relays the requests of clients of many addresses.

Behind a trusted proxy a request's address is the last one in X-Forwarded-For that is not itself a trusted proxy's: the
client may have written all before it. Connections of such a proxy are pooled, so the requests under way count in their
place.

Streams, and requests that wait for messages, are busy for as long as their clients like: they have three quarters of
the places at most, so that others can work.
"""

from asyncio import Transport
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol

from seaweedq.api.connections.memory import IncompleteBodies, UnreadAnswers
from seaweedq.api.problems import Refusals
from seaweedq.api.request import Request
from seaweedq.errors import Overloaded

REMEMBERED = 4096
FORWARDED = b"x-forwarded-for"
MAX_HOPS = 50  # of the header, from its end
PROBES = (b"/healthz", b"/readyz")
OF_BROKERS = b"/internal/"


def networks_of(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Returns networks, separated by commas; an address is a network of one. Raises ValueError."""
    return tuple(ip_network(one.strip(), strict=False) for one in text.split(",") if one.strip())


class Addresses:
    """The rules of one broker: which addresses are those of `trusted` proxies."""

    def __init__(self, trusted: str = "") -> None:
        self._trusted = networks_of(trusted)
        self.counted = lru_cache(REMEMBERED)(self._counted)

    @property
    def has_proxies(self) -> bool:
        """Whether there are trusted proxies."""
        return bool(self._trusted)

    def of(self, request: Request) -> str | None:
        """Returns the address of a request's client, None if it is not known."""
        client = request.scope.get("client")
        if client is None:
            return None
        peer = str(client[0])
        if not self._trusted or not self._is_trusted(peer):
            return peer
        for text in reversed((request.header(FORWARDED) or "").split(",")[-MAX_HOPS:]):
            address = _bare(text.strip())
            if not address:
                break  # a trusted proxy knows no address there: the client may have written all before that
            if not self._is_trusted(address):
                return address
        return peer

    def forwarded(self, request: Request) -> str:
        """Returns the counted address of a request that a trusted proxy has forwarded; empty for others."""
        if not self._trusted or not self._is_trusted((request.scope.get("client") or ("",))[0]):
            return ""
        return self.counted(self.of(request) or "")

    def _counted(self, address: str) -> str:
        """Returns the name under which an address counts, empty if it does not."""
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return ""
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        if parsed.is_loopback or self._is_trusted(str(parsed)):
            return ""
        return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed)

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._trusted)


class ForwardedRequests:
    """The requests of trusted proxies that are being answered, by the addresses from which they came. `refused` is
    told the reason and the detail of each that is not."""

    def __init__(self, addresses: Addresses, refused: Callable[[str, str], None]) -> None:
        self.most = 0  # 0: no bound
        self.has_proxies = addresses.has_proxies  # else no request counts
        self._addresses = addresses
        self._refused = refused
        self._counts: dict[str, int] = {}

    @contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        """Counts a request for as long as the block runs. Raises Overloaded if its address has too many."""
        address = self._addresses.forwarded(request) if self.most else ""
        if not address:
            yield
            return
        count = self._counts.get(address, 0)
        if count >= self.most:
            detail = f"the broker is already answering max_connections_per_address={self.most} requests from {address}"
            self._refused("address", detail)
            raise Overloaded(f"{detail}; try again", max_connections_per_address=self.most)
        self._counts[address] = count + 1
        try:
            yield
        finally:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]


def _bare(text: str) -> str:
    """Returns an address without the port that some proxies add; empty if it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return ""


class Admission(Enum):
    """The place that a new connection gets."""

    REGULAR = "regular"
    RESERVE = "reserve"
    NONE = "none"


class Evictable(Protocol):
    """A connection that may have to end for another one."""

    def make_room(self) -> None:
        """Closes it for another one."""


class Connections:
    """All connections, at most `most` of them and `reserve` more."""

    def __init__(self, most: int = 16_384, reserve: int = 256) -> None:
        self.most = most
        self.most_per_address = most
        self.reserve = reserve
        self._regular: set[Evictable] = set()
        self._reserved: set[Evictable] = set()
        self._staying: set[object] = set()
        self._addresses: dict[Evictable, str] = {}  # of those whose addresses count
        self._by_address: dict[str, dict[Evictable, None]] = {}  # the regular ones among them, in their order
        self._quiet: OrderedDict[Evictable, None] = OrderedDict()  # of both, the longest quiet one first

    @property
    def most_staying(self) -> int:
        """How many connections may have a request that lasts."""
        return max(1, self.most * 3 // 4)

    def __len__(self) -> int:
        return len(self._regular) + len(self._reserved)

    def enter(self, connection: Evictable, address: str = "") -> Admission:
        """Gives a new connection a place. It is quiet."""
        if address:
            self._addresses[connection] = address
        if self._find_place(connection):
            place = Admission.REGULAR
        elif len(self._reserved) < self.reserve or self._end_quiet(self._reserved):
            self._reserved.add(connection)
            place = Admission.RESERVE
        else:
            self._addresses.pop(connection, None)
            return Admission.NONE
        self._quiet[connection] = None
        return place

    def may_ask(self, connection: Evictable, path: bytes) -> bool:
        """Returns whether a connection may ask for a path. One of the reserve gets a place if there is one now."""
        if connection not in self._reserved or path in PROBES or path.startswith(OF_BROKERS):
            return True
        self._quiet.pop(connection, None)
        if self._find_place(connection):
            self._reserved.discard(connection)
            return True
        return False

    def stay(self, connection: object) -> bool:
        """Begins a request that lasts for as long as its client likes, and returns True; False if so many last that
        there would be too few places for others."""
        if len(self._staying) >= self.most_staying:
            return False
        self._staying.add(connection)
        return True

    def go(self, connection: object) -> None:
        """Ends such a request."""
        self._staying.discard(connection)

    def leave(self, connection: Evictable) -> None:
        """Forgets a connection that is closed."""
        self._staying.discard(connection)
        self._regular.discard(connection)
        self._reserved.discard(connection)
        self._quiet.pop(connection, None)
        self.exempt(connection)

    def exempt(self, connection: Evictable) -> None:
        """Has a connection count for its address no more."""
        address = self._addresses.pop(connection, "")
        if address in self._by_address:
            self._by_address[address].pop(connection, None)
            if not self._by_address[address]:
                del self._by_address[address]

    def is_over(self, connection: Evictable) -> bool:
        """Returns whether the address of a connection has as many as it may."""
        return len(self._by_address.get(self._addresses.get(connection, ""), ())) >= self.most_per_address

    def touch(self, connection: Evictable) -> None:
        """Makes a quiet connection the last one to make room: bytes came."""
        if connection in self._quiet:
            self._quiet.move_to_end(connection)

    def mark_busy(self, connection: Evictable) -> None:
        """A request has come whole: it is the broker's turn."""
        self._quiet.pop(connection, None)

    def mark_quiet(self, connection: Evictable) -> None:
        """Everything is answered: it is the client's turn."""
        if connection in self._regular or connection in self._reserved:
            self._quiet[connection] = None
            self._quiet.move_to_end(connection)

    def _find_place(self, connection: Evictable) -> bool:
        if self.is_over(connection) and not self._end_quiet_neighbour(connection):
            return False
        if len(self._regular) < self.most or self._end_quiet(self._regular):
            self._regular.add(connection)
            if address := self._addresses.get(connection):
                self._by_address.setdefault(address, {})[connection] = None
            return True
        return False

    def _end_quiet(self, among: set[Evictable]) -> bool:
        """Closes the one among these that has been quiet for longest. Returns False if none is quiet."""
        found = next((one for one in self._quiet if one in among), None)
        return found is not None and self._end(found)

    def _end_quiet_neighbour(self, connection: Evictable) -> bool:
        """Closes the oldest quiet one of the same address. Returns False if none is quiet."""
        own = self._by_address[self._addresses[connection]]
        found = next((one for one in own if one in self._quiet), None)
        return found is not None and self._end(found)

    def _end(self, connection: Evictable) -> bool:
        self.leave(connection)
        connection.make_room()
        return True


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The bounds of all connections of a broker."""

    head_timeout_s: float
    answer_timeout_s: float
    unread: UnreadAnswers
    connections: Connections
    refusals: Refusals
    bodies: IncompleteBodies
    message_timeout_s: float
    addresses: Addresses = field(default_factory=Addresses)

    def enter(self, connection: Evictable, transport: Transport) -> Admission:
        """Gives a new connection a place among all of them, and among those of its address."""
        peer = transport.get_extra_info("peername")
        return self.connections.enter(connection, self.addresses.counted(peer[0]) if peer else "")
