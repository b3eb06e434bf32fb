"""TLS on connections that clients make: each has a place among all of them from its first packet on.

asyncio tells of a connection with TLS once its handshake is done, and waits a minute for that: strangers that send
nothing would hold any number of them. So connections are accepted without TLS, are bounded as all others are, and the
handshake has to be done within `head_timeout_s`. Then HTTP's protocol takes over, and takes a place of its own.

A connection uses the certificate that there is when it begins; a later one changes nothing for it.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from seaweedq.api.connections.connections import Admission, ConnectionBounds

GOODBYE_S = 5.0  # how long a client may take to say that it has read the last of a connection
Speak = Callable[[], asyncio.Protocol]


class ClientContext(ssl.SSLContext):
    """The context of the port for clients. `client_ca` is the SHA-256 of the CA file by which it judges their
    certificates, empty if it asks for none."""

    client_ca: bytes = b""


class Handshake(asyncio.Protocol):
    """One connection until its handshake is done. `speak` makes the protocol that takes over then; `context` returns
    the TLS context of now. Handshakes that fail are counted as refused for `refusals_of`."""

    def __init__(
        self, speak: Speak, context: Callable[[], ssl.SSLContext], bounds: ConnectionBounds, refusals_of: str = "tls"
    ) -> None:
        self._speak, self._context, self._bounds = speak, context, bounds
        self._refusals_of = refusals_of
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []  # came before the handshake began, or with its last packet
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a place, and begins the handshake. Without one nothing can be said: TLS is not up."""
        self._transport = transport
        if self._bounds.enter(self, transport) is Admission.NONE:
            self._bounds.refusals.note("connection", f"there are max_connections={self._bounds.connections.most}")
            transport.abort()
            return
        self._shaking = asyncio.ensure_future(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        """Keeps bytes that came too early for their reader."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._transport = None
        self._bounds.connections.leave(self)

    def make_room(self) -> None:
        """Ends the handshake for another connection."""
        self._bounds.refusals.note(
            "quiet_connection", "its handshake was not complete, and a new connection needs its place"
        )
        if self._transport:
            self._transport.abort()

    async def _shake(self, plain: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        shaking = asyncio.ensure_future(
            loop.start_tls(
                plain,
                self,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=self._bounds.head_timeout_s,
                ssl_shutdown_timeout=GOODBYE_S,
            )
        )
        try:
            await asyncio.sleep(0)  # `start_tls` runs to its first wait
            if self._early and not shaking.done():
                # uvloop reads before this task runs; from now on only TLS' own protocol is given bytes
                loop.call_soon(_feed, plain.get_protocol(), b"".join(self._early))
                self._early.clear()
            secured = await shaking
        except (ssl.SSLError, ConnectionAbortedError) as error:  # no TLS, a certificate refused, or too slow
            address = (plain.get_extra_info("peername") or ["an unknown address"])[0]
            self._bounds.refusals.note(self._refusals_of, f"the TLS handshake failed: {error}, from {address}")
            plain.abort()
        except OSError:
            plain.abort()
        else:
            self._hand_over(secured)
        finally:
            shaking.cancel()
            self._bounds.connections.leave(self)

    def _hand_over(self, secured: Any) -> None:
        """Gives the connection to HTTP. What comes after `set_protocol` goes there; nothing comes in between, as all of
        this is one turn of the loop."""
        if secured is None or secured.is_closing() or self._transport is None:
            return
        self._bounds.connections.leave(self)
        spoken = self._speak()
        secured.set_protocol(spoken)
        spoken.connection_made(secured)
        if self._early:
            spoken.data_received(b"".join(self._early))


def _feed(tls: Any, data: bytes) -> None:
    """Gives bytes to the protocol of TLS, which has its connection by now, as its transport does."""
    while data:
        room = tls.get_buffer(len(data))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        tls.buffer_updated(size)
        data = data[size:]
