"""The tokens that were shown to a broker and counted, by the header that showed them, with what they were allowed.

They are bounded by the memory that they take: what comes over REMEMBERED_BYTES has all of it forgotten, which costs
each token one judgement. A change that is about a token has it forgotten at once, so that the text of one that was
revoked stays nowhere.
"""

import sys
from dataclasses import dataclass, field

from seaweedq.access.actions import Action, Resource
from seaweedq.access.caller import Caller
from seaweedq.access.tokens import digest_of
from seaweedq.broker.access.view import Touched

REMEMBERED_BYTES = 8 * 2**20
REMEMBERED_RIGHTS = 64  # of one token
REMEMBERED_PATH = 256  # characters: no name is checked before the gate, so a path may be as long as a head
TOKEN_BYTES, RIGHT_BYTES = 1_000, 400  # beside texts: the objects, and their places in sets and dicts


@dataclass(slots=True)
class ShownToken:
    """A token as the SHA-256 of its text; the caller that it stood for, what that was allowed, and their `bytes`."""

    digest: bytes
    caller: Caller
    bytes: int = 0
    allowed: set[tuple[Action | None, Resource]] = field(default_factory=set)


class ShownTokens:
    """Those of one broker, `by_header`."""

    def __init__(self) -> None:
        self.by_header: dict[bytes | None, ShownToken] = {}
        self._headers: dict[str, bytes] = {}  # by the tokens' ids
        self._bytes = 0

    def add(self, header: bytes, text: bytes, caller: Caller, action: Action | None, resource: Resource) -> None:
        """Remembers what a caller was allowed by the token that a header has shown."""
        token, size = caller.token or "", RIGHT_BYTES + sum(map(sys.getsizeof, resource))
        seen = self.by_header.get(header)
        if seen is None or seen.caller is not caller or len(seen.allowed) >= REMEMBERED_RIGHTS:
            self._drop(token)
            seen = None
        if self._bytes + size + TOKEN_BYTES > REMEMBERED_BYTES:
            self.forget(None)
            seen = None
        if seen is None:
            seen = self.by_header[header] = ShownToken(digest_of(text), caller)
            self._headers[token] = header
            size += TOKEN_BYTES
        seen.allowed.add((action, resource))
        seen.bytes += size
        self._bytes += size

    def forget(self, touched: Touched) -> None:
        """Forgets the tokens that a change is about."""
        if touched is None:
            self.by_header.clear()
            self._headers.clear()
            self._bytes = 0
            return
        for token in touched:
            self._drop(token)

    def _drop(self, token: str) -> None:
        header = self._headers.pop(token, None)
        if header is not None:
            self._bytes -= self.by_header.pop(header).bytes
