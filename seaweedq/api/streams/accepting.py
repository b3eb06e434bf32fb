"""Judges whether a client takes server-sent events. Pure."""

from seaweedq.api.asgi.accepted import accepts
from seaweedq.api.asgi.http import Scope, header
from seaweedq.api.streams.sse import MEDIA
from seaweedq.errors import NotAcceptable

SHOWN = 100


def check_accepted(scope: Scope) -> None:
    """Raises NotAcceptable where the client takes no events."""
    if not accepts(scope, MEDIA):
        stated = (header(scope, b"accept") or "")[:SHOWN]
        raise NotAcceptable(f"the stream is {MEDIA}, or a WebSocket; the request accepts {stated!r}", supported=[MEDIA])
