"""The bounds that all connections of a broker share, whatever is spoken on them."""

from dataclasses import dataclass

from seaweedq.api.asgi.connections import Connections
from seaweedq.api.asgi.incomplete_bodies import IncompleteBodies
from seaweedq.api.asgi.refusals import Refusals
from seaweedq.api.asgi.unread_answers import UnreadAnswers


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
