"""Relays requests of clients to the broker that answers them, as they came, and returns that broker's answer.

Where a request goes, and when it is tried again, is decided by a search (broker/read/request_search).
"""

from urllib.parse import quote, urlencode

from seaweedq.api.access.authentication import PeerRequests, header_of
from seaweedq.api.request import Answer, Request
from seaweedq.broker.read import SearchRequest, Target
from seaweedq.broker.rpc import Peers
from seaweedq.errors import NotOwner

_KEPT = {b"accept", b"content-type"}
_RETURNED = ("content-type", "lease", "next-offset", "sealed", "successors", "retry-after", "content-encoding")
_ASCII = "".join(map(chr, range(0x21, 0x7F)))  # as it came; whatever else came could not be sent on
_NOT_THERE = (b"/problems/not-owner", b"/problems/not-ready")


class Proxy:
    """Relays requests, and tells which requests were relayed here."""

    def __init__(self, peers: Peers, requests: PeerRequests) -> None:
        self._peers = peers
        self._requests = requests

    def search_request(self, request: Request, wait_s: float = 0.0) -> SearchRequest:
        """Returns the facts of a request that a search needs. Raises Forbidden."""
        return SearchRequest(wait_s, self._requests.is_authenticated(request))

    async def relay(self, request: Request, target: Target, content: bytes = b"") -> Answer:
        """Returns the target's answer to a request. A `wait_s` in the query becomes what is left of it; a wait in the
        content is the caller's to set, and content is JSON if the client sent none.

        Raises NotOwner if that broker cannot answer, Unavailable if it does not.
        """
        if target.url is None:
            raise NotOwner("the broker that could answer this request is no longer running")
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.items() if k in _KEPT}
        if content:
            headers.setdefault("content-type", "application/json")
        headers |= header_of(request.caller)
        path = _path(request, target.wait_s)
        relaying = self._peers.relay(request.method, target.url, path, headers, content, target.answer_s)
        found = await target.ask(relaying)
        if found.status == 503 and any(slug in found.body for slug in _NOT_THERE):
            raise NotOwner(
                "this broker forwarded the request to another broker, which cannot answer the request either",
                inside=target.url,
            )
        returned = {name: value for name, value in found.headers.items() if name.lower() in _RETURNED}
        return Answer(found.status, found.body, returned)


def _path(request: Request, wait_s: float) -> str:
    path, text = request.raw_path.decode("latin-1"), request.query_string.decode("latin-1")
    options = request.query
    if "wait_s" in options:
        text = urlencode({**options, "wait_s": f"{wait_s:.3f}"})
    return quote(f"{path}?{text}" if text else path, _ASCII, "latin-1")
