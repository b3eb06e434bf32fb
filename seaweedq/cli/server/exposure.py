"""How a broker is reached: whether others than this machine do, what its settings then must say about tokens, and by
which scheme.

`auth=auto` lets in whoever connects, which is right on loopback alone: elsewhere somebody must have said that it is
wanted. A broker that nobody has said it of does not start, so that none is open by an oversight.
"""

import logging
from ipaddress import ip_address
from urllib.parse import urlsplit

from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings

logger = logging.getLogger("seaweedq")


def check_auth(settings: Settings) -> None:
    """Warns of a broker on which nobody needs a token. Raises InvalidRequest where nobody has said so, and others than
    this machine reach it."""
    reached = _reached(settings)
    if settings.auth == "auto" and reached:
        raise InvalidRequest(
            f"setting auth='auto': others than this machine reach a broker with {reached}, so say who may use it: "
            "auth=required asks for tokens (docs/security.md), auth=none lets everyone who can connect read, write and "
            "delete everything",
            field="auth",
        )
    if settings.auth == "none" and not settings.member:  # else the parent has said it
        logger.warning("auth=none: everyone who can connect can read, write and delete everything, without any token")


def check_advertised(settings: Settings) -> None:
    """Raises InvalidRequest where a broker that speaks TLS alone would send clients and brokers to plain HTTP."""
    url = settings.advertise_url
    if settings.tls_cert_file and url and not url.startswith("https://"):
        raise InvalidRequest(
            f"setting advertise_url={url!r}: with tls_cert_file the broker speaks TLS alone at its port, and nobody "
            "could reach it at an http:// URL; let advertise_url begin with https://, or leave tls_cert_file out",
            field="advertise_url",
        )


def check_peer_port(settings: Settings) -> None:
    """Raises InvalidRequest where the port is one of those for clients, or an URL is given and no port."""
    if not settings.peer_port:
        if settings.advertise_peer_url:
            raise InvalidRequest(
                f"setting advertise_peer_url={settings.advertise_peer_url!r}: there is no peer_port; give one, or "
                "leave the URL out",
                field="advertise_peer_url",
            )
        return
    last = 0 if settings.member else settings.brokers - 1
    if settings.port and abs(settings.peer_port - settings.port) <= last:
        raise InvalidRequest(
            f"setting peer_port={settings.peer_port}: port={settings.port} "
            + (f"and the {last} ports behind it are" if last else "is")
            + " for clients; choose another one",
            field="peer_port",
        )


def is_loopback(host: str) -> bool:
    """Tells whether a host is this machine by its name or address. No name is looked up."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _reached(settings: Settings) -> str | None:
    """Returns the setting by which others reach the broker, None where none does."""
    if not is_loopback(settings.host):
        return f"host={settings.host!r}"
    if settings.advertise_url and not is_loopback(urlsplit(settings.advertise_url).hostname or ""):
        return f"advertise_url={settings.advertise_url!r}"
    return None
