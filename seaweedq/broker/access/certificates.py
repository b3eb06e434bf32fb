"""The certificates that clients show in their TLS handshakes, and their callers.

OpenSSL has judged a certificate by `client_ca_file` before anything of it is read here: its chain, its times, and that
it is one for clients. It stands for the one principal whose name is among its names: the DNS names of
its SAN, or the common name of its subject. With none, or with several, it stands for nobody, and its request is
one without a token. It counts until its end, though its connection may last longer.

A certificate counts only under the CA file under which it was judged. Once the file has another content, its
connections have to be made again: a request on an old one gets 503, the last answer there. So a CA that was taken out
of the file ends all certificates that it has signed, also on open connections.

No certificate counts for a request of a page of another origin: a browser adds certificates to those by itself.
"""

import hashlib
from collections.abc import Callable
from typing import Literal, NamedTuple

from seaweedq.access.rights import DEFAULT, Caller, Rights
from seaweedq.broker.access.view import AccessView, Touched, handle_of_principal

REMEMBERED = 10_000
MOST_NAMES = 100  # of a certificate, so that those that are remembered have a bound
PREFIX = "certificate:"
DIGITS = 32
Names = Literal["san", "subject"]


class ClientCertificate(NamedTuple):
    """A certificate that OpenSSL has judged: the start of its SHA-256, its names, when it ends, and the SHA-256 of the
    CA file then."""

    fingerprint: str
    san: tuple[str, ...]
    subject: tuple[str, ...]
    expires_us: int
    ca: bytes

    @staticmethod
    def read(der: bytes, ca: bytes) -> "ClientCertificate":
        """Reads a certificate. Raises ValueError, also for more than MOST_NAMES names, and errors of cryptography."""
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        found = x509.load_der_x509_certificate(der)
        try:
            extension = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            san: tuple[str, ...] = ()
        else:
            san = tuple(extension.get_values_for_type(x509.DNSName))
        subject = tuple(str(one.value) for one in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
        if len(san) + len(subject) > MOST_NAMES:
            raise ValueError(f"it has {len(san) + len(subject)} names, more than {MOST_NAMES}")
        expires_us = int(found.not_valid_after_utc.timestamp() * 1e6)
        return ClientCertificate(hashlib.sha256(der).hexdigest()[:DIGITS], san, subject, expires_us, ca)


class ClientCertificates:
    """Those of one broker. `ca` returns the SHA-256 of the CA file of now."""

    def __init__(self, names: Names, view: AccessView) -> None:
        self.ca: Callable[[], bytes] = bytes
        self._names = names
        self._view = view
        self._callers: dict[ClientCertificate, Caller | None] = {}  # until a principal changes

    def is_outdated(self, shown: ClientCertificate) -> bool:
        """Returns whether a certificate was judged by another CA file than that of now."""
        return shown.ca != self.ca()

    def find(self, shown: ClientCertificate) -> Caller | None:
        """Returns the caller of a certificate, whose time may be over; None if it stands for nobody."""
        if shown not in self._callers:
            if len(self._callers) >= REMEMBERED:
                self._callers.clear()
            self._callers[shown] = self._caller(shown)
        return None if self.is_outdated(shown) else self._callers[shown]

    def forget(self, touched: Touched) -> None:
        """Forgets callers if a change may be about them."""
        if touched is None or any(one.startswith(handle_of_principal("")) for one in touched):
            self._callers.clear()

    def _caller(self, shown: ClientCertificate) -> Caller | None:
        view = self._view
        names = dict.fromkeys(shown.san if self._names == "san" else shown.subject)
        named = [name for name in names if name != DEFAULT and name in view.principals]
        if len(named) != 1:
            return None
        (name,) = named
        principal = view.principals[name]
        if principal.disabled:
            return None
        limits, handles = view.limits(name, principal.uid) or view.default, tuple(map(handle_of_principal, names))
        token = f"{PREFIX}{shown.fingerprint}"
        layers = (Rights(principal.grants),)
        return Caller(name, token, layers, shown.expires_us, limits, principal.uid, "certificate", shown, handles)
