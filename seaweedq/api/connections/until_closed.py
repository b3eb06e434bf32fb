"""Answers without a stated length in HTTP/1.0, which knows no chunks: they end with their connection."""

from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from seaweedq.api.asgi.http import Receive, Scope, Send


class UntilClosed:
    """An application whose answers are sent without chunks. uvicorn's cycle counts what is left of a stated length;
    here each part of an answer is all that is left."""

    def __init__(self, app: Any, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle
        self._has_length = True

    async def __call__(self, scope: Scope, receive: Receive, out: Send) -> None:
        """As ASGI."""

        async def send(message: MutableMapping[str, Any]) -> None:
            """Sends a part of the answer on, as the rest of a body whose length is not stated."""
            if message["type"] == "http.response.start":
                self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not self._has_length:
                    self._cycle.chunked_encoding = False
            elif not self._has_length:
                self._cycle.expected_content_length = len(message.get("body", b""))
            await out(message)

        await self._app(scope, receive, send)
