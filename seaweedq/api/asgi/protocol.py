"""Extends uvicorn's HTTP protocol: heads are bounded in size and time, and errors are problems.

`request_reader` bounds bodies. Before a request's head is complete no application is asked, and uvicorn bounds nothing.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from seaweedq.api.asgi.problems import problem
from seaweedq.errors import UnreadableRequest

MAX_HEAD_BYTES = 64 * 1024  # and at most one read more


class BoundedProtocol(HttpToolsProtocol):
    """One connection; a head has to be complete within `head_timeout_s`."""

    def __init__(self, *arguments: Any, head_timeout_s: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timeout_s = head_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._head_open = False
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a head."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._timeout_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait for a head."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Counts from the begin of a head."""
        super().on_message_begin()
        self._head_open, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Ends the wait for a head that is complete."""
        self._head_open = False
        if self._timer:
            self._stop_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Counts the bytes that come before a head is complete."""
        super().data_received(data)
        if self._head_open and not self.transport.is_closing():
            self._head_bytes += len(data)
            self._timer = self._timer or self.loop.call_later(self._timeout_s, self._too_slow)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"the request's line and headers are over {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Answers with a problem, and closes the connection."""
        status, headers, content = problem(UnreadableRequest(msg))
        headers |= {"content-length": str(len(content)), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", content]))
        self.transport.close()

    def _too_slow(self) -> None:
        """Closes the connection without an answer: no request has come."""
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
