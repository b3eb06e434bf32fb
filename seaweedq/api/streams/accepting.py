"""Judges whether a client takes server-sent events. Pure."""

from seaweedq.api.asgi.http import Scope, header
from seaweedq.api.streams.sse import MEDIA
from seaweedq.errors import NotAcceptable

SHOWN = 100


def check_accepted(scope: Scope) -> None:
    """Raises NotAcceptable where the client takes no events."""
    accepted = header(scope, b"accept")
    if accepted is None:
        return
    ranges = [one.partition(";")[0].strip().lower() for one in accepted.split(",")]
    if not {MEDIA, "text/*", "*/*", ""} & set(ranges):
        raise NotAcceptable(
            f"the stream is {MEDIA}, or a WebSocket; the request accepts {accepted[:SHOWN]!r}", supported=[MEDIA]
        )
