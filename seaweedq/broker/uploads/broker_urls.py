"""A broker's own URLs of payloads, for stores that give none: each has a token for one method on one object.

All brokers of a cluster share the secret, so any of them accepts the URL of another.
"""

from seaweedq.broker.uploads import url_tokens as signing
from seaweedq.broker.uploads.rules import folder
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import SecretRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Forbidden
from seaweedq.storage.interface import SignedRequest


class BrokerUrls:
    """Makes URLs below `url`, and checks their tokens."""

    def __init__(self, coordination: Coordination, clock: Clock, ids: Ids, url: str) -> None:
        self._coordination = coordination
        self._clock = clock
        self._ids = ids
        self._url = url
        self._known: bytes | None = None

    async def put(self, name: str, size: int, content_type: str, expires_s: int) -> SignedRequest:
        """Returns a URL to put an object of that size within `expires_s` seconds."""
        return SignedRequest(await self._signed("PUT", name, size, expires_s), "PUT", {"content-type": content_type})

    async def get(self, name: str, expires_s: int) -> SignedRequest:
        """Returns a URL to get an object within `expires_s` seconds."""
        return SignedRequest(await self._signed("GET", name, 0, expires_s), "GET", {})

    async def check(self, method: str, name: str, size: int, expires: str, token: str) -> None:
        """Checks that a token allows this request. Raises Forbidden, which does not say what is wrong with it."""
        until_s = int(expires) if expires.isascii() and expires.isdigit() and len(expires) < 12 else 0
        now_s = self._clock.now_us() / 1e6
        if not signing.is_signed(await self._secret(), method, name, size, until_s, token, now_s):
            raise Forbidden("the URL has expired, or is not one for this method, payload and size; ask for a new one")

    async def _signed(self, method: str, name: str, size: int, expires_s: int) -> str:
        until_s = self._clock.now_us() // 1_000_000 + expires_s
        token = signing.sign(await self._secret(), method, name, size, until_s)
        topic, _, upload = name.removeprefix(folder("")[:-1]).split("/")
        return f"{self._url}/v1/topics/{topic}/uploads/{upload}/content?expires={until_s}&token={token}"

    async def _secret(self) -> bytes:
        if self._known is None:
            key = keys.URL_SECRET.key()
            there = await self._coordination.get(key)
            if there is None:
                drawn = keys.URL_SECRET.encode(Versioned.new(SecretRecord(self._ids.nonce() + self._ids.nonce())))
                await self._coordination.commit([Compare(key, 0)], [Put(key, drawn)])  # or another broker was faster
                there = await self._coordination.get(key)
                assert there is not None
            self._known = bytes.fromhex(keys.URL_SECRET.decode(there.value).secret)
        return self._known
