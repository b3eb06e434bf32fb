"""HTTP on the wire: uvicorn's protocol, with heads that are bounded in size and time, and errors that are problems.

Bodies are bounded in `http`; before a request has its head no application is asked, and uvicorn bounds nothing there.
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
        """A head is expected."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._timeout_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """No head is expected any more."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head_open, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """A head is complete."""
        self._head_open = False
        if self._timer:
            self._stop_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Count what comes while a head is not complete."""
        super().data_received(data)
        if self._head_open and not self.transport.is_closing():
            self._head_bytes += len(data)
            self._timer = self._timer or self.loop.call_later(self._timeout_s, self._too_slow)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"the request's line and headers are over {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Answer with a problem, and close."""
        status, headers, content = problem(UnreadableRequest(msg))
        headers |= {"content-length": str(len(content)), "connection": "close"}
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", content]))
        self.transport.close()

    def _too_slow(self) -> None:
        """Nobody is owed an answer: where anything came at all, it was no request."""
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
