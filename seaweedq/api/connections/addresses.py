"""The addresses of clients, of which each may have so many connections. Pure.

Behind a trusted proxy a request's address is the last one in X-Forwarded-For that is not itself a trusted proxy's: what
stands before it the client may have written. Connections of such a proxy are pooled, so the requests that are being
answered count in their place. Addresses on loopback and of trusted proxies count for nobody; of IPv6 the first 64 bits
count, since one client has all that follow.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from seaweedq.api.request import Request
from seaweedq.errors import Overloaded

REMEMBERED = 4096
FORWARDED = b"x-forwarded-for"
MAX_HOPS = 50  # of the header, from its end


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
        """Returns whether there are trusted proxies."""
        return bool(self._trusted)

    def of(self, request: Request) -> str | None:
        """Returns the address of a request's client, None where it is not known."""
        client = request.scope.get("client")
        if client is None:
            return None
        peer = str(client[0])
        if not self._trusted or not self._is_trusted(peer):
            return peer
        for text in reversed((request.header(FORWARDED) or "").split(",")[-MAX_HOPS:]):
            address = _bare(text.strip())
            if not address:
                break  # a trusted proxy knows no address there: what stands before that the client may have written
            if not self._is_trusted(address):
                return address
        return peer

    def forwarded(self, request: Request) -> str:
        """Returns what counts of the address of a request that a trusted proxy has forwarded; empty for others."""
        if not self._trusted or not self._is_trusted((request.scope.get("client") or ("",))[0]):
            return ""
        return self.counted(self.of(request) or "")

    def _counted(self, address: str) -> str:
        """Returns the name under which an address counts, empty where it does not."""
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
        """Counts a request for as long as the block runs. Raises Overloaded where its address has too many."""
        address = self._addresses.forwarded(request) if self.most else ""
        if not address:
            yield
            return
        count = self._counts.get(address, 0)
        if count >= self.most:
            detail = f"max_connections_per_address={self.most} requests from {address} are being answered already"
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
    """Returns an address without the port that some proxies add; empty where it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return ""
