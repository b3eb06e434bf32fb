"""Answers to programs of a terminal, such as curl: their JSON ends with a newline, so that the prompt has its own line.

Bytes that users have stored stay as they are, whatever their type: payloads, and the content of uploads.
"""

from collections.abc import MutableMapping
from typing import Any

from seaweedq.api.request import Scope, Send, header

PROGRAMS = ("curl/", "Wget/", "HTTPie/")
STORED = ("/payload", "/content")
_JSON = (b"application/json", b"application/problem+json")


def ending_lines(scope: Scope, out: Send) -> Send:
    """Returns the way out of an answer: for a request of a terminal's program one that ends the line, else `out`."""
    if scope["type"] != "http" or not (header(scope, b"user-agent") or "").startswith(PROGRAMS):
        return out
    return out if scope["path"].endswith(STORED) else _LineEnd(out)


class _LineEnd:
    """Sends the messages of one answer, with a newline behind JSON that comes in one piece."""

    def __init__(self, out: Send) -> None:
        self._out = out
        self._start: MutableMapping[str, Any] | None = None

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI's `send`."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None:
            start, self._start = self._start, None
            if message.get("body") and not message.get("more_body") and _is_json(start):
                start = {**start, "headers": [_longer(*one) for one in start["headers"]]}
                message = {**message, "body": bytes(message["body"]) + b"\n"}
            await self._out(start)
        await self._out(message)


def _is_json(start: MutableMapping[str, Any]) -> bool:
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    return b"content-encoding" not in headers and headers.get(b"content-type", b"").partition(b";")[0] in _JSON


def _longer(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Returns a header of an answer that is one byte longer."""
    return (name, b"%d" % (int(value) + 1)) if name.lower() == b"content-length" else (name, value)
