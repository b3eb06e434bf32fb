"""A broker's own URLs of payloads, for stores that give none: each has a token for one method on one object.

All brokers of a cluster have the keys (`link_keys`), so any of them accepts the URL of another.
"""

from seaweedq.broker.uploads.link_keys import SKEW_S, LinkKeys
from seaweedq.broker.uploads.rules import folder
from seaweedq.broker.uploads.url_tokens import Grant, is_signed, sign
from seaweedq.clock import Clock
from seaweedq.errors import Forbidden
from seaweedq.storage.interface import SignedRequest


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
        """Checks that a token allows this request. Raises Forbidden, which does not say what is wrong with the
        token. Nothing is looked up, so the error tells nothing of the object."""
        until_s = int(expires) if expires.isascii() and expires.isdigit() and len(expires) < 12 else 0
        now_s = self._clock.now_us() / 1e6
        grant = Grant(method, name, until_s)
        found = [is_signed(key, grant, token, now_s) for key in await self._keys.taken(now_s)]
        if not any(found) or until_s > now_s + self._longest_s + SKEW_S:
            raise Forbidden("the URL has expired, or is not one for this method and payload; ask for a new one")

    async def _signed(self, method: str, name: str, expires_s: int) -> str:
        now_us = self._clock.now_us()
        until_s = now_us // 1_000_000 + expires_s
        token = sign(await self._keys.signing(now_us / 1e6), Grant(method, name, until_s))
        topic, _, upload = name.removeprefix(folder("")[:-1]).split("/")
        return f"{self._url}/v1/topics/{topic}/uploads/{upload}/content?expires={until_s}&token={token}"
