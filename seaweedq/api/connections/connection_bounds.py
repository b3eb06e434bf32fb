"""The bounds that all connections of a broker share, whatever is spoken on them."""

from asyncio import Transport
from dataclasses import dataclass, field

from seaweedq.api.asgi.refusals import Refusals
from seaweedq.api.bodies.incomplete_bodies import IncompleteBodies
from seaweedq.api.bodies.unread_answers import UnreadAnswers
from seaweedq.api.connections.addresses import Addresses
from seaweedq.api.connections.connections import Connection, Connections, Place


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The bounds of all connections of a broker."""

    head_timeout_s: float
    answer_timeout_s: float
    unread: UnreadAnswers
    connections: Connections
    refusals: Refusals
    bodies: IncompleteBodies
    message_timeout_s: float
    addresses: Addresses = field(default_factory=Addresses)

    def enter(self, connection: Connection, transport: Transport) -> Place:
        """Gives a new connection a place among all of them, and among those of its address."""
        peer = transport.get_extra_info("peername")
        return self.connections.enter(connection, self.addresses.counted(peer[0]) if peer else "")
