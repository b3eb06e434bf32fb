"""A broker's own URLs of payloads, for stores that give none: each has a token for one method on one object, an
HMAC-SHA256 over method, object and time of expiry. A holder of a key can make tokens, and none of them is ever logged.

There is a key for each day, derived from a secret that all brokers of the cluster have, so any of them accepts the URL
of another. Today's key signs; today's and yesterday's are taken, and for clocks that differ also tomorrow's, a little
before midnight. Nothing is stored, and a key that leaks is worth nothing two days later. The secret is the cluster's;
if a cluster has none it is drawn once, and kept in coordination. While the cluster's is changed there are several: one
that all brokers have signs, and all are taken.

The keys come from the secret's root (broker/rpc/peer_keys).
"""

import hmac
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from seaweedq.broker.uploads.rules import folder
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import SecretRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Forbidden
from seaweedq.storage.interface import SignedRequest

SKEW_S = 300  # how far brokers' clocks may differ
_LABEL = b"seaweedq payload links of "


class Grant(NamedTuple):
    """The request that a URL allows: a method on one object, until a time in seconds since the epoch. It says all that
    a token is about by itself, so that a token is judged before anything is looked up."""

    method: str
    name: str
    expires_s: int


def sign(secret: bytes, grant: Grant) -> str:
    """Returns the token of a grant, in hex."""
    return hmac.new(secret, "\n".join(map(str, grant)).encode(), "sha256").hexdigest()


def is_signed(secret: bytes, grant: Grant, token: str, now_s: float) -> bool:
    """Tells whether the token is valid for exactly this, and has not expired. The time it takes does not depend on the
    fault."""
    made = sign(secret, grant)
    return hmac.compare_digest(made.encode(), token.encode("utf-8", "replace")) and now_s < grant.expires_s


def key_of(secret: bytes, now_s: float) -> bytes:
    """Returns the key of the day, in UTC, of a time."""
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=now_s)).date().isoformat()
    return hmac.new(secret, _LABEL + day.encode(), "sha256").digest()


class LinkKeys:
    """The keys of one cluster. `roots` returns the keys derived from its secrets, the one that signs first, and
    nothing if the cluster has no secret."""

    def __init__(self, coordination: Coordination, ids: Ids, roots: Callable[[], Sequence[bytes]]) -> None:
        self._coordination = coordination
        self._ids = ids
        self._roots = roots
        self._known: bytes | None = None

    async def signing(self, now_s: float) -> bytes:
        """Returns the key that signs now."""
        roots = self._roots()
        return key_of(roots[0] if roots else await self._own_secret(), now_s)

    async def accepted(self, now_s: float) -> list[bytes]:
        """Returns the keys whose signatures are accepted now."""
        secrets = self._roots() or [await self._own_secret()]
        times = (now_s, now_s - 86_400, now_s + SKEW_S)
        return list(dict.fromkeys(key_of(secret, at_s) for secret in secrets for at_s in times))

    async def _own_secret(self) -> bytes:
        if self._known is None:
            key = keys.URL_SECRET.key()
            there = await self._coordination.get(key)
            if there is None:
                drawn = keys.URL_SECRET.encode(Versioned.new(SecretRecord(self._ids.nonce() + self._ids.nonce())))
                await self._coordination.commit([Compare(key, 0)], [Put(key, drawn)])  # or another broker was faster
                there = await self._coordination.get(key)
                assert there is not None
            self._known = bytes.fromhex(keys.URL_SECRET.require(there).record.secret)
        return self._known


class BrokerUrls:
    """Makes URLs below `url`, and checks their tokens. None is valid for more than `longest_s`."""

    def __init__(self, link_keys: LinkKeys, clock: Clock, url: str, longest_s: float) -> None:
        self._keys = link_keys
        self._clock = clock
        self._url = url
        self._longest_s = longest_s

    async def put(self, name: str, content_type: str, expires_s: int) -> SignedRequest:
        """Returns a URL to put an object within `expires_s` seconds."""
        return SignedRequest(await self._signed("PUT", name, expires_s), "PUT", {"content-type": content_type})

    async def get(self, name: str, expires_s: int) -> SignedRequest:
        """Returns a URL to get an object within `expires_s` seconds."""
        return SignedRequest(await self._signed("GET", name, expires_s), "GET", {})

    async def check(self, method: str, name: str, expires: str, token: str) -> None:
        """Checks that a token allows this request. Raises Forbidden, which does not name the fault of the token.
        Nothing is looked up, so the error tells nothing of the object."""
        until_s = int(expires) if expires.isascii() and expires.isdigit() and len(expires) < 12 else 0
        now_s = self._clock.now_us() / 1e6
        grant = Grant(method, name, until_s)
        found = [is_signed(key, grant, token, now_s) for key in await self._keys.accepted(now_s)]
        if not any(found) or until_s > now_s + self._longest_s + SKEW_S:
            raise Forbidden("the URL has expired, or was issued for another method or payload; request a new URL")

    async def _signed(self, method: str, name: str, expires_s: int) -> str:
        now_us = self._clock.now_us()
        until_s = now_us // 1_000_000 + expires_s
        token = sign(await self._keys.signing(now_us / 1e6), Grant(method, name, until_s))
        topic, _, upload = name.removeprefix(folder("")[:-1]).split("/")
        return f"{self._url}/v1/topics/{topic}/uploads/{upload}/content?expires={until_s}&token={token}"
