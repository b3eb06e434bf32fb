"""The port for other brokers (`peer_port`): its listener, and the URL at which the others reach it."""

import socket
from urllib.parse import urlsplit

from seaweedq.cli.server.process.http_server import listen, url_of
from seaweedq.settings import Settings


def listen_for_peers(settings: Settings) -> socket.socket | None:
    """Binds the port for brokers, if there is to be one. Raises OSError."""
    return listen(settings, settings.peer_port) if settings.peer_port else None


def peer_url_of(settings: Settings, listener: socket.socket | None) -> str:
    """Returns the URL at which other brokers reach the listener; empty where there is none."""
    if listener is None or settings.advertise_peer_url:
        return settings.advertise_peer_url
    advertised = urlsplit(settings.advertise_url).hostname
    return url_of(advertised or settings.host, listener, "https")
